// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace nibble {
namespace {

// Bytes of the character that `text` (not empty) begins with; 0 if it is not UTF-8 (shortest form,
// no surrogates) or controls a terminal (C0, DEL, C1).
size_t PrintableBytes(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(i < text.size() ? text[i] : 0); };
  const uint8_t first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7F ? 1 : 0;
  const size_t bytes = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4) return 0;
  uint32_t code = first & (0x7Fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3F);
  }
  constexpr uint32_t kMin[] = {0, 0, 0xA0, 0x800, 0x10000};  // of two bytes, beyond C1
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  return code >= kMin[bytes] && code <= 0x10FFFF && !surrogate ? bytes : 0;
}

}  // namespace

std::string Printable(std::string_view text) {
  constexpr size_t kMaxBytes = 1000, kTail = 300;  // messages end with what to do
  if (text.size() > kMaxBytes) {
    return Printable(text.substr(0, kMaxBytes - kTail)) + " ... " +
           Printable(text.substr(text.size() - kTail));
  }
  std::string line;
  while (!text.empty()) {
    const size_t bytes = PrintableBytes(text);
    if (bytes > 0) {
      line += text.substr(0, bytes);
    } else if (text[0] == '\n' || text[0] == '\t') {
      line += text[0] == '\n' ? "\\n" : "\\t";
    } else {
      line += fmt::format("\\x{:02x}", static_cast<uint8_t>(text[0]));
    }
    text.remove_prefix(std::max<size_t>(bytes, 1));
  }
  return line;
}

Error::Error(ErrorCode code, const std::string& message)
    : std::runtime_error(Printable(message)), code_(code) {}

std::string SystemErrorText(int error) {
  constexpr const char* kRemedy = "free space, then repeat the command, quantize with --resume";
  if (error == ENOSPC) return fmt::format("disk full; {}", kRemedy);
  if (error == EDQUOT) return fmt::format("disk quota reached; {}", kRemedy);
  if (error == EFBIG) return "above the limit on the size of files, see ulimit -f";
  return std::strerror(error);
}

void CheckFailed(const char* file, int line, const char* condition, const std::string& message) {
  Note("{}:{}: check failed: {}: {}\n", file, line, condition, message);
  std::abort();
}

}  // namespace nibble
