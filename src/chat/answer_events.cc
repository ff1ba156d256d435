// SPDX-License-Identifier: Apache-2.0
#include "chat/answer_events.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace nibble {

AnswerEvents::AnswerEvents(const std::vector<std::string>& functions, bool parallel_calls)
    : functions_(functions.begin(), functions.end()), parallel_calls_(parallel_calls) {
  for (const std::string& name : functions_) longest_name_ = std::max(longest_name_, name.size());
}

void AnswerEvents::Piece(AnswerEvent::Kind kind, std::string_view piece) {
  if (piece.empty()) return;
  if (events_.empty() || events_.back().kind != kind) events_.push_back({kind, ""});
  events_.back().text += piece;
}

void AnswerEvents::BeginCall(std::string_view function) {
  NIBBLE_CHECK(!call_open_ && Knows(function), "{}", function);
  events_.push_back({AnswerEvent::Kind::kCallBegin, std::string(function)});
  call_open_ = true;
  ++calls_;
}

void AnswerEvents::EndCall() {
  NIBBLE_CHECK(call_open_);
  events_.push_back({AnswerEvent::Kind::kCallEnd, ""});
  call_open_ = false;
}

std::vector<AnswerEvent> AnswerEvents::Take() {
  return std::exchange(events_, {});
}

}  // namespace nibble
