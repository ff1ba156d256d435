// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "chat/answer_events.h"
#include "chat/json_text.h"

namespace nibble {

// {"name": ..., "arguments": {...}}, or a list of these. "parameters" means the same as
// "arguments", which may also come first and are then kept until the name is known.
class JsonCall {
 public:
  // only_call_keys: an object with a key that calls do not have is no call. For formats without a
  // marker in front, where such an object may be the answer itself.
  explicit JsonCall(bool only_call_keys) : only_call_keys_(only_call_keys) {}

  CallStep Byte(char c, AnswerEvents& events);
  CallStep Marker(std::string_view marker, AnswerEvents& events);

 private:
  enum class At {
    kOpen,
    kFirstKey,
    kNextKey,
    kKey,
    kColon,
    kValue,
    kName,
    kInValue,
    kNext,
    kAfter
  };
  CallStep Move(At at);
  CallStep EndKey();
  CallStep BeginValue(char c, AnswerEvents& events);
  CallStep InName(char c, AnswerEvents& events);
  CallStep InValue(char c, AnswerEvents& events);
  CallStep EndObject(AnswerEvents& events);

  bool only_call_keys_, in_list_ = false;
  At at_ = At::kOpen;
  std::string key_, name_, early_arguments_, quoted_arguments_;
  bool named_ = false, has_arguments_ = false, is_arguments_ = false, is_quoted_ = false;
  JsonEnd value_;
};

}  // namespace nibble
