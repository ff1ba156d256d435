// SPDX-License-Identifier: Apache-2.0
// Code points of UTF-8 text as Python's str sees them. A byte that is not part of a valid sequence
// counts as one character, so no input is refused here and nothing reads past the end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::jinja {

std::string_view FirstChar(std::string_view text);  // text is not empty
std::vector<std::string_view> Chars(std::string_view text);
int32_t CodePoint(std::string_view one_char);  // of a stray byte: the byte

// str.isspace() and str.isprintable() of one character.
bool IsSpace(std::string_view one_char);
bool IsPrintable(int32_t code);

// str.strip() and its sides; without `chars` it strips white space.
enum class Side { kLeft, kRight, kBoth };
std::string_view Strip(std::string_view text, Side side,
                       std::optional<std::string_view> chars = std::nullopt);

// str.upper() and so on, by the characters' simple case mappings. Title case begins a word after
// each character that is not a letter.
enum class Case { kUpper, kLower, kCapitalize, kTitle };
std::string ChangeCase(std::string_view text, Case style);

// Python's repr() of a float: the shortest digits that read back.
std::string FloatText(double value);

}  // namespace nibble::jinja
