// SPDX-License-Identifier: Apache-2.0
// Messages and tools of three wire formats as chat templates expect them. Every function takes JSON
// from outside and fails with the path of the field: "messages[2].content[0].type: ...".
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace nibble {

inline constexpr size_t kMaxMessages = 4096, kMaxTools = 1024;

// Messages of /v1/chat/completions for ChatTemplate::Render: contents are one text (parts are
// joined by newlines), "developer" is "system", the arguments of tool calls are objects, a tool's
// message has the name of its function, reasoning is "reasoning_content". Arguments that are no
// JSON object stay the text that they are: a model's own answer, cut, comes back in the history.
Json TemplateMessages(const Json& openai_messages);

// Tools of /v1/chat/completions as {type, function {name, description, parameters}}. Tools of other
// types than "function" are left out.
Json TemplateTools(const Json& openai_tools);

// /v1/messages: `system` and `messages` as messages for TemplateMessages.
Json MessagesFromAnthropic(const Json& body);
Json ToolsFromAnthropic(const Json& tools);

// /v1/responses: `instructions` and `input` as messages for TemplateMessages; empty if both are.
// Its tools: responses_tools.h.
Json MessagesFromResponses(const Json& body);

}  // namespace nibble
