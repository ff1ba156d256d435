// SPDX-License-Identifier: Apache-2.0
#include "chat/json_text.h"

#include <fmt/format.h>

namespace nibble {
namespace {

constexpr size_t kMaxOpenBrackets = 512;

bool IsScalarByte(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
         c == '+' || c == '.';
}

}  // namespace

ValueStep JsonEnd::First(char c) {
  begun_ = true;
  if (c == '"') {
    in_string_ = true;
  } else if (c == '{' || c == '[') {
    open_ += c;
  } else if (!IsScalarByte(c)) {
    return ValueStep::kBad;
  }
  return ValueStep::kMore;
}

ValueStep JsonEnd::Byte(char c) {
  if (!begun_) return First(c);
  if (in_string_) {
    if (escaped_) {
      escaped_ = false;
    } else if (c == '\\') {
      escaped_ = true;
    } else if (c == '"') {
      in_string_ = false;
      if (open_.empty()) return ValueStep::kLast;
    }
    return ValueStep::kMore;
  }
  if (open_.empty()) return IsScalarByte(c) ? ValueStep::kMore : ValueStep::kAfter;
  if (c == '"') {
    in_string_ = true;
  } else if (c == '{' || c == '[') {
    if (open_.size() == kMaxOpenBrackets) return ValueStep::kBad;
    open_ += c;
  } else if (c == '}' || c == ']') {
    if (open_.back() != (c == '}' ? '{' : '[')) return ValueStep::kBad;
    open_.pop_back();
    if (open_.empty()) return ValueStep::kLast;
  }
  return ValueStep::kMore;
}

void AppendJsonText(std::string_view text, std::string* json) {
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      *json += '\\';
      *json += c;
    } else if (c == '\n') {
      *json += "\\n";
    } else if (c == '\t') {
      *json += "\\t";
    } else if (c == '\r') {
      *json += "\\r";
    } else if (c >= 0 && c < ' ') {
      AppendJsonEscape(static_cast<unsigned char>(c), json);
    } else {
      *json += c;
    }
  }
}

void AppendJsonEscape(unsigned code_point, std::string* json) {
  if (code_point <= 0xFFFF) {
    *json += fmt::format("\\u{:04x}", code_point);
  } else {
    const unsigned rest = code_point - 0x10000;
    *json += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
  }
}

}  // namespace nibble
