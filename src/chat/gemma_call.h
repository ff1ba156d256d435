// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "chat/answer_events.h"
#include "chat/answer_format.h"
#include "chat/python_literal.h"

namespace nibble {

// Reads a call of Gemma 4 behind <|tool_call>: call:NAME{key:value,..}, where keys have no quotes,
// texts stand between <|"|> and nothing in a text is escaped. With JSON's quotes around keys and
// texts the arguments are read as JSON.
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

  std::string_view quote_;  // "": the quote is a token
  At at_ = At::kPrefix;
  size_t prefix_bytes_ = 0, quote_bytes_ = 0, key_bytes_ = 0;  // that have come
  std::string name_;
  PythonLiteral arguments_;
  std::string json_;  // JSON that one byte becomes
};

}  // namespace nibble
