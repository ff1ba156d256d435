// SPDX-License-Identifier: Apache-2.0
// Methods of texts: case, padding, and what the characters are.
#include <algorithm>

#include "text/jinja_builtins.h"
#include "text/jinja_format.h"
#include "text/jinja_text.h"

namespace nibble::jinja {
namespace {

template <Side side>
Value StripText(Context& c, const Value& self, const Args& args) {
  const std::string text = Str(c.budget, self);
  const Value* chars = args.Find(0, "chars");
  if (chars == nullptr || chars->IsNone()) return std::string(Strip(text, side));
  const std::string set = Str(c.budget, *chars);
  c.budget.Charge((text.size() + set.size()) / kCharsPerStep);
  return std::string(Strip(text, side, set));
}

template <Case style>
Value ChangeTextCase(Context& c, const Value& self, const Args&) {
  const std::string text = Str(c.budget, self);
  c.budget.Charge(text.size() / kCharsPerStep);
  return MakeString(c.budget, ChangeCase(text, style));
}

// str.center(), ljust() and rjust(); where Python centers an odd space is its own.
template <Side padded>
Value PadText(Context& c, const Value& self, const Args& args) {
  const std::string text = Str(c.budget, self);
  c.budget.Charge(text.size() / kCharsPerStep);
  const Value* given = args.Find(1, "fillchar");
  const std::string fill = given == nullptr ? " " : Str(c.budget, *given);
  if (CountChars(fill) != 1) Raise("the fill character must be one character");
  const int64_t width = std::clamp<int64_t>(args.Int(0, "width", 80), 0, kMaxTextBytes + 1);
  const int64_t missing = std::max<int64_t>(width - CountChars(text), 0);
  const int64_t left = padded == Side::kLeft    ? missing
                       : padded == Side::kRight ? 0
                                                : missing / 2 + (missing & width & 1);
  Text out(c.budget);
  for (int64_t i = 0; i < left; ++i) out.Add(fill);
  out.Add(text);
  for (int64_t i = left; i < missing; ++i) out.Add(fill);
  return out.Take();
}

Value ZeroFill(Context& c, const Value& self, const Args& args) {
  const std::string& text = *self.AsString();
  const bool sign = text.starts_with('-') || text.starts_with('+');
  const int64_t width = std::clamp<int64_t>(args.Int(0, "width", 0), 0, kMaxTextBytes + 1);
  Text out(c.budget);
  out.Add(std::string_view(text).substr(0, sign));
  for (int64_t i = CountChars(text); i < width; ++i) out.Add("0");
  out.Add(std::string_view(text).substr(sign));
  return out.Take();
}

Value ExpandTabs(Context& c, const Value& self, const Args& args) {
  const int64_t size = args.Int(0, "tabsize", 8);
  Text out(c.budget);
  int64_t column = 0;
  c.budget.Charge(self.AsString()->size() / kCharsPerStep);
  for (const std::string_view one : Chars(*self.AsString())) {
    if (one == "\t") {
      for (int64_t left = size > 0 ? size - column % size : 0; left > 0; --left, ++column) {
        out.Add(" ");
      }
    } else {
      out.Add(one);
      column = one == "\n" || one == "\r" ? 0 : column + 1;
    }
  }
  return out.Take();
}

// ---- what the characters are ----

bool IsSpaceCode(int32_t code) {
  return IsSpace(*CharOf(code));
}
bool IsAscii(int32_t code) {
  return code < 0x80;
}

template <bool (*is)(int32_t), bool if_empty>
Value AllChars(Context& c, const Value& self, const Args&) {
  c.budget.Charge(self.AsString()->size() / kCharsPerStep);
  const auto chars = Chars(*self.AsString());
  return chars.empty() ? if_empty : std::all_of(chars.begin(), chars.end(), [](const auto& one) {
    return is(CodePoint(one));
  });
}

Value IsIdentifier(Context& c, const Value& self, const Args& args) {
  const std::string& text = *self.AsString();
  return !text.empty() && IsNameStart(CodePoint(FirstChar(text))) &&
         AllChars<IsNamePart, false>(c, self, args).Truth();
}

// Returns whether a text has no letter of the other case and at least one of this.
template <bool (*is)(int32_t), bool (*is_other)(int32_t)>
Value AllCased(Context& c, const Value& self, const Args&) {
  c.budget.Charge(self.AsString()->size() / kCharsPerStep);
  bool found = false;
  for (const std::string_view one : Chars(*self.AsString())) {
    const int32_t code = CodePoint(one);
    if (is_other(code) || IsTitle(code)) return false;
    found |= is(code);
  }
  return found;
}

Value IsTitleText(Context& c, const Value& self, const Args&) {
  c.budget.Charge(self.AsString()->size() / kCharsPerStep);
  bool found = false, inside = false;
  for (const std::string_view one : Chars(*self.AsString())) {
    const int32_t code = CodePoint(one);
    const bool capital = IsUpper(code) || IsTitle(code), small = IsLower(code);
    if ((capital && inside) || (small && !inside)) return false;
    inside = capital || small;
    found |= inside;
  }
  return found;
}

Value Format(Context& c, const Value& self, const Args& args) {
  return FormatBraces(c, self, args);
}

Value FormatMap(Context& c, const Value& self, const Args& args) {
  const Dict* dict = args.Need(0, "mapping").AsDict();
  if (dict == nullptr) Raise("format_map() needs a dictionary");
  Args named;
  for (const auto& [key, value] : dict->items) {
    if (const std::string* name = key.AsString()) {
      ChargeText(c.budget, key);
      named.named.emplace_back(*name, value);
    }
  }
  return FormatBraces(c, self, named);
}

}  // namespace

const Table& StringMethods() {
  static const Table table = [] {
    Table methods = {
        {"strip", StripText<Side::kBoth>},
        {"lstrip", StripText<Side::kLeft>},
        {"rstrip", StripText<Side::kRight>},
        {"upper", ChangeTextCase<Case::kUpper>},
        {"lower", ChangeTextCase<Case::kLower>},
        {"capitalize", ChangeTextCase<Case::kCapitalize>},
        {"title", ChangeTextCase<Case::kTitle>},
        {"swapcase", ChangeTextCase<Case::kSwap>},
        {"casefold", ChangeTextCase<Case::kFold>},
        {"center", PadText<Side::kBoth>},
        {"ljust", PadText<Side::kRight>},
        {"rjust", PadText<Side::kLeft>},
        {"zfill", ZeroFill},
        {"expandtabs", ExpandTabs},
        {"isalpha", AllChars<IsAlpha, false>},
        {"isalnum", AllChars<IsAlnum, false>},
        {"isdecimal", AllChars<IsDecimal, false>},
        {"isdigit", AllChars<IsDigit, false>},
        {"isnumeric", AllChars<IsNumeric, false>},
        {"isspace", AllChars<IsSpaceCode, false>},
        {"isascii", AllChars<IsAscii, true>},
        {"isprintable", AllChars<IsPrintable, true>},
        {"isidentifier", IsIdentifier},
        {"isupper", AllCased<IsUpper, IsLower>},
        {"islower", AllCased<IsLower, IsUpper>},
        {"istitle", IsTitleText},
        {"format", Format},
        {"format_map", FormatMap},
    };
    AddSearchMethods(methods);
    return methods;
  }();
  return table;
}

}  // namespace nibble::jinja
