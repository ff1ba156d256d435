// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "chat/answer_events.h"
#include "chat/json_call.h"
#include "chat/json_text.h"

namespace nibble {

// Reads calls behind [TOOL_CALLS]: a list of calls as JSON, or, since version 11 of Mistral's
// tokenizers, name[ARGS]{...} and name[CALL_ID]id[ARGS]{...}, where [ARGS] may be left out.
class MistralCall {
 public:
  CallStep Byte(char c, AnswerEvents& events);
  CallStep Marker(std::string_view marker, AnswerEvents& events);

 private:
  enum class At { kOpen, kList, kName, kBracket, kId, kValue, kInValue };
  CallStep InName(char c, AnswerEvents& events);
  CallStep InBracket(char c, AnswerEvents& events);
  CallStep Bracket(std::string_view bracket, AnswerEvents& events);
  CallStep InValue(char c, AnswerEvents& events);

  At at_ = At::kOpen;
  JsonCall list_{/*only_call_keys=*/false};
  std::string name_, bracket_;
  size_t id_bytes_ = 0;
  JsonEnd value_;
};

}  // namespace nibble
