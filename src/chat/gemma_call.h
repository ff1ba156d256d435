// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "chat/answer_events.h"
#include "chat/answer_format.h"
#include "chat/python_literal.h"

namespace nibble {

// What follows <|tool_call> in Gemma 4: call:NAME{key:value,..}, where keys have no quotes, those
// of texts are <|"|>, and nothing in a text is escaped. Read as the JSON that it becomes once keys
// and texts have JSON's quotes.
class GemmaCall {
 public:
  explicit GemmaCall(const AnswerFormat& format);

  CallStep Byte(char c, AnswerEvents& events);
  CallStep Marker(std::string_view marker, AnswerEvents& events);

 private:
  enum class At { kPrefix, kName, kArguments, kKey, kText };
  CallStep InPrefix(char c);
  CallStep InName(char c, AnswerEvents& events);
  CallStep InKey(char c, AnswerEvents& events);
  CallStep QuoteByte(char c, AnswerEvents& events);
  CallStep Quote(AnswerEvents& events);
  CallStep TextByte(char c, AnswerEvents& events);
  CallStep Give(std::string_view json, AnswerEvents& events);

  std::string_view quote_;  // "": it is a token
  At at_ = At::kPrefix;
  size_t prefix_bytes_ = 0, quote_bytes_ = 0, key_bytes_ = 0;  // that have come
  std::string name_;
  PythonLiteral arguments_;
  std::string json_;  // what a byte becomes
};

}  // namespace nibble
