// SPDX-License-Identifier: Apache-2.0
#include "chat/answer_parser.h"

#include <utility>
#include <variant>

#include "chat/harmony_answer.h"
#include "chat/plain_answer.h"

namespace nibble {

struct AnswerParser::State {
  AnswerEvents events;
  std::variant<PlainAnswer, HarmonyAnswer> answer;
};

AnswerParser::AnswerParser(const AnswerFormat& format,
                           const std::vector<std::string>& function_names, bool parallel_calls,
                           const Json& tools) {
  AnswerEvents events(function_names, parallel_calls);
  if (format.calls == CallFormat::kHarmony) {
    state_ = std::make_unique<State>(State{std::move(events), HarmonyAnswer(format)});
  } else {
    PlainAnswer answer(format, events.has_functions(),
                       std::make_shared<const ParameterTypes>(tools));
    state_ = std::make_unique<State>(State{std::move(events), std::move(answer)});
  }
}

AnswerParser::AnswerParser(AnswerParser&&) noexcept = default;
AnswerParser& AnswerParser::operator=(AnswerParser&&) noexcept = default;
AnswerParser::~AnswerParser() = default;

std::vector<AnswerEvent> AnswerParser::Push(std::string_view text) {
  AnswerEvents& events = state_->events;
  std::visit(
      [&](auto& answer) {
        for (const char c : text) {
          if (events.ended()) break;
          answer.Byte(c, events);
        }
      },
      state_->answer);
  return events.Take();
}

std::vector<AnswerEvent> AnswerParser::Marker(std::string_view marker) {
  AnswerEvents& events = state_->events;
  if (!events.ended()) {
    std::visit([&](auto& answer) { answer.Marker(marker, events); }, state_->answer);
  }
  return events.Take();
}

std::vector<AnswerEvent> AnswerParser::Finish() {
  AnswerEvents& events = state_->events;
  if (!events.ended()) {
    std::visit([&](auto& answer) { answer.Finish(events); }, state_->answer);
  }
  return events.Take();
}

bool AnswerParser::ended() const {
  return state_->events.ended();
}

}  // namespace nibble
