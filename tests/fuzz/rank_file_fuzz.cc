// SPDX-License-Identifier: Apache-2.0
// The family in the first line, then a file of ranks. Bytes that are no such file go behind the
// ranks of the 256 bytes, without which no file is read. The result is an Error, or a tokenizer
// that encodes and decodes.
#include "fuzz_input.h"
#include "io/base64.h"
#include "source/tokenizer_files.h"
#include "use_tokenizer.h"

namespace nibble {
namespace {

std::string Bytes() {
  std::string text;
  for (int byte = 0; byte < 256; ++byte) {
    text += fmt::format("{} {}\n", EncodeBase64(std::string(1, static_cast<char>(byte))), byte);
  }
  return text;
}

void Use(std::string_view input) {
  static const std::string bytes = Bytes();
  const std::string family(TakeLine(&input));
  const std::string text = IsRankFile(input) ? std::string(input) : bytes + std::string(input);
  const std::string document = RankFileDocument(text, "fuzz", family, {});
  UseTokenizer(Tokenizer::Parse(document, "fuzz"), input.substr(0, 40));
}

}  // namespace
}  // namespace nibble

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return nibble::FuzzOne(data, size, nibble::Use);
}
