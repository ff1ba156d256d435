// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "base/utf8.h"
#include "text/tokenizer.h"

namespace nibble {

// Encodes a text of many kinds, with `more` in it, and decodes it: the stream gives what the whole
// gives.
inline void UseTokenizer(const Tokenizer& tokenizer, std::string_view more) {
  const std::string text = "ab abc<s> a\n12, \u00E9e\u0301\U0001F600 " + std::string(more);
  if (!IsValidUtf8(text)) return;
  std::vector<int32_t> ids = tokenizer.Encode(text);
  const std::vector<int32_t> plain = tokenizer.EncodePlain(text);
  ids.insert(ids.end(), plain.rbegin(), plain.rend());
  for (const bool skip_special : {false, true}) {
    StreamDecoder stream(tokenizer, skip_special);
    std::string streamed;
    for (const int32_t id : ids) {
      const std::string part = stream.Push(id);
      NIBBLE_CHECK(IsValidUtf8(part), "of token {}", id);
      streamed += part;
    }
    NIBBLE_CHECK(streamed + stream.Flush() == tokenizer.Decode(ids, skip_special));
  }
}

}  // namespace nibble
