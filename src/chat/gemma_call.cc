// SPDX-License-Identifier: Apache-2.0
#include "chat/gemma_call.h"

#include <utility>

#include "chat/json_text.h"

namespace nibble {
namespace {

constexpr std::string_view kPrefix = "call:", kQuote = "<|\"|>";
constexpr size_t kMaxGemmaKeyBytes = 256;

// Bytes that a key without quotes may have.
bool IsKeyByte(char c) {
  return std::string_view("{}[],<>\"\n").find(c) == std::string_view::npos;
}

}  // namespace

GemmaCall::GemmaCall(const AnswerFormat& format)
    : quote_(format.has_marker(kQuote) ? "" : kQuote) {}

CallStep GemmaCall::Byte(char c, AnswerEvents& events) {
  if (at_ == At::kPrefix) return InPrefix(c);
  if (at_ == At::kName) return InName(c, events);
  if (at_ == At::kKey) return InKey(c, events);
  if (quote_bytes_ > 0) return QuoteByte(c, events);
  const bool quotes = c == '<' && !quote_.empty();
  if (at_ == At::kText) return quotes ? QuoteByte(c, events) : TextByte(c, events);
  // Some models write JSON's strings in place of Gemma's.
  if (arguments_.in_string()) return Give({&c, 1}, events);
  if (quotes) return QuoteByte(c, events);
  if (!arguments_.wants_key() || IsBlank(c) || !IsKeyByte(c)) return Give({&c, 1}, events);
  at_ = At::kKey;
  key_bytes_ = 0;
  const CallStep step = Give("\"", events);
  return step == CallStep::kMore ? InKey(c, events) : step;
}

CallStep GemmaCall::InPrefix(char c) {
  if (prefix_bytes_ == 0 && IsBlank(c)) return CallStep::kMore;
  if (c != kPrefix[prefix_bytes_]) return CallStep::kBad;
  if (++prefix_bytes_ == kPrefix.size()) at_ = At::kName;
  return CallStep::kMore;
}

CallStep GemmaCall::InName(char c, AnswerEvents& events) {
  if (c == '{' && events.Knows(name_)) {
    events.BeginCall(name_);
    at_ = At::kArguments;
    return Give("{", events);
  }
  if (!IsNameCharacter(c) || name_.size() == events.longest_name()) return CallStep::kBad;
  name_ += c;
  return CallStep::kMore;
}

CallStep GemmaCall::InKey(char c, AnswerEvents& events) {
  if (c == ':') {
    at_ = At::kArguments;
    return Give("\":", events);
  }
  if (!IsKeyByte(c) || ++key_bytes_ > kMaxGemmaKeyBytes) return CallStep::kBad;
  return TextByte(c, events);
}

CallStep GemmaCall::QuoteByte(char c, AnswerEvents& events) {
  if (c == quote_[quote_bytes_]) {
    return ++quote_bytes_ == quote_.size() ? Quote(events) : CallStep::kMore;
  }
  if (at_ != At::kText) return CallStep::kBad;
  // '<' is only the first byte of the quote, so no other quote begins within the bytes that have
  // come.
  const size_t bytes = std::exchange(quote_bytes_, 0);
  for (size_t i = 0; i < bytes; ++i) TextByte(quote_[i], events);
  return Byte(c, events);
}

CallStep GemmaCall::Quote(AnswerEvents& events) {
  quote_bytes_ = 0;
  at_ = at_ == At::kText ? At::kArguments : At::kText;
  return Give("\"", events);
}

CallStep GemmaCall::TextByte(char c, AnswerEvents& events) {
  std::string escaped;
  AppendJsonText({&c, 1}, &escaped);
  return Give(escaped, events);
}

CallStep GemmaCall::Give(std::string_view json, AnswerEvents& events) {
  for (const char c : json) {
    json_.clear();
    const ValueStep step = arguments_.Byte(c, &json_);
    events.Arguments(json_);
    if (step == ValueStep::kMore) continue;
    if (step != ValueStep::kLast) return CallStep::kBad;
    events.EndCall();
    return CallStep::kDone;
  }
  return CallStep::kMore;
}

CallStep GemmaCall::Marker(std::string_view marker, AnswerEvents& events) {
  const bool in_text = at_ == At::kText;
  if (marker == kQuote && (in_text || (at_ == At::kArguments && !arguments_.in_string()))) {
    return Quote(events);
  }
  if (!in_text) return CallStep::kBad;
  for (const char c : marker) Byte(c, events);  // the marker is part of the text
  return CallStep::kMore;
}

}  // namespace nibble
