// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "chat/json_text.h"

namespace nibble {

// Turns a Python literal (strings, numbers, True, False, None, lists, tuples, dictionaries with
// string keys) into JSON while it comes byte by byte. JSON values are accepted, too. Strings have
// no prefixes and no triple quotes.
class PythonLiteral {
 public:
  // Appends the JSON that the byte completes. The first byte is no blank.
  ValueStep Byte(char c, std::string* json);
  bool wants_key() const { return at_ == At::kKeyOrEnd; }
  bool in_string() const { return at_ == At::kString || at_ == At::kEscape || at_ == At::kDigits; }

 private:
  enum class At { kValue, kValueOrEnd, kKeyOrEnd, kColon, kNext, kString, kEscape, kDigits, kWord };
  ValueStep Begin(char c, std::string* json);
  ValueStep Close(char c, std::string* json);
  ValueStep End();  // of a value
  ValueStep InString(char c, std::string* json);
  ValueStep InEscape(char c, std::string* json);
  ValueStep InDigits(char c, std::string* json);
  ValueStep EndDigits(std::string* json);
  ValueStep EndWord(char c, std::string* json);

  At at_ = At::kValue;
  std::string open_;  // brackets as in Python
  std::string word_;  // a number or a name
  char quote_ = 0;
  bool is_key_ = false, comma_ = false;
  unsigned code_ = 0, base_ = 16, digits_ = 0, max_digits_ = 0;  // of an escape
};

}  // namespace nibble
