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
std::string_view LastChar(std::string_view text);
std::vector<std::string_view> Chars(std::string_view text);
int64_t CountChars(std::string_view text);
std::optional<std::string> CharOf(int64_t code);  // nullopt: not a Unicode scalar value
int32_t CodePoint(std::string_view one_char);     // a stray byte's is the byte itself

// str.isspace(), str.isprintable() and so on, of one character.
bool IsSpace(std::string_view one_char);
bool IsPrintable(int32_t code);
bool IsAlpha(int32_t code);
bool IsDecimal(int32_t code);
bool IsDigit(int32_t code);
bool IsNumeric(int32_t code);
bool IsAlnum(int32_t code);
bool IsNameStart(int32_t code);  // of an identifier
bool IsNamePart(int32_t code);
bool IsUpper(int32_t code);  // title case is neither
bool IsLower(int32_t code);
bool IsTitle(int32_t code);
bool IsLineEnd(int32_t code);  // where str.splitlines() splits

// str.strip() and its sides; without `chars` it strips white space.
enum class Side { kLeft, kRight, kBoth };
std::string_view Strip(std::string_view text, Side side,
                       std::optional<std::string_view> chars = std::nullopt);

// str.upper() and so on, by the characters' simple case mappings (casefold() by the full one).
// Title case begins a word after each character that is not a letter.
enum class Case { kUpper, kLower, kCapitalize, kTitle, kSwap, kFold };
std::string ChangeCase(std::string_view text, Case style);

// Python's repr() of a float: the shortest digits that read back.
std::string FloatText(double value);

}  // namespace nibble::jinja
