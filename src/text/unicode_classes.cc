// SPDX-License-Identifier: Apache-2.0
#include "text/unicode_classes.h"

#include <utf8proc.h>

#include "text/regex.h"
#include "text/utf8.h"

namespace nibble {
namespace {

// Whether the category of `c` is one of first..last, which stand side by side in utf8proc.h.
bool IsIn(uint32_t c, utf8proc_category_t first, utf8proc_category_t last) {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= first && category <= last;
}

}  // namespace

bool IsSpace(uint32_t c) {
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
  return c == 0x85 || IsIn(c, UTF8PROC_CATEGORY_ZS, UTF8PROC_CATEGORY_ZP);
}

bool IsNumber(uint32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  return IsIn(c, UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO);
}

bool IsMark(uint32_t c) {
  return c >= 0x80 && IsIn(c, UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_ME);
}

bool IsNonspacingMark(uint32_t c) {
  return c >= 0x80 && IsIn(c, UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_MN);
}

bool IsPunctuation(uint32_t c) {
  if (c >= 0x80) return IsIn(c, UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PO);
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
         (c >= '{' && c <= '~');
}

bool IsOther(uint32_t c) {
  return IsIn(c, UTF8PROC_CATEGORY_CC, UTF8PROC_CATEGORY_CO) ||
         IsIn(c, UTF8PROC_CATEGORY_CN, UTF8PROC_CATEGORY_CN);
}

bool IsWord(uint32_t c) {
  // utf8proc does not know what is alphabetic.
  static const Regex word(R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}])",
                          Regex::Syntax::kPattern, "word character");
  std::string character;
  AppendUtf8(c, &character);
  return word.Matches(character);
}

}  // namespace nibble
