// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace nibble {

enum class ValueStep {
  kMore,
  kLast,   // the value ends with this byte
  kAfter,  // the value ended before this byte, which was not taken
  kBad,    // this is no value; the byte was not taken
};

// Finds the end of a JSON value that comes byte by byte: pairs brackets outside strings. The text
// between brackets is not checked, since arguments reach a client as the model wrote them.
class JsonEnd {
 public:
  ValueStep Byte(char c);  // the first one is no blank
  bool in_string() const { return in_string_; }

 private:
  ValueStep First(char c);

  std::string open_;  // brackets
  bool begun_ = false, in_string_ = false, escaped_ = false;
};

// Appends text as the inside of a JSON string.
void AppendJsonText(std::string_view text, std::string* json);

// \uXXXX, a pair of surrogates above 0xFFFF.
void AppendJsonEscape(unsigned code_point, std::string* json);

}  // namespace nibble
