// SPDX-License-Identifier: Apache-2.0
// Arbitrary bytes as a tokenizer.json: either an Error or a tokenizer that encodes and
// decodes, the stream giving the same text as the whole.
#include "fuzz_input.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace nibble {
namespace {

void Use(std::string_view json) {
  const Tokenizer tokenizer = Tokenizer::Parse(json, "fuzz");
  const std::string text =
      "ab abc<s> a\n12, \u00E9e\u0301\U0001F600 " + std::string(json.substr(0, 40));
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

}  // namespace
}  // namespace nibble

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return nibble::FuzzOne(data, size, nibble::Use);
}
