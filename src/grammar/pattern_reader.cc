// SPDX-License-Identifier: Apache-2.0
#include "grammar/pattern_reader.h"

#include "base/utf8.h"
#include "grammar/expression.h"
#include "grammar/limits.h"

namespace nibble::grammar {
namespace {

const CharRanges kDigits = {{'0', '9'}};
const CharRanges kWords = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
// WhiteSpace and LineTerminator of ECMAScript.
const CharRanges kSpaces = {{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680},
                            {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                            {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};

bool IsSurrogate(uint32_t c, uint32_t first) {
  return c >= first && c < first + 0x400;
}

CharRanges One(uint32_t c) {
  return {{c, c}};
}

}  // namespace

PatternReader::PatternReader(std::string_view text, std::string where)
    : text_(text), where_(std::move(where)) {
  if (text.size() > GrammarLimits::kSourceBytes) {
    FailUsage("{}: {} bytes, at most {} are accepted", where_, text.size(),
              GrammarLimits::kSourceBytes);
  }
  if (!IsValidUtf8(text)) FailUsage("{}: not valid UTF-8", where_);
}

bool PatternReader::Take(std::string_view word) {
  if (!StartsWith(word)) return false;
  at_ += word.size();
  return true;
}

uint32_t PatternReader::TakeChar() {
  if (done()) Refuse("something is missing at the end");
  const size_t size = Utf8Length(text_[at_]);
  const uint32_t c = CodePoint(text_.substr(at_, size));
  at_ += size;
  return c;
}

uint32_t PatternReader::TakeHex(size_t digits) {
  uint32_t value = 0;
  for (size_t i = 0; i < digits; ++i) {
    const uint32_t c = TakeChar();
    const uint32_t lower = c | 0x20;
    if (c >= '0' && c <= '9') {
      value = value << 4 | (c - '0');
    } else if (lower >= 'a' && lower <= 'f') {
      value = value << 4 | (lower - 'a' + 10);
    } else {
      Refuse("{} hexadecimal digits are wanted", digits);
    }
  }
  return value;
}

// Reads the digits behind \u; two halves of a surrogate pair are one character.
uint32_t PatternReader::TakeUnicode() {
  uint32_t c = 0;
  if (Take("{")) {
    size_t digits = 0;
    while (digits < 7 && Peek(digits) != '}') ++digits;
    if (digits == 0 || digits > 6) Refuse("one to six hexadecimal digits are wanted in \\u{{}}");
    c = TakeHex(digits);
    Take("}");
  } else {
    c = TakeHex(4);
    if (IsSurrogate(c, 0xD800) && Take("\\u")) {
      const uint32_t low = TakeHex(4);
      if (!IsSurrogate(low, 0xDC00)) Refuse("half of a surrogate pair");
      c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
    }
  }
  return c;
}

CharRanges PatternReader::TakeEscape() {
  const uint32_t c = TakeChar();
  uint32_t code_point = c;
  switch (c) {
    case 'd':
      return kDigits;
    case 'D':
      return Complement(kDigits);
    case 'w':
      return kWords;
    case 'W':
      return Complement(kWords);
    case 's':
      return kSpaces;
    case 'S':
      return Complement(kSpaces);
    case 'n':
      return One('\n');
    case 'r':
      return One('\r');
    case 't':
      return One('\t');
    case 'f':
      return One('\f');
    case 'v':
      return One('\v');
    case '0':
      if (Peek() >= '0' && Peek() <= '9') Refuse("octal escapes are not supported");
      return One(0);
    case 'x':
      code_point = TakeHex(2);
      break;
    case 'u':
      code_point = TakeUnicode();
      break;
    case 'U':
      code_point = TakeHex(8);
      break;
    default:
      const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
      if (c >= '1' && c <= '9') Refuse("back-references (\\{}) are not supported", c - '0');
      if (letter) Refuse("the escape \\{} is not supported", static_cast<char>(c));
  }
  if (code_point > 0x10FFFF || IsSurrogate(code_point, 0xD800) || IsSurrogate(code_point, 0xDC00)) {
    Refuse("U+{:04X} is no character", code_point);
  }
  return One(code_point);
}

CharRanges PatternReader::TakeClassItem() {
  if (StartsWith("[:") || StartsWith("[.") || StartsWith("[=")) {
    Refuse("classes by name ([:alpha:]) are not supported");
  }
  if (!Take("\\")) return One(TakeChar());
  return Take("b") ? One('\b') : TakeEscape();
}

CharRanges PatternReader::TakeClass() {
  const bool others = Take("^");
  CharRanges all;
  while (!Take("]")) {
    if (done()) Refuse("] is missing");
    CharRanges item = TakeClassItem();
    if (Peek() == '-' && Peek(1) != ']') {
      Take("-");
      const CharRanges last = TakeClassItem();
      const bool ordered = item.size() == 1 && item[0].first == item[0].last && last.size() == 1 &&
                           last[0].first == last[0].last && item[0].first <= last[0].first;
      if (!ordered) Refuse("not a range of characters in [ ]");
      item[0].last = last[0].last;
    }
    all.insert(all.end(), item.begin(), item.end());
  }
  if (all.empty()) Refuse("an empty class [ ] is not supported");
  return others ? Complement(std::move(all)) : NormalRanges(std::move(all));
}

int64_t PatternReader::TakeCount() {
  if (Peek() < '0' || Peek() > '9') Refuse("a count is wanted in {{ }}");
  int64_t count = 0;
  while (Peek() >= '0' && Peek() <= '9') {
    count = count * 10 + (Peek() - '0');
    ++at_;
    if (count > GrammarLimits::kRepeat) Refuse("counts are at most {}", GrammarLimits::kRepeat);
  }
  return count;
}

std::pair<int64_t, int64_t> PatternReader::TakeCounts() {
  const int64_t min = TakeCount();
  int64_t max = min;
  if (Take(",")) max = Peek() == '}' ? kUnbounded : TakeCount();
  if (!Take("}")) Refuse("}} is missing");
  if (max != kUnbounded && max < min) Refuse("{{{},{}}}: the second count is less", min, max);
  return {min, max};
}

bool PatternReader::TakeRepetition(int64_t* min, int64_t* max) {
  *min = 0;
  *max = kUnbounded;
  if (Take("?")) {
    *max = 1;
  } else if (Take("+")) {
    *min = 1;
  } else if (Take("{")) {
    std::tie(*min, *max) = TakeCounts();
  } else if (!Take("*")) {
    return false;
  }
  return true;
}

}  // namespace nibble::grammar
