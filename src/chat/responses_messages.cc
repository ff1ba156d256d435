// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "base/error.h"
#include "chat/message_fields.h"
#include "chat/messages.h"

namespace nibble {
namespace {

// Items of an answer that are one assistant message in a template: its reasoning, text and calls
// come as items that follow each other.
class ResponseItems {
 public:
  explicit ResponseItems(Json* messages) : messages_(messages) {}

  void Add(const Json& item, const std::string& at);

 private:
  void AddMessage(const Json& item, const std::string& at);
  void AddCall(const Json& item, const std::string& at);
  void AddReasoning(const Json& item, const std::string& at);
  Json& NewAssistant(std::string text);

  Json* messages_;
  std::string reasoning_;  // of the assistant message that follows
  bool may_add_calls_ = false;
};

void ResponseItems::Add(const Json& item, const std::string& at) {
  if (item.is_string()) {
    may_add_calls_ = false;
    messages_->push_back({{"role", "user"}, {"content", item}});
    return;
  }
  CheckObject(item, at);
  const std::string type = FindString(item, "type", at).value_or("message");
  if (type == "message") {
    AddMessage(item, at);
  } else if (type == "function_call") {
    AddCall(item, at);
  } else if (type == "function_call_output") {
    may_add_calls_ = false;
    const std::string text =
        SaidText(GetField(item, "output", at), {"input_text", "output_text"}, at + ".output");
    messages_->push_back(
        {{"role", "tool"}, {"tool_call_id", GetString(item, "call_id", at)}, {"content", text}});
  } else if (type == "reasoning") {
    AddReasoning(item, at);
  } else {
    FailUsage("{}.type: \"{}\" is not supported", at, Printable(type));
  }
}

Json& ResponseItems::NewAssistant(std::string text) {
  Json message = {{"role", "assistant"}, {"content", std::move(text)}};
  if (!reasoning_.empty()) message["reasoning_content"] = std::exchange(reasoning_, "");
  messages_->push_back(std::move(message));
  may_add_calls_ = true;
  return messages_->back();
}

void ResponseItems::AddMessage(const Json& item, const std::string& at) {
  const std::string role = GetString(item, "role", at);
  if (role != "user" && role != "assistant" && role != "system" && role != "developer") {
    FailUsage("{}.role: \"{}\" is none of user, assistant, system and developer", at,
              Printable(role));
  }
  std::string text = SaidText(GetField(item, "content", at),
                              {"input_text", "output_text", "text", "refusal"}, at + ".content");
  if (role == "assistant") {
    NewAssistant(std::move(text));
    return;
  }
  may_add_calls_ = false;
  messages_->push_back({{"role", role}, {"content", std::move(text)}});
}

void ResponseItems::AddCall(const Json& item, const std::string& at) {
  // Reasoning between two calls begins a message of its own.
  const bool joins = may_add_calls_ && reasoning_.empty();
  Json& message = joins ? messages_->back() : NewAssistant("");
  if (!message.contains("tool_calls")) message["tool_calls"] = Json::array();
  message["tool_calls"].push_back(
      {{"id", GetString(item, "call_id", at)},
       {"type", "function"},
       {"function",
        {{"name", GetString(item, "name", at)},
         {"arguments", FindString(item, "arguments", at).value_or("")}}}});
}

// The reasoning itself where it is there, else its summary; what is encrypted says nothing.
void ResponseItems::AddReasoning(const Json& item, const std::string& at) {
  std::string text;
  if (const Json* content = FindField(item, "content")) {
    text = ContentText(*content, {"reasoning_text", "text"}, at + ".content");
  }
  const Json* summary = FindField(item, "summary");
  if (text.empty() && summary != nullptr) {
    text = ContentText(*summary, {"summary_text"}, at + ".summary");
  }
  JoinText(text, &reasoning_);
}

}  // namespace

Json MessagesFromResponses(const Json& body) {
  CheckObject(body, "body");
  Json result = Json::array();
  if (const Json* instructions = FindField(body, "instructions")) {
    const std::string text = ContentText(*instructions, {"input_text"}, "instructions");
    if (!text.empty()) result.push_back({{"role", "system"}, {"content", text}});
  }
  const Json* input = FindField(body, "input");
  if (input == nullptr) FailUsage("input: is missing");
  ResponseItems items(&result);
  if (input->is_string()) {
    items.Add(*input, "input");
    return result;
  }
  CheckList(*input, kMaxMessages, "input");
  for (size_t i = 0; i < input->size(); ++i) items.Add((*input)[i], ItemPath("input", i));
  return result;
}

Json ToolsFromResponses(const Json& tools) {
  Json result = Json::array();
  ForEachObject(tools, kMaxTools, "tools", [&](const Json& tool, const std::string& at) {
    if (GetString(tool, "type", at) == "function") {
      result.push_back(FunctionTool(tool, "parameters", at));
    }
  });
  return result;
}

}  // namespace nibble
