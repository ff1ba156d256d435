// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "chat/answer_events.h"
#include "chat/answer_format.h"
#include "chat/literal_matcher.h"

namespace nibble {

// gpt-oss answers: messages "<|start|>role<|channel|>channel<|message|>body<|end|>", of which the
// prompt begins the first one with its role. Channel analysis is reasoning, a recipient
// "to=functions.f", in the role or the channel, makes a call, all else is text.
class HarmonyAnswer {
 public:
  explicit HarmonyAnswer(const AnswerFormat& format);

  void Byte(char c, AnswerEvents& events);
  void Marker(std::string_view marker, AnswerEvents& events);
  void Finish(AnswerEvents& events);

 private:
  enum class At { kHeader, kText, kReasoning, kCall, kBetween };
  void Plain(char c, AnswerEvents& events);
  void Sign(std::string_view sign, AnswerEvents& events);
  void HeaderByte(char c, AnswerEvents& events);
  void HeaderToText(AnswerEvents& events);
  void BeginBody(AnswerEvents& events);
  void EndMessage(AnswerEvents& events);

  LiteralMatcher matcher_;
  At at_ = At::kHeader;
  std::string raw_;             // the header as it came
  std::string role_, channel_;  // its parts
  bool in_channel_ = false, started_ = false, has_arguments_ = false;
  std::string blanks_;  // between messages
};

}  // namespace nibble
