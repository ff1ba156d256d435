// SPDX-License-Identifier: Apache-2.0
// Arbitrary bytes as a tokenizer.json: either an Error or a tokenizer that encodes and
// decodes, the stream giving the same text as the whole.
#include "fuzz_input.h"
#include "use_tokenizer.h"

namespace nibble {
namespace {

void Use(std::string_view json) {
  UseTokenizer(Tokenizer::Parse(json, "fuzz"), json.substr(0, 40));
}

}  // namespace
}  // namespace nibble

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return nibble::FuzzOne(data, size, nibble::Use);
}
