// SPDX-License-Identifier: Apache-2.0
#include "chat/xml_call.h"

namespace nibble {
namespace {

constexpr std::string_view kFunctionTag = "<function=", kFunctionEnd = "</function>",
                           kParameterTag = "<parameter=";
constexpr size_t kMaxTagBytes = 300;

}  // namespace

CallStep XmlCall::Byte(char c, AnswerEvents& events) {
  switch (at_) {
    case At::kOpen:
      if (tag_.empty() && IsBlank(c)) return CallStep::kMore;
      if (kFunctionTag[tag_.size()] != c) return CallStep::kBad;
      tag_ += c;
      if (tag_ == kFunctionTag) at_ = At::kName;
      return CallStep::kMore;
    case At::kName:
      return InName(c, events);
    case At::kBody:
      if (IsBlank(c)) return CallStep::kMore;
      if (c != '<') return CallStep::kBad;
      tag_ = c;
      at_ = At::kTag;
      return CallStep::kMore;
    case At::kTag:
      return InTag(c, events);
    default:
      ValueByte(c, events);
      return CallStep::kMore;
  }
}

CallStep XmlCall::InName(char c, AnswerEvents& events) {
  if (c != '>') {
    if (name_.size() == events.longest_name()) return CallStep::kBad;
    name_ += c;
    return CallStep::kMore;
  }
  if (!events.Knows(name_)) return CallStep::kBad;
  arguments_.BeginCall(name_, events);
  at_ = At::kBody;
  return CallStep::kMore;
}

CallStep XmlCall::InTag(char c, AnswerEvents& events) {
  if (tag_.size() == kMaxTagBytes) return CallStep::kBad;
  tag_ += c;
  if (tag_ == kFunctionEnd) {
    arguments_.EndCall(events);
    return CallStep::kDone;
  }
  if (tag_.size() > kParameterTag.size()) {
    if (c == '>') {
      const size_t key_bytes = tag_.size() - kParameterTag.size() - 1;
      arguments_.BeginValue(tag_.substr(kParameterTag.size(), key_bytes), events);
      at_ = At::kValue;
    }
    return CallStep::kMore;
  }
  const bool fits = kParameterTag.starts_with(tag_) || kFunctionEnd.starts_with(tag_);
  return fits ? CallStep::kMore : CallStep::kBad;
}

void XmlCall::ValueByte(char c, AnswerEvents& events) {
  if (arguments_.ValueByte(c, events)) at_ = At::kBody;
}

CallStep XmlCall::Marker(std::string_view marker, AnswerEvents& events) {
  if (at_ != At::kValue) return CallStep::kBad;
  for (const char c : marker) ValueByte(c, events);
  return CallStep::kMore;
}

}  // namespace nibble
