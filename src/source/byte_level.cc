// SPDX-License-Identifier: Apache-2.0
#include "source/byte_level.h"

#include <array>
#include <cstdint>

namespace nibble {
namespace {

constexpr int kHidden = 68;  // bytes that do not stand for themselves

struct Alphabet {
  std::array<uint16_t, 256> code_point{};        // of each byte
  std::array<int16_t, 256 + kHidden> byte_of{};  // of each code point, -1: none
};

constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet;
  for (int16_t& byte : alphabet.byte_of) byte = -1;
  uint16_t next_hidden = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool visible =
        (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
    const auto code_point = visible ? static_cast<uint16_t>(byte) : next_hidden++;
    alphabet.code_point[byte] = code_point;
    alphabet.byte_of[code_point] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

}  // namespace

void AppendByteChars(std::string_view bytes, std::string* chars) {
  for (const char c : bytes) {
    const uint16_t code_point = kAlphabet.code_point[static_cast<unsigned char>(c)];
    if (code_point < 0x80) {
      chars->push_back(static_cast<char>(code_point));
    } else {
      chars->push_back(static_cast<char>(0xC0 | (code_point >> 6)));
      chars->push_back(static_cast<char>(0x80 | (code_point & 0x3F)));
    }
  }
}

std::string BytesFromByteChars(std::string_view chars) {
  std::string bytes;
  for (size_t i = 0; i < chars.size(); ++i) {
    size_t code_point = static_cast<unsigned char>(chars[i]);
    if (code_point >= 0xE0) return std::string(chars);
    if (code_point >= 0x80) {
      code_point = ((code_point & 0x1F) << 6) | (static_cast<unsigned char>(chars[++i]) & 0x3F);
    }
    if (code_point >= kAlphabet.byte_of.size() || kAlphabet.byte_of[code_point] < 0) {
      return std::string(chars);
    }
    bytes.push_back(static_cast<char>(kAlphabet.byte_of[code_point]));
  }
  return bytes;
}

}  // namespace nibble
