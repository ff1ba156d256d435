// SPDX-License-Identifier: Apache-2.0
// Fields of protobuf messages, encoded by hand, and pieces of SentencePiece models.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

namespace nibble::proto {

inline std::string Varint(uint64_t value) {
  std::string bytes;
  for (; value > 127; value >>= 7) bytes += static_cast<char>(value | 128);
  return bytes + static_cast<char>(value);
}
inline std::string Number(uint64_t field, uint64_t value) {
  return Varint(field << 3) + Varint(value);
}
inline std::string Message(uint64_t field, const std::string& bytes) {
  return Varint(field << 3 | 2) + Varint(bytes.size()) + bytes;
}
inline std::string Real(uint64_t field, float value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return Varint(field << 3 | 5) + bytes;
}
inline std::string Piece(const std::string& text, float score, uint64_t type) {
  return Message(1, Message(1, text) + Real(2, score) + Number(3, type));
}

}  // namespace nibble::proto
