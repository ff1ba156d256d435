// SPDX-License-Identifier: Apache-2.0
// Turns a chat request of any API into a prompt and the format in which its answer is read.
#pragma once

#include "serve/call.h"
#include "serve/generation_fields.h"

namespace nibble::serve {

struct ChatInput {
  Json messages = Json::array();     // as TemplateMessages makes them
  Json tools = Json::array();        // as TemplateTools makes them
  std::string tool_choice = "auto";  // none, auto, required, or a function's name after "function:"
  bool parallel_calls = true;
  std::string reasoning_effort;  // empty: as the template does
  Json template_kwargs = Json::object();
  bool add_generation_prompt = true, continue_final_message = false;
};

// Reads "auto", "none", "required", {"function": {"name"}} or {"name"} as ChatInput::tool_choice.
std::string ToolChoice(const Json& value, const std::string& name);
// Reads variables for the template: plain values, under names that the server does not set itself.
Json TemplateKwargs(const Json& value, const std::string& name);
// A reader for tables of fields whose target derives from ChatInput.
template <typename Target>
void ReadToolChoice(const Json& value, const std::string& name, Target& target) {
  target.tool_choice = ToolChoice(value, name);
}

std::string RenderChat(const Service& service, const ChatInput& input);

struct ChatTurn {
  GenerationRequest request;
  AnswerFormat format;
  std::vector<std::string> functions;
  Json tools;
  bool parallel_calls = true;
};
// Without max_tokens an answer may fill what the context leaves.
ChatTurn PrepareChat(const Service& service, const ChatInput& input, GenerationFields fields,
                     std::optional<int64_t> max_tokens);

}  // namespace nibble::serve
