// SPDX-License-Identifier: Apache-2.0
// A JSON schema (s; S: keywords that cannot be enforced are left out), a regular expression (r) or
// a grammar (g), as the first byte says, to a zero byte; then a byte for each token of a text. The
// mask allows exactly the tokens that can be accepted, and is never empty.
#include "fuzz_input.h"
#include "grammar/matcher.h"

namespace nibble {
namespace {

const VocabularyTrie& Vocabulary() {
  static const VocabularyTrie vocabulary = [] {
    std::vector<std::string> tokens = {
        "",       "{\"", "\":", "\"}",   "\xC3\xA9", "a\xC3", "\xA9\"", "true", "ab",        "12.5",
        "\", \"", "[[",  "]]",  "\\u00", "\n  ",     "},{",   "aaaa",   "-0",   "2024-01-31"};
    for (int byte = 1; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    return VocabularyTrie(tokens);
  }();
  return vocabulary;
}

std::shared_ptr<const Grammar> Compiled(char kind, std::string_view source) {
  if (kind == 's') return JsonSchemaGrammar(ParseJson(source, "fuzz"), "fuzz");
  if (kind == 'S') {
    SchemaNotes notes;
    return JsonSchemaGrammar(ParseJson(source, "fuzz"), "fuzz", &notes);
  }
  return kind == 'r' ? RegexGrammar(source, "fuzz") : TextGrammar(source, "fuzz");
}

void Use(std::string_view input) {
  if (input.empty()) return;
  const std::string_view source = input.substr(1, input.find('\0') - 1);
  std::string_view text = input.substr(std::min(input.size(), source.size() + 2));
  Matcher matcher(Compiled(input[0], source), Vocabulary(), {0});
  // Long texts add time and little else.
  for (const char choice : text.substr(0, 64)) {
    const std::span<const uint64_t> mask = matcher.Mask();
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < Vocabulary().vocab_size(); ++id) {
      if ((mask[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0) allowed.push_back(id);
    }
    NIBBLE_CHECK(!allowed.empty());
    const int32_t other = static_cast<uint8_t>(choice);
    const bool may = std::find(allowed.begin(), allowed.end(), other) != allowed.end();
    if (!may) {
      NIBBLE_CHECK(!matcher.Accept(other), "{}", other);
      const int32_t id = allowed[static_cast<size_t>(other) % allowed.size()];
      NIBBLE_CHECK(matcher.Accept(id), "{}", id);
    } else {
      NIBBLE_CHECK(matcher.Accept(other), "{}", other);
    }
    if (matcher.ended()) return;
  }
}

}  // namespace
}  // namespace nibble

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return nibble::FuzzOne(data, size, nibble::Use);
}
