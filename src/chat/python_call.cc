// SPDX-License-Identifier: Apache-2.0
#include "chat/python_call.h"

namespace nibble {
namespace {

constexpr size_t kMaxArgumentNameBytes = 256;

bool IsIdentifierByte(char c) {
  return IsNameCharacter(c) && c != '-' && c != '.';
}

}  // namespace

CallStep PythonCall::Move(At at) {
  at_ = at;
  return CallStep::kMore;
}

CallStep PythonCall::Byte(char c, AnswerEvents& events) {
  if (at_ == At::kInValue) return InValue(c, events);
  if (at_ == At::kName) return InName(c, events);
  if (at_ == At::kArgument) return InArgument(c, events);
  if (IsBlank(c)) return CallStep::kMore;
  switch (at_) {
    case At::kOpen:
      return c == '[' ? Move(At::kName) : CallStep::kBad;
    case At::kEquals:
      return c == '=' ? BeginArgument(events) : CallStep::kBad;
    case At::kValue:
      value_ = PythonLiteral();
      at_ = At::kInValue;
      return InValue(c, events);
    case At::kNext:
      if (c == ')') return EndCall(events);
      argument_.clear();
      return c == ',' ? Move(At::kArgument) : CallStep::kBad;
    default:  // kAfter: between calls
      if (c == ']') return CallStep::kDone;
      name_.clear();
      name_ended_ = false;
      return c == ',' ? Move(At::kName) : CallStep::kBad;
  }
}

CallStep PythonCall::InName(char c, AnswerEvents& events) {
  if (IsBlank(c)) {
    name_ended_ = !name_.empty();
    return CallStep::kMore;
  }
  if (c == '(') {
    arguments_ = 0;
    argument_.clear();
    return events.Knows(name_) ? Move(At::kArgument) : CallStep::kBad;
  }
  if (!IsNameCharacter(c) || name_ended_ || name_.size() == events.longest_name()) {
    return CallStep::kBad;
  }
  name_ += c;
  return CallStep::kMore;
}

CallStep PythonCall::InArgument(char c, AnswerEvents& events) {
  if (argument_.empty()) {
    if (IsBlank(c)) return CallStep::kMore;
    if (c == ')') return EndCall(events);
  } else if (c == '=') {
    return BeginArgument(events);
  } else if (IsBlank(c)) {
    return Move(At::kEquals);
  }
  if (!IsIdentifierByte(c) || argument_.size() == kMaxArgumentNameBytes) return CallStep::kBad;
  argument_ += c;
  return CallStep::kMore;
}

// The call begins with its first argument's name: f("x"), whose argument has no name, is text.
CallStep PythonCall::BeginArgument(AnswerEvents& events) {
  if (arguments_ == 0) events.BeginCall(name_);
  events.Arguments(arguments_++ == 0 ? "{\"" : ", \"");
  events.Arguments(argument_);
  events.Arguments("\": ");
  return Move(At::kValue);
}

CallStep PythonCall::InValue(char c, AnswerEvents& events) {
  json_.clear();
  const ValueStep step = value_.Byte(c, &json_);
  events.Arguments(json_);
  if (step == ValueStep::kBad) return CallStep::kBad;
  if (step == ValueStep::kMore) return CallStep::kMore;
  at_ = At::kNext;
  return step == ValueStep::kAfter ? Byte(c, events) : CallStep::kMore;
}

CallStep PythonCall::EndCall(AnswerEvents& events) {
  if (arguments_ == 0) {
    events.BeginCall(name_);
    events.Arguments("{");
  }
  events.Arguments("}");
  events.EndCall();
  return Move(At::kAfter);
}

CallStep PythonCall::Marker(std::string_view marker, AnswerEvents& events) {
  if (at_ != At::kInValue || !value_.in_string()) return CallStep::kBad;
  for (const char c : marker) {
    if (Byte(c, events) == CallStep::kBad) return CallStep::kBad;
  }
  return CallStep::kMore;
}

}  // namespace nibble
