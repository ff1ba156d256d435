// SPDX-License-Identifier: Apache-2.0
// UTF-8 as a byte format: lengths, and turning a stream of arbitrary bytes into valid text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace nibble {

inline constexpr std::string_view kReplacementCharacter = "\uFFFD";

// Bytes of the character that starts with `lead`, in valid UTF-8.
inline size_t Utf8Length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

inline bool IsUtf8Continuation(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

// The code point of one character of valid UTF-8.
inline uint32_t CodePoint(std::string_view character) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) return byte(0);
  uint32_t code_point = byte(0) & (0xFFu >> (character.size() + 1));
  for (size_t i = 1; i < character.size(); ++i) code_point = code_point << 6 | (byte(i) & 0x3Fu);
  return code_point;
}

// `code_point` is no surrogate and below 0x110000.
void AppendUtf8(uint32_t code_point, std::string* text);

// Calls character(code_point, begin, end) for each character of valid UTF-8.
template <typename Character>
void ForEachCharacter(std::string_view text, const Character& character) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = at + Utf8Length(text[at]);
    character(CodePoint(text.substr(at, end - at)), at, end);
    at = end;
  }
}

bool IsValidUtf8(std::string_view text);

// Returns what std::string_view::find does, in linear time.
size_t FindText(std::string_view text, std::string_view needle, size_t from = 0);

// Takes from the front of *bytes all that is decided and returns it as valid UTF-8; every maximal
// ill-formed sequence (Unicode 3.9, "substitution of maximal subparts") becomes U+FFFD. What stays
// in *bytes is the beginning of a character.
std::string TakeUtf8(std::string* bytes);

}  // namespace nibble
