// SPDX-License-Identifier: Apache-2.0
// Answers of every format and what they mean, and ways to give an answer to a parser.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "chat/answer_parser.h"

namespace nibble::test {

struct AnswerExample {
  CallFormat calls;
  std::string answer;
  // Events in their order: "R(reasoning) T(text) C(name|arguments)", "C(name|arguments" if the call
  // does not end.
  std::string meaning;
  bool begins_in_reasoning = false;
};

inline const Json& ExampleTools() {
  static const Json tools =
      ParseJson(R"([{"type": "function", "function": {"name": "f", "parameters": {"properties": {
      "s": {"type": "string"}, "n": {"type": "integer"}, "b": {"type": "boolean"},
      "o": {"type": "object"}, "l": {"type": ["array", "null"]}, "e": {"enum": ["x"]},
      "r": {"$ref": "#/$defs/R"}, "u": {"anyOf": [{"type": "string"}, {"type": "null"}]},
      "v": {"anyOf": [{"type": "number"}, {"type": "null"}]},
      "w": {"anyOf": [{"$ref": "#/$defs/R"}, {"type": "null"}]}}}}},
      {"type": "function", "function": {"name": "get_weather"}}])",
                "tools");
  return tools;
}

inline AnswerFormat ExampleFormat(CallFormat calls, bool tokens) {
  AnswerFormat format;
  format.calls = calls;
  if (calls != CallFormat::kHarmony) {
    format.reasoning_begin = calls == CallFormat::kMistral ? "[THINK]" : "<think>";
    format.reasoning_end = calls == CallFormat::kMistral ? "[/THINK]" : "</think>";
  }
  if (!tokens) return format;
  format.markers = {"<think>",       "</think>",       "[THINK]",        "[/THINK]",
                    "<tool_call>",   "</tool_call>",   "[TOOL_CALLS]",   "[ARGS]",
                    "[CALL_ID]",     "<|python_tag|>", "<|start|>",      "<|channel|>",
                    "<arg_key>",     "</arg_key>",     "<arg_value>",    "</arg_value>",
                    "<|tool_call|>", "<|/tool_call|>", "<|tool_call>",   "<tool_call|>",
                    "<|\"|>",        "<|message|>",    "<|constrain|>",  "<|end|>",
                    "<|call|>",      "<|return|>",     "<|python_end|>", "<|python_start|>"};
  return format;
}

// A piece of an answer, as a decoder gives it.
struct AnswerPiece {
  bool marker;
  std::string text;
};

// Cuts an answer at the markers in it.
inline std::vector<AnswerPiece> PiecesOf(const AnswerFormat& format, std::string_view answer) {
  std::vector<AnswerPiece> pieces;
  size_t begin = 0;
  for (size_t at = 0; at < answer.size();) {
    std::string_view found;
    for (const std::string& marker : format.markers) {
      if (answer.substr(at).starts_with(marker)) found = marker;
    }
    if (found.empty()) {
      ++at;
      continue;
    }
    if (at > begin) pieces.push_back({false, std::string(answer.substr(begin, at - begin))});
    pieces.push_back({true, std::string(found)});
    begin = at += found.size();
  }
  if (begin < answer.size()) pieces.push_back({false, std::string(answer.substr(begin))});
  return pieces;
}

// Collects what a parser says; writes it as AnswerExample::meaning.
class Meaning {
 public:
  explicit Meaning(AnswerParser parser) : parser_(std::move(parser)) {}

  void Push(std::string_view text) { Add(parser_.Push(text)); }
  void Marker(std::string_view text) { Add(parser_.Marker(text)); }
  void Give(const AnswerPiece& piece) { piece.marker ? Marker(piece.text) : Push(piece.text); }
  std::string Finish() {
    Add(parser_.Finish());
    std::string out;
    for (const AnswerEvent& event : events_) {
      using Kind = AnswerEvent::Kind;
      if (event.kind == Kind::kCallEnd) {
        out += ')';
        continue;
      }
      if (event.kind == Kind::kCallArguments) {
        out += '|' + event.text;
        continue;
      }
      if (!out.empty()) out += ' ';
      const bool begin = event.kind == Kind::kCallBegin;
      out += event.kind == Kind::kText ? "T(" : begin ? "C(" : "R(";
      out += begin ? event.text : event.text + ')';
    }
    return out;
  }
  const std::vector<AnswerEvent>& events() const { return events_; }

 private:
  void Add(const std::vector<AnswerEvent>& events) {
    for (const AnswerEvent& event : events) {
      const bool begins =
          event.kind == AnswerEvent::Kind::kCallBegin || event.kind == AnswerEvent::Kind::kCallEnd;
      if (!begins && !events_.empty() && events_.back().kind == event.kind) {
        events_.back().text += event.text;
      } else {
        events_.push_back(event);
      }
    }
  }

  AnswerParser parser_;
  std::vector<AnswerEvent> events_;
};

inline Meaning MeaningOf(CallFormat calls, bool tokens, bool begins_in_reasoning = false,
                         bool parallel_calls = true) {
  AnswerFormat format = ExampleFormat(calls, tokens);
  format.begins_in_reasoning = begins_in_reasoning;
  return Meaning(AnswerParser(format, {"f", "get_weather"}, parallel_calls, ExampleTools()));
}

const std::vector<AnswerExample>& AnswerExamples();

}  // namespace nibble::test
