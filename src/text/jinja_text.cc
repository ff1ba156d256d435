// SPDX-License-Identifier: Apache-2.0
#include "text/jinja_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "base/utf8.h"

namespace nibble::jinja {
std::string_view FirstChar(std::string_view text) {
  if (static_cast<unsigned char>(text[0]) < 0x80) return text.substr(0, 1);
  utf8proc_int32_t code;
  const auto length = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                       static_cast<utf8proc_ssize_t>(text.size()), &code);
  return text.substr(0, length > 0 ? static_cast<size_t>(length) : 1);
}

std::string_view LastChar(std::string_view text) {
  for (size_t size = std::min<size_t>(4, text.size()); size > 1; --size) {
    const std::string_view tail = text.substr(text.size() - size);
    if (FirstChar(tail).size() == size) return tail;
  }
  return text.substr(text.size() - 1);
}

int32_t CodePoint(std::string_view one_char) {
  if (one_char.size() == 1) return static_cast<unsigned char>(one_char[0]);
  utf8proc_int32_t code = -1;
  utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(one_char.data()),
                   static_cast<utf8proc_ssize_t>(one_char.size()), &code);
  return code >= 0 ? code : static_cast<unsigned char>(one_char[0]);
}

bool IsPrintable(int32_t code) {
  switch (utf8proc_category(code)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return code == ' ';
    default:
      return true;
  }
}

int64_t CountChars(std::string_view text) {
  int64_t count = 0;
  for (; !text.empty(); ++count) text.remove_prefix(FirstChar(text).size());
  return count;
}

std::optional<std::string> CharOf(int64_t code) {
  if (code < 0 || code > 0x10ffff) return std::nullopt;
  if (!utf8proc_codepoint_valid(static_cast<utf8proc_int32_t>(code))) return std::nullopt;
  std::string text;
  AppendUtf8(static_cast<uint32_t>(code), &text);
  return text;
}

bool IsAlpha(int32_t code) {
  const auto category = utf8proc_category(code);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}
bool IsDecimal(int32_t code) {
  return utf8proc_category(code) == UTF8PROC_CATEGORY_ND;
}
bool IsDigit(int32_t code) {  // also superscripts, subscripts and the like
  static constexpr std::pair<int32_t, int32_t> kRanges[] = {
      {0xb2, 0xb3},       {0xb9, 0xb9},       {0x1369, 0x1371},   {0x19da, 0x19da},
      {0x2070, 0x2070},   {0x2074, 0x2079},   {0x2080, 0x2089},   {0x2460, 0x2468},
      {0x2474, 0x247c},   {0x2488, 0x2490},   {0x24ea, 0x24ea},   {0x24f5, 0x24fd},
      {0x24ff, 0x24ff},   {0x2776, 0x277e},   {0x2780, 0x2788},   {0x278a, 0x2792},
      {0x10a40, 0x10a43}, {0x10e60, 0x10e68}, {0x11052, 0x1105a}, {0x1f100, 0x1f10a}};
  return IsDecimal(code) || std::any_of(std::begin(kRanges), std::end(kRanges), [&](const auto& r) {
           return code >= r.first && code <= r.second;
         });
}
bool IsNumeric(int32_t code) {
  const auto category = utf8proc_category(code);
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}
bool IsAlnum(int32_t code) {
  return IsAlpha(code) || IsNumeric(code);
}
bool IsNameStart(int32_t code) {
  return code == '_' || IsAlpha(code) || utf8proc_category(code) == UTF8PROC_CATEGORY_NL;
}
bool IsNamePart(int32_t code) {
  const auto category = utf8proc_category(code);
  return IsNameStart(code) || IsDecimal(code) || category == UTF8PROC_CATEGORY_MN ||
         category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_PC;
}
bool IsUpper(int32_t code) {
  return utf8proc_isupper(code) != 0 && !IsTitle(code);
}
bool IsLower(int32_t code) {
  return utf8proc_islower(code) != 0;
}
bool IsTitle(int32_t code) {
  return utf8proc_category(code) == UTF8PROC_CATEGORY_LT;
}
bool IsLineEnd(int32_t code) {
  return (code >= 0x0a && code <= 0x0d) || (code >= 0x1c && code <= 0x1e) || code == 0x85 ||
         code == 0x2028 || code == 0x2029;
}

std::vector<std::string_view> Chars(std::string_view text) {
  std::vector<std::string_view> chars;
  chars.reserve(text.size());
  for (size_t i = 0; i < text.size(); i += chars.back().size()) {
    chars.push_back(FirstChar(text.substr(i)));
  }
  return chars;
}

bool IsSpace(std::string_view one_char) {
  const int32_t code = CodePoint(one_char);
  return (code >= 9 && code <= 13) || (code >= 0x1c && code <= 0x20) || code == 0x85 ||
         code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
         code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

std::string_view Strip(std::string_view text, Side side, std::optional<std::string_view> chars) {
  const auto listed = Chars(chars.value_or(""));
  const std::set<std::string_view> set(listed.begin(), listed.end());
  const auto strips = [&](std::string_view c) { return chars ? set.contains(c) : IsSpace(c); };
  while (side != Side::kRight && !text.empty() && strips(FirstChar(text))) {
    text.remove_prefix(FirstChar(text).size());
  }
  while (side != Side::kLeft && !text.empty() && strips(LastChar(text))) {
    text.remove_suffix(LastChar(text).size());
  }
  return text;
}

std::string ChangeCase(std::string_view text, Case style) {
  std::string out;
  bool starts = style != Case::kLower && style != Case::kFold;
  for (const std::string_view one : Chars(text)) {
    const int32_t code = CodePoint(one);
    if (style == Case::kFold) {
      utf8proc_int32_t folded[4];  // of one character: three at most
      int state = 0;
      const auto count = utf8proc_decompose_char(code, folded, 4, UTF8PROC_CASEFOLD, &state);
      for (utf8proc_ssize_t i = 0; i < count; ++i)
        AppendUtf8(static_cast<uint32_t>(folded[i]), &out);
      continue;
    }
    if (style == Case::kSwap) starts = !IsUpper(code);
    const int32_t upper = style == Case::kTitle || style == Case::kCapitalize
                              ? utf8proc_totitle(code)
                              : utf8proc_toupper(code);
    AppendUtf8(static_cast<uint32_t>(starts ? upper : utf8proc_tolower(code)), &out);
    if (style == Case::kCapitalize) starts = false;
    if (style == Case::kTitle) starts = !IsUpper(code) && !IsLower(code) && !IsTitle(code);
  }
  return out;
}

std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char digits[400];  // 1e-4 <= |value| < 1e16 or scientific: far below this
  const double size = std::fabs(value);
  const bool fixed = size == 0 || (size >= 1e-4 && size < 1e16);
  const auto format = fixed ? std::chars_format::fixed : std::chars_format::scientific;
  const auto end = std::to_chars(digits, digits + sizeof digits, value, format).ptr;
  std::string text(digits, end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

}  // namespace nibble::jinja
