// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "chat/answer_events.h"
#include "chat/answer_format.h"
#include "chat/text_arguments.h"

namespace nibble {

// Reads a call of GLM 4.5 behind <tool_call>: NAME,
// <arg_key>KEY</arg_key><arg_value>value</arg_value> for each argument, </tool_call>, with new
// lines between these or not. A call begins with the first tag, since a name without one may be
// text.
class GlmCall {
 public:
  GlmCall(std::shared_ptr<const ParameterTypes> types, const AnswerFormat& format);

  CallStep Byte(char c, AnswerEvents& events);
  CallStep Marker(std::string_view marker, AnswerEvents& events);

 private:
  enum class At { kName, kBody, kKey, kAfterKey, kValue };
  bool MayCome(std::string_view tag) const;
  CallStep TagByte(char c, AnswerEvents& events);
  CallStep Tag(std::string_view tag, AnswerEvents& events);

  std::vector<std::string_view> text_tags_;  // tags that are not tokens
  At at_ = At::kName;
  std::string name_, key_, tag_;
  TextArguments arguments_;
};

}  // namespace nibble
