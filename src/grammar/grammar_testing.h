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

// Byte for byte, without tokens and masks.
inline bool Accepts(grammar::Automaton* automaton, std::string_view text) {
  grammar::Automaton::TextState state = automaton->start();
  automaton->Begin(&state);
  for (const char byte : text) {
    state = automaton->Step(state, static_cast<uint8_t>(byte));
    if (state == grammar::Automaton::kDead) return false;
    automaton->Begin(&state);
  }
  return automaton->MayEnd(state);
}
inline bool Accepts(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  grammar::Automaton automaton(grammar);
  return Accepts(&automaton, text);
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
