// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "chat/answer_events.h"
#include "chat/answer_format.h"
#include "chat/gemma_call.h"
#include "chat/glm_call.h"
#include "chat/json_call.h"
#include "chat/literal_matcher.h"
#include "chat/mistral_call.h"
#include "chat/python_call.h"
#include "chat/text_arguments.h"
#include "chat/xml_call.h"

namespace nibble {

// Reads answers of every format but harmony: one text, in which reasoning and calls stand between
// signs. Blanks around reasoning and calls are no text.
class PlainAnswer {
 public:
  PlainAnswer(const AnswerFormat& format, bool has_functions,
              std::shared_ptr<const ParameterTypes> types);

  void Byte(char c, AnswerEvents& events);
  void Marker(std::string_view marker, AnswerEvents& events);
  void Finish(AnswerEvents& events);

 private:
  enum class Mode { kText, kReasoning, kCall };
  // The part of the answer behind which the last blanks stand; kNone: text.
  enum class Behind { kStart, kReasoning, kCall, kNone };
  enum class Sign { kReasoningBegin, kReasoningEnd, kCallBegin, kFunctionTag, kCallEnd };
  using Signs = std::vector<std::pair<std::string, Sign>>;

  static Signs SignsOf(const AnswerFormat& format);
  static LiteralMatcher MatcherOf(const Signs& signs, const std::vector<std::string>& markers);
  void MatchedByte(char c, AnswerEvents& events);
  void Release(AnswerEvents& events);
  void Plain(char c, AnswerEvents& events);
  void Found(const std::string& literal, Sign sign, AnswerEvents& events);
  void Text(std::string_view text, AnswerEvents& events);
  void Reasoning(char c, AnswerEvents& events);
  void OpenCall(std::string opening, bool after_function_tag);
  void CallByte(char c, AnswerEvents& events);
  template <typename Step>
  bool StepCall(std::string_view bytes, AnswerEvents& events, const Step& step);

  AnswerFormat format_;  // kNone where no functions are offered
  char bare_begin_ = 0;  // first byte of calls that no sign opens; 0: there are none
  std::shared_ptr<const ParameterTypes> types_;
  Signs signs_;
  LiteralMatcher matcher_;
  Mode mode_ = Mode::kText;
  Behind behind_ = Behind::kNone;
  bool reasoned_ = false;
  std::string blanks_;
  std::string held_;  // bytes since the opening of calls, or the last call, that no event tells
  std::variant<JsonCall, XmlCall, GlmCall, GemmaCall, PythonCall, MistralCall> call_;
};

}  // namespace nibble
