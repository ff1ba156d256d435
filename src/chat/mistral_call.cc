// SPDX-License-Identifier: Apache-2.0
#include "chat/mistral_call.h"

namespace nibble {
namespace {

constexpr std::string_view kArgs = "[ARGS]", kCallId = "[CALL_ID]";
constexpr size_t kMaxIdBytes = 64;

}  // namespace

CallStep MistralCall::Byte(char c, AnswerEvents& events) {
  switch (at_) {
    case At::kOpen:
      if (IsBlank(c)) return CallStep::kMore;
      at_ = c == '[' || c == '{' ? At::kList : At::kName;
      return Byte(c, events);
    case At::kList:
      return list_.Byte(c, events);
    case At::kName:
      return InName(c, events);
    case At::kBracket:
      return InBracket(c, events);
    case At::kId:
      if (c == '[') {
        bracket_ = c;
        at_ = At::kBracket;
        return CallStep::kMore;
      }
      return IsNameCharacter(c) && ++id_bytes_ <= kMaxIdBytes ? CallStep::kMore : CallStep::kBad;
    case At::kValue:
      if (IsBlank(c)) return CallStep::kMore;
      if (c != '{') return CallStep::kBad;
      at_ = At::kInValue;
      return InValue(c, events);
    default:
      return InValue(c, events);
  }
}

CallStep MistralCall::InName(char c, AnswerEvents& events) {
  if (c == '{' && events.Knows(name_)) {
    events.BeginCall(name_);
    at_ = At::kInValue;
    return InValue(c, events);
  }
  if (c == '[') {
    bracket_ = c;
    at_ = At::kBracket;
    return CallStep::kMore;
  }
  if (!IsNameCharacter(c) || name_.size() == events.longest_name()) return CallStep::kBad;
  name_ += c;
  return CallStep::kMore;
}

CallStep MistralCall::InBracket(char c, AnswerEvents& events) {
  bracket_ += c;
  if (bracket_ == kArgs || bracket_ == kCallId) return Bracket(bracket_, events);
  if (kArgs.starts_with(bracket_) || kCallId.starts_with(bracket_)) return CallStep::kMore;
  return CallStep::kBad;
}

// Takes a whole [ARGS] or [CALL_ID].
CallStep MistralCall::Bracket(std::string_view bracket, AnswerEvents& events) {
  if (!events.call_open()) {
    if (!events.Knows(name_)) return CallStep::kBad;
    events.BeginCall(name_);
  } else if (bracket == kCallId) {
    return CallStep::kBad;  // a second [CALL_ID]
  }
  at_ = bracket == kArgs ? At::kValue : At::kId;
  return CallStep::kMore;
}

CallStep MistralCall::InValue(char c, AnswerEvents& events) {
  const ValueStep step = value_.Byte(c);
  if (step == ValueStep::kBad) return CallStep::kBad;
  events.Arguments({&c, 1});
  if (step == ValueStep::kMore) return CallStep::kMore;
  events.EndCall();
  return CallStep::kDone;
}

CallStep MistralCall::Marker(std::string_view marker, AnswerEvents& events) {
  if (at_ == At::kList) return list_.Marker(marker, events);
  if ((at_ == At::kName || at_ == At::kId) && (marker == kArgs || marker == kCallId)) {
    return Bracket(marker, events);
  }
  if (at_ != At::kInValue || !value_.in_string()) return CallStep::kBad;
  for (const char c : marker) {
    if (InValue(c, events) == CallStep::kBad) return CallStep::kBad;
  }
  return CallStep::kMore;
}

}  // namespace nibble
