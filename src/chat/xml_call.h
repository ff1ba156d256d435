// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "chat/answer_events.h"
#include "chat/text_arguments.h"

namespace nibble {

// <function=NAME><parameter=KEY>\nvalue\n</parameter></function>.
class XmlCall {
 public:
  XmlCall(std::shared_ptr<const ParameterTypes> types, bool after_function_tag)
      : at_(after_function_tag ? At::kName : At::kOpen),
        arguments_(std::move(types), "</parameter>", /*newlines=*/true) {}

  CallStep Byte(char c, AnswerEvents& events);
  CallStep Marker(std::string_view marker, AnswerEvents& events);

 private:
  enum class At { kOpen, kName, kBody, kTag, kValue };
  CallStep InName(char c, AnswerEvents& events);
  CallStep InTag(char c, AnswerEvents& events);
  void ValueByte(char c, AnswerEvents& events);

  At at_;
  std::string name_, tag_;
  TextArguments arguments_;
};

}  // namespace nibble
