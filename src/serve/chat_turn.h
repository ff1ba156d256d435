// SPDX-License-Identifier: Apache-2.0
// What a chat request comes to, whatever API it came by: a prompt, and how its answer is read.
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

// "auto", "none", "required", or {"function": {"name"}}, {"name"}.
std::string ToolChoice(const Json& value, const std::string& name);
// Variables for the template: names that it does not need for itself, with plain values.
Json TemplateKwargs(const Json& value, const std::string& name);
// For tables of fields that are a ChatInput's, too.
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
// max_tokens: nothing for what the context leaves.
ChatTurn PrepareChat(const Service& service, const ChatInput& input, GenerationFields fields,
                     std::optional<int64_t> max_tokens);

}  // namespace nibble::serve
