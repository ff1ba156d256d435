// SPDX-License-Identifier: Apache-2.0
// The first byte chooses a format, whether the prompt has opened reasoning, and whether markers are
// tokens; a line of sizes cuts the answer that follows it. The meaning is that of the answer in one
// piece, calls begin and end in turn, and text is UTF-8 if the answer is.
#include "base/utf8.h"
#include "chat/answer_parser.h"
#include "fuzz_input.h"

namespace nibble {
namespace {

using Kind = AnswerEvent::Kind;

const Json& Tools() {
  static const Json tools = ParseJson(
      R"([{"type": "function", "function": {"name": "f", "parameters": {"properties": {
          "s": {"type": "string"}, "n": {"type": "number"}, "u": {}}}}}])",
      "tools");
  return tools;
}

AnswerFormat Format(uint8_t choice) {
  AnswerFormat format;
  format.calls = static_cast<CallFormat>(choice % kCallFormats);
  format.reasoning_begin = "<think>";
  format.reasoning_end = "</think>";
  format.begins_in_reasoning = (choice & 0x40) != 0;
  if ((choice & 0x80) != 0) {
    format.markers = {"<think>",       "</think>",       "<tool_call>",  "</tool_call>",
                      "<arg_key>",     "</arg_key>",     "<arg_value>",  "</arg_value>",
                      "<|tool_call|>", "<|/tool_call|>", "<|tool_call>", "<tool_call|>",
                      "<|\"|>",        "[TOOL_CALLS]",   "[ARGS]",       "<|python_tag|>",
                      "<|start|>",     "<|channel|>",    "<|message|>",  "<|constrain|>",
                      "<|end|>",       "<|call|>",       "<|return|>"};
  }
  return format;
}

// Gives a parser a text that may have markers in it.
class Giver {
 public:
  explicit Giver(const AnswerFormat& format)
      : format_(format), parser_(format, {"f"}, true, Tools()) {}

  // Cuts the answer after `sizes` of characters in turn; gives it at once if there are none.
  std::vector<AnswerEvent> Give(std::string_view answer, std::string_view sizes) {
    size_t begin = 0, next = 0;
    for (size_t at = 0; at < answer.size();) {
      const std::string_view marker = MarkerAt(answer.substr(at));
      if (!marker.empty()) {
        Add(parser_.Push(answer.substr(begin, at - begin)));
        Add(parser_.Marker(marker));
        begin = at += marker.size();
        continue;
      }
      at = std::min(answer.size(), at + Utf8Length(answer[at]));
      const bool cut = !sizes.empty() && at - begin > static_cast<uint8_t>(sizes[next]) % 16;
      if (!cut) continue;
      Add(parser_.Push(answer.substr(begin, at - begin)));
      begin = at;
      next = (next + 1) % sizes.size();
    }
    Add(parser_.Push(answer.substr(begin)));
    Add(parser_.Finish());
    return std::move(events_);
  }

 private:
  std::string_view MarkerAt(std::string_view text) const {
    for (const std::string& marker : format_.markers) {
      if (text.starts_with(marker)) return marker;
    }
    return "";
  }

  void Add(const std::vector<AnswerEvent>& events) {
    for (const AnswerEvent& event : events) {
      NIBBLE_CHECK(IsValidUtf8(event.text), "{}", event.text);
      const bool is_piece = event.kind != Kind::kCallBegin && event.kind != Kind::kCallEnd;
      if (is_piece && !events_.empty() && events_.back().kind == event.kind) {
        events_.back().text += event.text;
      } else {
        events_.push_back(event);
      }
    }
  }

  const AnswerFormat& format_;
  AnswerParser parser_;
  std::vector<AnswerEvent> events_;
};

void Use(std::string_view input) {
  if (input.empty()) return;
  const AnswerFormat format = Format(static_cast<uint8_t>(input[0]));
  input.remove_prefix(1);
  const std::string_view sizes = TakeLine(&input);
  if (!IsValidUtf8(input)) return;  // a decoder gives nothing else
  const std::vector<AnswerEvent> events = Giver(format).Give(input, "");
  NIBBLE_CHECK(Giver(format).Give(input, sizes) == events);
  bool open = false;
  size_t bytes = 0;
  for (const AnswerEvent& event : events) {
    NIBBLE_CHECK(open == (event.kind == Kind::kCallArguments || event.kind == Kind::kCallEnd));
    if (event.kind == Kind::kCallBegin) open = true;
    if (event.kind == Kind::kCallEnd) open = false;
    bytes += event.text.size();
  }
  NIBBLE_CHECK(!open && bytes <= 8 * input.size() + 16, "{} of {} bytes", bytes, input.size());
}

}  // namespace
}  // namespace nibble

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return nibble::FuzzOne(data, size, nibble::Use);
}
