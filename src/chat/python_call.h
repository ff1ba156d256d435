// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "chat/answer_events.h"
#include "chat/python_literal.h"

namespace nibble {

// [f(a=1, b="x"), g()]: calls with named arguments in a Python list.
class PythonCall {
 public:
  CallStep Byte(char c, AnswerEvents& events);
  CallStep Marker(std::string_view marker, AnswerEvents& events);

 private:
  enum class At { kOpen, kName, kArgument, kEquals, kValue, kInValue, kNext, kAfter };
  CallStep Move(At at);
  CallStep InName(char c, AnswerEvents& events);
  CallStep InArgument(char c, AnswerEvents& events);
  CallStep BeginArgument(AnswerEvents& events);
  CallStep InValue(char c, AnswerEvents& events);
  CallStep EndCall(AnswerEvents& events);

  At at_ = At::kOpen;
  std::string name_, argument_;
  bool name_ended_ = false;
  int arguments_ = 0;  // of this call
  PythonLiteral value_;
  std::string json_;  // JSON that one byte of a value becomes
};

}  // namespace nibble
