// SPDX-License-Identifier: Apache-2.0
#include "text/unicode_classes.h"

#include <utf8proc.h>

#include <array>
#include <string>

#include "base/utf8.h"
#include "text/regex.h"

namespace nibble {
namespace {

enum Class : uint8_t {
  kSpace = 1,
  kNumber = 2,
  kMark = 4,
  kNonspacing = 8,
  kPunctuation = 16,
  kOther = 32
};

uint8_t ClassesByCategory(uint32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return kSpace;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return kNumber;
    case UTF8PROC_CATEGORY_MN:
      return kMark | kNonspacing;
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return kMark;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      return kPunctuation;
    case UTF8PROC_CATEGORY_CC:
      return (c >= '\t' && c <= '\r') || c == 0x85 ? kOther | kSpace : kOther;
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
      return kOther;
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
      return c < 0x80 ? kPunctuation : 0;
    default:
      return 0;
  }
}

// Every character of a text is looked up, so those below this, which make up most texts and the
// byte-level alphabet, have their classes in a table.
constexpr uint32_t kTabled = 0x800;
const std::array<uint8_t, kTabled> kClasses = [] {
  std::array<uint8_t, kTabled> classes{};
  for (uint32_t c = 0; c < kTabled; ++c) classes[c] = ClassesByCategory(c);
  return classes;
}();

bool Is(uint32_t c, uint8_t wanted) {
  return ((c < kTabled ? kClasses[c] : ClassesByCategory(c)) & wanted) != 0;
}

}  // namespace

bool IsSpace(uint32_t c) {
  return Is(c, kSpace);
}
bool IsNumber(uint32_t c) {
  return Is(c, kNumber);
}
bool IsMark(uint32_t c) {
  return Is(c, kMark);
}
bool IsNonspacingMark(uint32_t c) {
  return Is(c, kNonspacing);
}
bool IsPunctuation(uint32_t c) {
  return Is(c, kPunctuation);
}
bool IsOther(uint32_t c) {
  return Is(c, kOther);
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
