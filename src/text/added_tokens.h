// SPDX-License-Identifier: Apache-2.0
// The "added_tokens" of a tokenizer.json: texts that become one id wherever they stand, cut out
// before the model, the leftmost and of those the longest first. Immutable after loading.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer_json.h"
#include "text/work.h"

namespace nibble {

struct AddedToken {
  int32_t id;
  std::string content;
  bool special;      // a control token, not text
  bool lstrip;       // takes the white space before it
  bool rstrip;       // takes the white space after it
  bool single_word;  // not inside a word
  bool normalized;   // looked for in the normalized text, else in the text as given
};

std::vector<AddedToken> AddedTokensFromJson(const JsonNode& list);

class AddedTokenMatcher {
 public:
  AddedTokenMatcher() = default;
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  // Cuts `text` and calls part(token, begin, end) from left to right, with token == nullptr for
  // text. With `plain`, special tokens are text.
  using Part = std::function<void(const AddedToken* token, size_t begin, size_t end)>;
  void Split(std::string_view text, bool plain, Work* work, const Part& part) const;

 private:
  const AddedToken* LongestAt(std::string_view text, size_t at, Work* work) const;

  std::vector<AddedToken> tokens_;  // ascending by content, which differ
  std::array<bool, 256> starts_{};  // whether a token starts with this byte
};

}  // namespace nibble
