// SPDX-License-Identifier: Apache-2.0
#include "chat/json_call.h"

#include "base/json.h"

namespace nibble {
namespace {

constexpr size_t kMaxKeyBytes = 64;

bool IsArgumentsKey(std::string_view key) {
  return key == "arguments" || key == "parameters";
}

bool IsCallKey(std::string_view key) {
  return IsArgumentsKey(key) || key == "name" || key == "type" || key == "id";
}

// Arguments that the model wrote as a string are the object that the string has as JSON, if it has
// one.
std::string Unquoted(const std::string& quoted) {
  try {
    const Json text = ParseJson(quoted, "arguments");
    const auto& inner = text.get_ref<const std::string&>();
    if (ParseJson(inner, "arguments").is_object()) return inner;
  } catch (const Error&) {
    return quoted;
  }
  return quoted;
}

}  // namespace

CallStep JsonCall::Move(At at) {
  at_ = at;
  return CallStep::kMore;
}

CallStep JsonCall::Byte(char c, AnswerEvents& events) {
  switch (at_) {
    case At::kKey:
      if (c == '"') return EndKey();
      if (c == '\\' || key_.size() == kMaxKeyBytes) return CallStep::kBad;
      key_ += c;
      return CallStep::kMore;
    case At::kName:
      return InName(c, events);
    case At::kInValue:
      return InValue(c, events);
    default:
      break;
  }
  if (IsBlank(c)) return CallStep::kMore;
  switch (at_) {
    case At::kOpen:
      if (c == '[' && !in_list_) {
        in_list_ = true;
        return CallStep::kMore;
      }
      if (c != '{') return CallStep::kBad;
      named_ = has_arguments_ = false;
      early_arguments_.clear();
      return Move(At::kFirstKey);
    case At::kFirstKey:
    case At::kNextKey:
      key_.clear();
      return c == '"' ? Move(At::kKey) : CallStep::kBad;
    case At::kColon:
      return c == ':' ? Move(At::kValue) : CallStep::kBad;
    case At::kValue:
      return BeginValue(c, events);
    case At::kNext:
      if (c == '}') return EndObject(events);
      return c == ',' ? Move(At::kNextKey) : CallStep::kBad;
    default:  // kAfter: between the objects of a list
      if (c == ']') return CallStep::kDone;
      return c == ',' ? Move(At::kOpen) : CallStep::kBad;
  }
}

CallStep JsonCall::EndKey() {
  if (only_call_keys_ && !IsCallKey(key_)) return CallStep::kBad;
  return Move(At::kColon);
}

CallStep JsonCall::BeginValue(char c, AnswerEvents& events) {
  if (key_ == "name") {
    if (named_ || c != '"') return CallStep::kBad;
    name_.clear();
    return Move(At::kName);
  }
  is_arguments_ = IsArgumentsKey(key_);
  if (is_arguments_ && has_arguments_) return CallStep::kBad;
  // null counts as an absent key: the function has no parameters.
  is_arguments_ = is_arguments_ && c != 'n';
  value_ = JsonEnd();
  quoted_arguments_.clear();
  is_quoted_ = c == '"';
  at_ = At::kInValue;
  const CallStep step = InValue(c, events);
  if (step == CallStep::kMore) has_arguments_ = has_arguments_ || is_arguments_;
  return step;
}

CallStep JsonCall::InName(char c, AnswerEvents& events) {
  if (c != '"') {
    if (name_.size() == events.longest_name()) return CallStep::kBad;
    name_ += c;
    return CallStep::kMore;
  }
  if (!events.Knows(name_)) return CallStep::kBad;
  named_ = true;
  events.BeginCall(name_);
  events.Arguments(early_arguments_);
  return Move(At::kNext);
}

CallStep JsonCall::InValue(char c, AnswerEvents& events) {
  const ValueStep step = value_.Byte(c);
  if (step == ValueStep::kBad) return CallStep::kBad;
  if (step == ValueStep::kAfter) {
    at_ = At::kNext;
    return Byte(c, events);
  }
  const bool last = step == ValueStep::kLast;
  std::string text(is_arguments_ ? 1 : 0, c);
  if (is_arguments_ && is_quoted_) {
    quoted_arguments_ += c;
    text = last ? Unquoted(quoted_arguments_) : "";
  }
  if (named_) {
    events.Arguments(text);
  } else {
    early_arguments_ += text;
  }
  return last ? Move(At::kNext) : CallStep::kMore;
}

CallStep JsonCall::EndObject(AnswerEvents& events) {
  if (!named_) return CallStep::kBad;
  if (!has_arguments_) events.Arguments("{}");
  events.EndCall();
  return in_list_ ? Move(At::kAfter) : CallStep::kDone;
}

CallStep JsonCall::Marker(std::string_view marker, AnswerEvents& events) {
  // Within a string a marker is part of the string, for example in code about chat templates.
  const bool in_string =
      at_ == At::kKey || at_ == At::kName || (at_ == At::kInValue && value_.in_string());
  if (!in_string) return CallStep::kBad;
  for (const char c : marker) {
    if (Byte(c, events) == CallStep::kBad) return CallStep::kBad;
  }
  return CallStep::kMore;
}

}  // namespace nibble
