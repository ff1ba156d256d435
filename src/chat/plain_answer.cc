// SPDX-License-Identifier: Apache-2.0
#include "chat/plain_answer.h"

#include <algorithm>

namespace nibble {
namespace {

constexpr size_t kMaxHeldBytes = 1 << 20;

AnswerFormat OfferedFormat(AnswerFormat format, bool has_functions) {
  if (!has_functions) format.calls = CallFormat::kNone;
  return format;
}

}  // namespace

PlainAnswer::PlainAnswer(const AnswerFormat& format, bool has_functions,
                         std::shared_ptr<const ParameterTypes> types)
    : format_(OfferedFormat(format, has_functions)),
      types_(std::move(types)),
      signs_(SignsOf(format_)),
      matcher_(MatcherOf(signs_, format.markers)),
      call_(JsonCall(false)) {
  if (format_.calls == CallFormat::kLlamaJson) bare_begin_ = '{';
  if (format_.calls == CallFormat::kLlamaPython) bare_begin_ = '[';
  if (!signs_.empty()) behind_ = Behind::kStart;
  if (format.begins_in_reasoning && !format.reasoning_end.empty()) mode_ = Mode::kReasoning;
}

PlainAnswer::Signs PlainAnswer::SignsOf(const AnswerFormat& format) {
  Signs signs;
  if (!format.reasoning_end.empty()) {
    if (!format.reasoning_begin.empty()) {
      signs.emplace_back(format.reasoning_begin, Sign::kReasoningBegin);
    }
    signs.emplace_back(format.reasoning_end, Sign::kReasoningEnd);
  }
  switch (format.calls) {
    case CallFormat::kXml:
      // Models leave out the tag around it at times.
      signs.emplace_back("<function=", Sign::kFunctionTag);
      [[fallthrough]];
    case CallFormat::kHermes:
    case CallFormat::kGlm:
      signs.emplace_back("<tool_call>", Sign::kCallBegin);
      signs.emplace_back("</tool_call>", Sign::kCallEnd);
      break;
    case CallFormat::kGranite:
      // Phi-4-mini and Granite 3.1 write the two other signs at times.
      for (const char* begin : {"<|tool_call|>", "functools", "<tool_call>"}) {
        signs.emplace_back(begin, Sign::kCallBegin);
      }
      signs.emplace_back("<|/tool_call|>", Sign::kCallEnd);
      signs.emplace_back("</tool_call>", Sign::kCallEnd);
      break;
    case CallFormat::kGemma:
      signs.emplace_back("<|tool_call>", Sign::kCallBegin);
      signs.emplace_back("<tool_call|>", Sign::kCallEnd);
      break;
    case CallFormat::kLlamaJson:
    case CallFormat::kLlamaPython:
      signs.emplace_back("<|python_tag|>", Sign::kCallBegin);
      signs.emplace_back("<|python_start|>", Sign::kCallBegin);
      signs.emplace_back("<|python_end|>", Sign::kCallEnd);
      break;
    case CallFormat::kMistral:
      signs.emplace_back("[TOOL_CALLS]", Sign::kCallBegin);
      break;
    default:
      break;
  }
  return signs;
}

LiteralMatcher PlainAnswer::MatcherOf(const Signs& signs, const std::vector<std::string>& markers) {
  std::vector<std::string> literals;
  for (const auto& [literal, sign] : signs) {
    const bool is_marker = std::ranges::find(markers, literal) != markers.end();
    literals.push_back(is_marker ? "" : literal);  // "" is never found
  }
  return LiteralMatcher(literals);
}

void PlainAnswer::Byte(char c, AnswerEvents& events) {
  if (mode_ == Mode::kCall) {
    CallByte(c, events);
  } else {
    MatchedByte(c, events);
  }
}

void PlainAnswer::MatchedByte(char c, AnswerEvents& events) {
  const LiteralMatcher::Found found = matcher_.Push(c);
  const std::string plain(found.plain);
  for (size_t i = 0; i < plain.size(); ++i) {
    Plain(plain[i], events);
    if (mode_ != Mode::kCall) continue;
    // A call without a sign in front has begun: the bytes that the matcher holds back belong to it.
    const std::string rest =
        plain.substr(i + 1) +
        (found.literal < 0 ? matcher_.Flush() : signs_[static_cast<size_t>(found.literal)].first);
    for (const char later : rest) Byte(later, events);
    return;
  }
  if (found.literal < 0) return;
  const auto& [literal, sign] = signs_[static_cast<size_t>(found.literal)];
  Found(literal, sign, events);
}

// The bytes that the matcher holds back are no sign: they become plain.
void PlainAnswer::Release(AnswerEvents& events) {
  for (std::string held = matcher_.Flush(); !held.empty(); held = matcher_.Flush()) {
    for (const char c : held) Plain(c, events);
  }
}

void PlainAnswer::Marker(std::string_view marker, AnswerEvents& events) {
  if (mode_ == Mode::kCall) {
    const bool taken =
        StepCall(marker, events, [&](auto& call) { return call.Marker(marker, events); });
    if (taken) return;
  }
  Release(events);
  if (mode_ == Mode::kCall) return Marker(marker, events);  // the released bytes have opened it
  for (const auto& [literal, sign] : signs_) {
    if (literal == marker) return Found(literal, sign, events);
  }
  if (mode_ == Mode::kReasoning) {
    for (const char c : marker) Reasoning(c, events);
  } else {
    Text(marker, events);
  }
}

// Takes a byte that belongs to no sign.
void PlainAnswer::Plain(char c, AnswerEvents& events) {
  if (mode_ == Mode::kCall) {
    CallByte(c, events);
  } else if (mode_ == Mode::kReasoning) {
    Reasoning(c, events);
  } else if (behind_ == Behind::kNone) {
    events.Text({&c, 1});
  } else if (bare_begin_ != 0 && c == bare_begin_) {
    OpenCall("", false);
    CallByte(c, events);
  } else if ((IsBlank(c) || (c == ';' && bare_begin_ != 0 && behind_ == Behind::kCall)) &&
             blanks_.size() < kMaxHeldBytes) {
    blanks_ += c;  // Llama separates calls by semicolons
  } else {
    Text({&c, 1}, events);
  }
}

void PlainAnswer::Found(const std::string& literal, Sign sign, AnswerEvents& events) {
  if (mode_ == Mode::kReasoning) {
    if (sign == Sign::kReasoningEnd) {
      mode_ = Mode::kText;
      behind_ = Behind::kReasoning;
      blanks_.clear();
    } else if (sign != Sign::kReasoningBegin || reasoned_) {  // some repeat the prompt's sign
      for (const char c : literal) Reasoning(c, events);
    }
  } else if (sign == Sign::kCallBegin || sign == Sign::kFunctionTag) {
    OpenCall(literal, sign == Sign::kFunctionTag);
  } else if (sign == Sign::kReasoningBegin && behind_ == Behind::kStart) {
    mode_ = Mode::kReasoning;
    blanks_.clear();
  } else if (sign == Sign::kCallEnd && behind_ == Behind::kCall) {
    blanks_.clear();
  } else {
    Text(literal, events);
  }
}

void PlainAnswer::Text(std::string_view text, AnswerEvents& events) {
  if (text.empty()) return;
  if (behind_ != Behind::kReasoning) events.Text(blanks_);
  blanks_.clear();
  behind_ = Behind::kNone;
  events.Text(text);
}

void PlainAnswer::Reasoning(char c, AnswerEvents& events) {
  if (IsBlank(c) && blanks_.size() < kMaxHeldBytes) {
    blanks_ += c;
    return;
  }
  if (reasoned_) events.Reasoning(blanks_);
  blanks_.clear();
  reasoned_ = true;
  events.Reasoning({&c, 1});
}

void PlainAnswer::OpenCall(std::string opening, bool after_function_tag) {
  mode_ = Mode::kCall;
  held_ = std::move(opening);
  switch (format_.calls) {
    case CallFormat::kXml:
      call_ = XmlCall(types_, after_function_tag);
      break;
    case CallFormat::kGlm:
      call_ = GlmCall(types_, format_);
      break;
    case CallFormat::kGemma:
      call_ = GemmaCall(format_);
      break;
    case CallFormat::kLlamaPython:
      call_ = PythonCall();
      break;
    case CallFormat::kMistral:
      call_ = MistralCall();
      break;
    default:
      call_ = JsonCall(/*only_call_keys=*/format_.calls == CallFormat::kLlamaJson);
  }
}

// Gives `bytes` to the parser of calls by `step`. False if the parser did not take them: then the
// mode is text again, and the bytes since the opening have become text unless they made a call.
template <typename Step>
bool PlainAnswer::StepCall(std::string_view bytes, AnswerEvents& events, const Step& step) {
  const size_t calls = events.calls();
  const bool was_open = events.call_open();
  const CallStep result = std::visit(step, call_);
  if (events.calls() > calls) {
    behind_ = Behind::kCall;
    blanks_.clear();
  }
  const bool reported = was_open || events.call_open() || events.calls() > calls;
  if (reported) {
    held_.clear();
  } else if (result != CallStep::kBad) {
    held_ += bytes;
  }
  if (result == CallStep::kMore && held_.size() <= kMaxHeldBytes) return true;
  mode_ = Mode::kText;
  if (events.call_open()) events.EndCall();
  if (result != CallStep::kDone) Text(std::exchange(held_, ""), events);
  held_.clear();
  return result != CallStep::kBad;
}

void PlainAnswer::CallByte(char c, AnswerEvents& events) {
  const bool taken = StepCall({&c, 1}, events, [&](auto& call) { return call.Byte(c, events); });
  if (!taken) MatchedByte(c, events);
}

void PlainAnswer::Finish(AnswerEvents& events) {
  Release(events);
  if (mode_ == Mode::kCall) {
    if (events.call_open()) events.EndCall();
    Text(std::exchange(held_, ""), events);
  } else if (mode_ == Mode::kText && behind_ == Behind::kStart) {
    events.Text(std::exchange(blanks_, ""));
  }
}

}  // namespace nibble
