// SPDX-License-Identifier: Apache-2.0
// libFuzzer target of both parsers of io/safetensors.h. The first byte chooses how the rest is
// used: as a whole file, as a header whose length field is right (so that the fuzzer gets past it)
// followed by up to 63 bytes of data, or as an index. Accepted files must keep their promises.
#include <cstdlib>
#include <cstring>
#include <string>

#include "io/safetensors.h"
#include "nibble/error.h"

namespace {

void CheckFile(const std::string& file) {
  const auto bytes = std::as_bytes(std::span(file));
  const auto contents = nibble::ParseSafetensors(bytes, "fuzz");
  uint64_t header = 0, data = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  for (const auto& [name, view] : contents.tensors) {
    const auto begin = view.data - bytes.data();
    if (begin < 0 || static_cast<uint64_t>(begin) + view.bytes() > bytes.size()) std::abort();
    data += view.bytes();
  }
  if (sizeof header + header + data != bytes.size()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(input) + 1, size - 1);
  try {
    if (input[0] < 64) {
      uint64_t length = text.size();
      std::string file(sizeof length, '\0');
      std::memcpy(file.data(), &length, sizeof length);
      CheckFile(file + text + std::string(input[0], 'd'));
    } else if (input[0] < 128) {
      CheckFile(text);
    } else {
      nibble::ParseSafetensorsIndex(text, "fuzz");
    }
  } catch (const nibble::Error&) {
  }
  return 0;
}
