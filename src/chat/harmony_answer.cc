// SPDX-License-Identifier: Apache-2.0
#include "chat/harmony_answer.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace nibble {
namespace {

constexpr size_t kMaxHeaderBytes = 1024, kMaxBlankBytes = 1 << 20;
constexpr std::array<std::string_view, 7> kSigns = {"<|start|>",     "<|channel|>", "<|message|>",
                                                    "<|constrain|>", "<|end|>",     "<|call|>",
                                                    "<|return|>"};

LiteralMatcher SignMatcher(const std::vector<std::string>& markers) {
  std::vector<std::string> literals;
  for (const std::string_view sign : kSigns) {
    const bool is_marker = std::ranges::find(markers, sign) != markers.end();
    literals.emplace_back(is_marker ? "" : sign);  // "" is never found
  }
  return LiteralMatcher(literals);
}

// The word behind "to=", without "functions.".
std::string_view Recipient(std::string_view part) {
  const size_t at = part.find("to=");
  if (at == std::string_view::npos || (at > 0 && !IsBlank(part[at - 1]))) return "";
  part.remove_prefix(at + 3);
  part = part.substr(0, std::ranges::find_if(part, IsBlank) - part.begin());
  constexpr std::string_view kFunctions = "functions.";
  if (part.starts_with(kFunctions)) part.remove_prefix(kFunctions.size());
  return part;
}

std::string_view FirstWord(std::string_view part) {
  while (!part.empty() && IsBlank(part.front())) part.remove_prefix(1);
  return part.substr(0, std::ranges::find_if(part, IsBlank) - part.begin());
}

}  // namespace

HarmonyAnswer::HarmonyAnswer(const AnswerFormat& format)
    : matcher_(SignMatcher(format.markers)),
      at_(format.begins_in_reasoning ? At::kReasoning : At::kHeader) {}

void HarmonyAnswer::Byte(char c, AnswerEvents& events) {
  const LiteralMatcher::Found found = matcher_.Push(c);
  for (const char plain : found.plain) Plain(plain, events);
  if (found.literal >= 0) Sign(kSigns[static_cast<size_t>(found.literal)], events);
}

void HarmonyAnswer::Marker(std::string_view marker, AnswerEvents& events) {
  for (const char plain : matcher_.Flush()) Plain(plain, events);
  if (std::ranges::find(kSigns, marker) != kSigns.end()) {
    Sign(marker, events);
  } else {
    for (const char c : marker) Plain(c, events);
  }
}

void HarmonyAnswer::Plain(char c, AnswerEvents& events) {
  switch (at_) {
    case At::kText:
      return events.Text({&c, 1});
    case At::kReasoning:
      return events.Reasoning({&c, 1});
    case At::kCall:
      has_arguments_ = has_arguments_ || !IsBlank(c);
      return events.Arguments({&c, 1});
    case At::kHeader:
      return HeaderByte(c, events);
    case At::kBetween:
      if (IsBlank(c) && blanks_.size() < kMaxBlankBytes) {
        blanks_ += c;
        return;
      }
      events.Text(std::exchange(blanks_, ""));
      events.Text({&c, 1});
      at_ = At::kText;
  }
}

void HarmonyAnswer::HeaderByte(char c, AnswerEvents& events) {
  raw_ += c;
  (in_channel_ ? channel_ : role_) += c;
  // Without <|start|> the prompt had the role: only a recipient can follow.
  constexpr std::string_view kTo = "to=";
  const std::string_view word = FirstWord(role_);
  const bool fits = started_ || kTo.starts_with(word) || word.starts_with(kTo);
  if (!fits || raw_.size() > kMaxHeaderBytes) HeaderToText(events);
}

// Turns a header that is malformed, or that calls a function nobody offers, into text.
void HarmonyAnswer::HeaderToText(AnswerEvents& events) {
  events.Text(raw_);
  at_ = At::kText;
}

void HarmonyAnswer::Sign(std::string_view sign, AnswerEvents& events) {
  const bool begins_header = sign == "<|start|>" || sign == "<|channel|>";
  if (at_ == At::kHeader) {
    raw_ += sign;
    if (sign == "<|channel|>" && !in_channel_) {
      in_channel_ = true;
    } else if (sign == "<|constrain|>") {
      (in_channel_ ? channel_ : role_) += ' ';  // ends the recipient's word
    } else if (sign == "<|message|>") {
      BeginBody(events);
    } else {
      HeaderToText(events);
    }
  } else if (begins_header) {  // models leave out the end of a message at times
    if (at_ != At::kBetween) EndMessage(events);
    raw_ = sign;
    role_.clear();
    channel_.clear();
    blanks_.clear();
    started_ = sign == "<|start|>";
    in_channel_ = !started_;
    at_ = At::kHeader;
  } else if (sign == "<|end|>" || sign == "<|call|>" || sign == "<|return|>") {
    if (at_ != At::kBetween) EndMessage(events);
  } else {
    for (const char c : sign) Plain(c, events);
  }
}

void HarmonyAnswer::BeginBody(AnswerEvents& events) {
  std::string_view recipient = Recipient(channel_);
  if (recipient.empty()) recipient = Recipient(role_);
  if (events.Knows(recipient)) {
    events.BeginCall(recipient);
    has_arguments_ = false;
    at_ = At::kCall;
  } else if (!recipient.empty()) {
    HeaderToText(events);
  } else {
    at_ = FirstWord(channel_) == "analysis" ? At::kReasoning : At::kText;
  }
}

void HarmonyAnswer::EndMessage(AnswerEvents& events) {
  if (at_ == At::kCall) {
    if (!has_arguments_) events.Arguments("{}");
    events.EndCall();
  }
  at_ = At::kBetween;
}

void HarmonyAnswer::Finish(AnswerEvents& events) {
  for (const char plain : matcher_.Flush()) Plain(plain, events);
  // A header that was cut is dropped, unless neither <|start|> nor <|channel|> shows that it is
  // one.
  if (at_ == At::kHeader && !started_ && !in_channel_) events.Text(raw_);
  if (at_ == At::kCall) events.EndCall();
}

}  // namespace nibble
