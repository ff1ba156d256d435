// SPDX-License-Identifier: Apache-2.0
// Any bytes as a SentencePiece model: an Error, or a tokenizer that encodes and decodes, also the
// texts that a charsmap may hold.
#include "fuzz_input.h"
#include "source/tokenizer_files.h"
#include "use_tokenizer.h"

namespace nibble {
namespace {

void Use(std::string_view bytes) {
  const std::string document = SentencePieceFileDocument(bytes, "fuzz", {});
  UseTokenizer(Tokenizer::Parse(document, "fuzz"), bytes.substr(0, 40));
  UseTokenizer(Tokenizer::Parse(document, "fuzz"), bytes.substr(bytes.size() / 2, 20));
}

}  // namespace
}  // namespace nibble

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return nibble::FuzzOne(data, size, nibble::Use);
}
