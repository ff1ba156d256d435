// SPDX-License-Identifier: Apache-2.0
// The events that a model's answer turns into, and the functions that it may call.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

struct AnswerEvent {
  enum class Kind { kText, kReasoning, kCallBegin, kCallArguments, kCallEnd };
  Kind kind;
  // kText, kReasoning: a piece; kCallBegin: the function's name; kCallArguments: a piece of the
  // arguments as JSON text.
  std::string text;
  bool operator==(const AnswerEvent&) const = default;
};

// Collects events; pieces of one kind that follow each other become one event.
class AnswerEvents {
 public:
  AnswerEvents(const std::vector<std::string>& functions, bool parallel_calls);

  bool has_functions() const { return !functions_.empty(); }
  bool Knows(std::string_view function) const { return functions_.contains(function); }
  size_t longest_name() const { return longest_name_; }

  void Text(std::string_view piece) { Piece(AnswerEvent::Kind::kText, piece); }
  void Reasoning(std::string_view piece) { Piece(AnswerEvent::Kind::kReasoning, piece); }
  void BeginCall(std::string_view function);
  void Arguments(std::string_view piece) { Piece(AnswerEvent::Kind::kCallArguments, piece); }
  void EndCall();

  bool call_open() const { return call_open_; }
  size_t calls() const { return calls_; }  // begun so far
  // Only one call is allowed and it has been made: nothing after it counts.
  bool ended() const { return !parallel_calls_ && calls_ > 0 && !call_open_; }

  std::vector<AnswerEvent> Take();

 private:
  void Piece(AnswerEvent::Kind kind, std::string_view piece);

  std::set<std::string, std::less<>> functions_;
  size_t longest_name_ = 0, calls_ = 0;
  bool parallel_calls_, call_open_ = false;
  std::vector<AnswerEvent> events_;
};

// The verdict of a parser of calls on the byte that it was given.
enum class CallStep {
  kMore,
  kDone,  // it was the last byte of the calls
  kBad,   // the byte does not belong here and was not taken
};

inline bool IsBlank(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

// Characters that TemplateTools allows in the names of functions.
inline bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.';
}

}  // namespace nibble
