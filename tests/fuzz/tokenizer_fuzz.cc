// SPDX-License-Identifier: Apache-2.0
// Arbitrary bytes as a tokenizer.json: either an nibble::Error or a tokenizer that encodes and
// decodes, the stream giving the same text as the whole.
#include <cstdlib>
#include <string>
#include <vector>

#include "nibble/error.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const std::string_view json(reinterpret_cast<const char*>(data), size);
    const nibble::Tokenizer tokenizer = nibble::Tokenizer::Parse(json, "fuzz");
    const std::string text =
        "ab abc<s> a\n12, \u00E9e\u0301\U0001F600 " + std::string(json.substr(0, 40));
    if (!nibble::IsValidUtf8(text)) return 0;
    std::vector<int32_t> ids = tokenizer.Encode(text);
    const std::vector<int32_t> plain = tokenizer.EncodePlain(text);
    ids.insert(ids.end(), plain.rbegin(), plain.rend());
    for (const bool skip_special : {false, true}) {
      nibble::StreamDecoder stream(tokenizer, skip_special);
      std::string streamed;
      for (const int32_t id : ids) {
        const std::string part = stream.Push(id);
        if (!nibble::IsValidUtf8(part)) std::abort();
        streamed += part;
      }
      if (streamed + stream.Flush() != tokenizer.Decode(ids, skip_special)) std::abort();
    }
  } catch (const nibble::Error&) {
  }
  return 0;
}
