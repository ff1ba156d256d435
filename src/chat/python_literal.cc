// SPDX-License-Identifier: Apache-2.0
#include "chat/python_literal.h"

#include <string_view>

#include "chat/answer_events.h"

namespace nibble {
namespace {

constexpr size_t kMaxLiteralDepth = 512, kMaxWordBytes = 512;

bool IsWordByte(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
         c == '+' || c == '.' || c == '_';
}

size_t CountDigits(std::string_view text, size_t from) {
  size_t at = from;
  while (at < text.size() && text[at] >= '0' && text[at] <= '9') ++at;
  return at - from;
}

// The number grammar of RFC 8259, section 6.
bool IsJsonNumber(std::string_view text) {
  size_t at = text.starts_with('-') ? 1 : 0;
  const size_t whole = CountDigits(text, at);
  if (whole == 0 || (whole > 1 && text[at] == '0')) return false;
  at += whole;
  if (at < text.size() && text[at] == '.') {
    const size_t fraction = CountDigits(text, at + 1);
    if (fraction == 0) return false;
    at += 1 + fraction;
  }
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    ++at;
    if (at < text.size() && (text[at] == '-' || text[at] == '+')) ++at;
    const size_t exponent = CountDigits(text, at);
    if (exponent == 0) return false;
    at += exponent;
  }
  return at == text.size();
}

// The value of a digit, 16 or more if it is none.
unsigned DigitValue(char c) {
  if (c >= '0' && c <= '9') return static_cast<unsigned>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<unsigned>(c - 'a') + 10;
  if (c >= 'A' && c <= 'F') return static_cast<unsigned>(c - 'A') + 10;
  return 16;
}

}  // namespace

ValueStep PythonLiteral::Byte(char c, std::string* json) {
  switch (at_) {
    case At::kString:
      return InString(c, json);
    case At::kEscape:
      return InEscape(c, json);
    case At::kDigits:
      return InDigits(c, json);
    case At::kWord:
      if (!IsWordByte(c)) return EndWord(c, json);
      if (word_.size() == kMaxWordBytes) return ValueStep::kBad;
      word_ += c;
      return ValueStep::kMore;
    default:
      break;
  }
  if (IsBlank(c)) return ValueStep::kMore;
  if (at_ == At::kColon) {
    if (c != ':') return ValueStep::kBad;
    *json += ": ";
    at_ = At::kValue;
    return ValueStep::kMore;
  }
  if (at_ == At::kNext && c == ',') {
    comma_ = true;
    at_ = open_.back() == '{' ? At::kKeyOrEnd : At::kValueOrEnd;
    return ValueStep::kMore;
  }
  if (c == ')' || c == ']' || c == '}') return Close(c, json);
  return at_ == At::kNext ? ValueStep::kBad : Begin(c, json);
}

ValueStep PythonLiteral::Begin(char c, std::string* json) {
  is_key_ = at_ == At::kKeyOrEnd;
  const bool is_string = c == '"' || c == '\'', is_open = c == '{' || c == '[' || c == '(';
  if (is_key_ ? !is_string : !is_string && !is_open && !IsWordByte(c)) return ValueStep::kBad;
  if (is_open && open_.size() == kMaxLiteralDepth) return ValueStep::kBad;
  // A comma is written with what follows it, since Python allows one before a closing bracket.
  if (comma_) *json += ", ";
  comma_ = false;
  if (is_string) {
    quote_ = c;
    *json += '"';
    at_ = At::kString;
  } else if (is_open) {
    open_ += c;
    *json += c == '{' ? '{' : '[';
    at_ = c == '{' ? At::kKeyOrEnd : At::kValueOrEnd;
  } else {
    word_ = c;
    at_ = At::kWord;
  }
  return ValueStep::kMore;
}

ValueStep PythonLiteral::Close(char c, std::string* json) {
  const char opening = c == ')' ? '(' : c == ']' ? '[' : '{';
  if (at_ == At::kValue || open_.empty() || open_.back() != opening) return ValueStep::kBad;
  comma_ = false;
  open_.pop_back();
  *json += c == '}' ? '}' : ']';
  return End();
}

ValueStep PythonLiteral::End() {
  at_ = At::kNext;
  return open_.empty() ? ValueStep::kLast : ValueStep::kMore;
}

ValueStep PythonLiteral::InString(char c, std::string* json) {
  if (c == '\\') {
    at_ = At::kEscape;
  } else if (c != quote_) {
    AppendJsonText({&c, 1}, json);
  } else {
    *json += '"';
    if (!is_key_) return End();
    at_ = At::kColon;
  }
  return ValueStep::kMore;
}

ValueStep PythonLiteral::InEscape(char c, std::string* json) {
  static constexpr std::string_view kLetters = "abfnrtv", kCodes = "\a\b\f\n\r\t\v";
  at_ = At::kString;
  code_ = digits_ = 0;
  if (c == 'x' || c == 'u' || c == 'U') {
    base_ = 16;
    max_digits_ = c == 'x' ? 2 : c == 'u' ? 4 : 8;
    at_ = At::kDigits;
  } else if (c >= '0' && c <= '7') {
    base_ = 8;
    max_digits_ = 3;
    at_ = At::kDigits;
    return InDigits(c, json);
  } else if (const size_t i = kLetters.find(c); i != std::string_view::npos) {
    AppendJsonText(kCodes.substr(i, 1), json);
  } else if (c == '\\' || c == '\'' || c == '"' || c == '/') {
    AppendJsonText({&c, 1}, json);  // \/ is JSON's
  } else if (c != '\n') {           // Python joins lines there, and keeps any other backslash
    *json += "\\\\";
    AppendJsonText({&c, 1}, json);
  }
  return ValueStep::kMore;
}

ValueStep PythonLiteral::InDigits(char c, std::string* json) {
  const unsigned digit = DigitValue(c);
  if (digit >= base_) {
    if (base_ == 16) return ValueStep::kBad;  // octal ones may have fewer digits
    const ValueStep step = EndDigits(json);
    return step == ValueStep::kMore ? InString(c, json) : step;
  }
  code_ = code_ * base_ + digit;
  return ++digits_ == max_digits_ ? EndDigits(json) : ValueStep::kMore;
}

ValueStep PythonLiteral::EndDigits(std::string* json) {
  if (code_ > 0x10FFFF) return ValueStep::kBad;
  AppendJsonEscape(code_, json);
  at_ = At::kString;
  return ValueStep::kMore;
}

ValueStep PythonLiteral::EndWord(char c, std::string* json) {
  if (word_ == "True" || word_ == "true") {
    *json += "true";
  } else if (word_ == "False" || word_ == "false") {
    *json += "false";
  } else if (word_ == "None" || word_ == "null") {
    *json += "null";
  } else {
    std::erase(word_, '_');  // 1_000
    if (!IsJsonNumber(word_)) return ValueStep::kBad;
    *json += word_;
  }
  if (End() == ValueStep::kLast) return ValueStep::kAfter;
  return Byte(c, json);
}

}  // namespace nibble
