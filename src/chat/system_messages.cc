// SPDX-License-Identifier: Apache-2.0
#include "chat/system_messages.h"

#include <optional>

#include "base/error.h"

namespace nibble {
namespace {

bool IsText(const Json& message, std::string_view role) {
  return message.value("role", "") == role && message.contains("content") &&
         message["content"].is_string();
}

void Append(const Json& message, Json& to) {
  to["content"] = to["content"].get<std::string>() + "\n\n" + message["content"].get<std::string>();
}

}  // namespace

Json FoldSystemMessages(const Json& messages, bool keep_front) {
  Json result = Json::array();
  bool front = keep_front;  // nothing but system messages so far
  bool folded = false;      // the last message was, and the user's next one joins it
  for (const Json& message : messages) {
    const bool system = IsText(message, "system");
    Json* const last = result.empty() ? nullptr : &result.back();
    if (system && front) {
      last != nullptr ? Append(message, *last) : result.push_back(message);
      continue;
    }
    front = false;
    const bool user = IsText(message, "user");
    if (last != nullptr && IsText(*last, "user") && (system || (user && folded))) {
      Append(message, *last);
    } else {
      result.push_back(message);
      if (system) result.back()["role"] = "user";
    }
    folded = system || (folded && user);
  }
  return result;
}

std::string RenderMessages(const ChatTemplate& chat_template, const Json& messages,
                           bool add_generation_prompt, const Json& extra) {
  std::optional<Error> first;
  for (const Json& form :
       {messages, FoldSystemMessages(messages, true), FoldSystemMessages(messages, false)}) {
    if (first && form == messages) continue;
    try {
      return chat_template.Render(form, add_generation_prompt, extra);
    } catch (const Error& error) {
      if (!first) first = error;
    }
  }
  throw *first;
}

}  // namespace nibble
