// SPDX-License-Identifier: Apache-2.0
// Shared by this folder's tests.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "grammar/automaton.h"
#include "grammar/grammar.h"
#include "grammar/matcher.h"
#include "tests/shared_data.h"

namespace nibble::test {

inline bool Accepts(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  grammar::Automaton automaton(grammar);
  return automaton.Accepts(text);
}

// The message of the Error that use() ends with; "" without one.
inline std::string ErrorOf(const std::function<void()>& use) {
  try {
    use();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage) << error.what();
    return error.what();
  }
  return "";
}

inline std::string SchemaError(const std::string& schema) {
  return ErrorOf([&] { JsonSchemaGrammar(ParseJson(schema, "test"), "schema"); });
}

// A schema, and texts that its grammar has and has not.
struct SchemaCase {
  const char* schema;
  std::vector<const char*> good, bad;
};
inline void CheckSchemas(const std::vector<SchemaCase>& cases) {
  for (const SchemaCase& c : cases) {
    std::shared_ptr<const Grammar> grammar;
    const std::string error =
        ErrorOf([&] { grammar = JsonSchemaGrammar(ParseJson(c.schema, "test"), "schema"); });
    ASSERT_EQ(error, "") << c.schema;
    for (const char* text : c.good) EXPECT_TRUE(Accepts(grammar, text)) << c.schema << ": " << text;
    for (const char* text : c.bad) EXPECT_FALSE(Accepts(grammar, text)) << c.schema << ": " << text;
  }
}

// The 256 bytes, then `more`, then one token without bytes that ends a text.
inline std::vector<std::string> ByteTokens(const std::vector<std::string>& more = {}) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  tokens.insert(tokens.end(), more.begin(), more.end());
  tokens.emplace_back();
  return tokens;
}

inline bool HasBit(std::span<const uint64_t> mask, int64_t id) {
  return (mask[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0;
}

}  // namespace nibble::test
