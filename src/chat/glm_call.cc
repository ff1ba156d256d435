// SPDX-License-Identifier: Apache-2.0
#include "chat/glm_call.h"

#include <utility>

namespace nibble {
namespace {

constexpr std::string_view kKeyBegin = "<arg_key>", kKeyEnd = "</arg_key>",
                           kValueBegin = "<arg_value>", kValueEnd = "</arg_value>",
                           kCallEnd = "</tool_call>";
constexpr size_t kMaxGlmKeyBytes = 256;

}  // namespace

GlmCall::GlmCall(std::shared_ptr<const ParameterTypes> types, const AnswerFormat& format)
    : arguments_(std::move(types), format.has_marker(kValueEnd) ? "" : kValueEnd,
                 /*newlines=*/false) {
  for (const std::string_view tag : {kKeyBegin, kKeyEnd, kValueBegin, kCallEnd}) {
    if (!format.has_marker(tag)) text_tags_.push_back(tag);
  }
}

CallStep GlmCall::Byte(char c, AnswerEvents& events) {
  if (at_ == At::kValue) {
    if (arguments_.ValueByte(c, events)) at_ = At::kBody;
    return CallStep::kMore;
  }
  if (c == '<' || !tag_.empty()) return TagByte(c, events);
  if (at_ == At::kKey) {
    if (key_.size() == kMaxGlmKeyBytes) return CallStep::kBad;
    key_ += c;
    return CallStep::kMore;
  }
  if (IsBlank(c)) {
    if (!name_.empty() && at_ == At::kName) at_ = At::kBody;
    return CallStep::kMore;
  }
  const bool in_name = at_ == At::kName && name_.size() < events.longest_name();
  if (!in_name || !IsNameCharacter(c)) return CallStep::kBad;
  name_ += c;
  return CallStep::kMore;
}

bool GlmCall::MayCome(std::string_view tag) const {
  switch (at_) {
    case At::kKey:
      return tag == kKeyEnd;
    case At::kAfterKey:
      return tag == kValueBegin;
    case At::kValue:
      return tag == kValueEnd;
    default:
      return tag == kKeyBegin || tag == kCallEnd;
  }
}

CallStep GlmCall::TagByte(char c, AnswerEvents& events) {
  tag_ += c;
  for (const std::string_view tag : text_tags_) {
    if (!MayCome(tag) || !tag.starts_with(tag_)) continue;
    return tag == tag_ ? Tag(tag, events) : CallStep::kMore;
  }
  return CallStep::kBad;
}

CallStep GlmCall::Tag(std::string_view tag, AnswerEvents& events) {
  tag_.clear();
  if (!events.call_open()) {
    if (!events.Knows(name_)) return CallStep::kBad;
    arguments_.BeginCall(name_, events);
  }
  if (tag == kCallEnd) {
    arguments_.EndCall(events);
    return CallStep::kDone;
  }
  if (tag == kKeyBegin) {
    key_.clear();
    at_ = At::kKey;
  } else if (tag == kKeyEnd) {
    at_ = At::kAfterKey;
  } else if (tag == kValueBegin) {
    arguments_.BeginValue(key_, events);
    at_ = At::kValue;
  } else {
    arguments_.EndValue(events);
    at_ = At::kBody;
  }
  return CallStep::kMore;
}

CallStep GlmCall::Marker(std::string_view marker, AnswerEvents& events) {
  if (tag_.empty() && MayCome(marker)) return Tag(marker, events);
  if (at_ != At::kValue) return CallStep::kBad;
  for (const char c : marker) Byte(c, events);  // the marker is part of the value
  return CallStep::kMore;
}

}  // namespace nibble
