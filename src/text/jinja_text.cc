// SPDX-License-Identifier: Apache-2.0
#include "text/jinja_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "base/utf8.h"

namespace nibble::jinja {
namespace {

std::string_view LastChar(std::string_view text) {
  for (size_t size = std::min<size_t>(4, text.size()); size > 1; --size) {
    const std::string_view tail = text.substr(text.size() - size);
    if (FirstChar(tail).size() == size) return tail;
  }
  return text.substr(text.size() - 1);
}

}  // namespace

std::string_view FirstChar(std::string_view text) {
  if (static_cast<unsigned char>(text[0]) < 0x80) return text.substr(0, 1);
  utf8proc_int32_t code;
  const auto length = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                       static_cast<utf8proc_ssize_t>(text.size()), &code);
  return text.substr(0, length > 0 ? static_cast<size_t>(length) : 1);
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
  bool starts = style != Case::kLower;
  for (const std::string_view one : Chars(text)) {
    const int32_t code = CodePoint(one);
    AppendUtf8(static_cast<uint32_t>(starts ? utf8proc_toupper(code) : utf8proc_tolower(code)),
               &out);
    const auto category = utf8proc_category(code);
    if (style == Case::kCapitalize) starts = false;
    if (style == Case::kTitle) {
      starts = category < UTF8PROC_CATEGORY_LU || category > UTF8PROC_CATEGORY_LT;
    }
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
