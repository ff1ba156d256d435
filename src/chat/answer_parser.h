// SPDX-License-Identifier: Apache-2.0
// Splits a chat model's answer into reasoning, text and tool calls while it comes. However the
// answer is cut into pieces, the events say the same. Each byte is looked at a bounded number of
// times; after 1 MiB, bytes that were held back become text. No answer is an error.
//
//   * A call begins once its function's name is known to be one offered. What only looks like
//     one stays text.
//   * Arguments are JSON, as the model wrote it or translated. If the answer ends or goes wrong
//     within a call, the arguments end there; the rest is text.
//   * Blanks around reasoning and calls are no text.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "chat/answer_events.h"
#include "chat/answer_format.h"

namespace nibble {

class AnswerParser {
 public:
  // Without functions calls are text, and only reasoning (harmony: channels) is told apart. Without
  // parallel_calls nothing after the first call counts. `tools`, as TemplateTools returns them, has
  // the types of parameters for formats that write values without quotes (kXml, kGlm).
  AnswerParser(const AnswerFormat& format, const std::vector<std::string>& function_names,
               bool parallel_calls = true, const Json& tools = Json());
  AnswerParser(AnswerParser&&) noexcept;
  AnswerParser& operator=(AnswerParser&&) noexcept;
  ~AnswerParser();

  std::vector<AnswerEvent> Push(std::string_view text);      // cut between characters
  std::vector<AnswerEvent> Marker(std::string_view marker);  // a token, one of format.markers
  std::vector<AnswerEvent> Finish();                         // the answer's end: what was held back
  bool ended() const;  // the only call that is allowed is complete: nothing after it counts

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nibble
