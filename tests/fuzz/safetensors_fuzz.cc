// SPDX-License-Identifier: Apache-2.0
// libFuzzer target of both parsers of io/safetensors.h. The first byte chooses how the rest is
// used: as a whole file, as a header whose length field is right (so that the fuzzer gets past it)
// followed by up to 63 bytes of data, or as an index. Accepted files must keep their promises.
#include <cstring>

#include "fuzz_input.h"
#include "io/safetensors.h"

namespace nibble {
namespace {

void CheckFile(const std::string& file) {
  const auto bytes = std::as_bytes(std::span(file));
  const auto contents = ParseSafetensors(bytes, "fuzz");
  uint64_t header = 0, data = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  for (const auto& [name, view] : contents.tensors) {
    const auto begin = view.data - bytes.data();
    NIBBLE_CHECK(begin >= 0 && static_cast<uint64_t>(begin) + view.bytes() <= bytes.size());
    data += view.bytes();
  }
  NIBBLE_CHECK(sizeof header + header + data == bytes.size(), "{} of data", data);
}

void Use(std::string_view input) {
  if (input.empty()) return;
  const auto choice = static_cast<uint8_t>(input[0]);
  const std::string text(input.substr(1));
  if (choice < 64) {
    uint64_t length = text.size();
    std::string file(sizeof length, '\0');
    std::memcpy(file.data(), &length, sizeof length);
    CheckFile(file + text + std::string(choice, 'd'));
  } else if (choice < 128) {
    CheckFile(text);
  } else {
    ParseSafetensorsIndex(text, "fuzz");
  }
}

}  // namespace
}  // namespace nibble

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return nibble::FuzzOne(data, size, nibble::Use);
}
