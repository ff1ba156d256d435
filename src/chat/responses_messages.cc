// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "base/error.h"
#include "chat/message_fields.h"
#include "chat/messages.h"
#include "chat/responses_tools.h"

namespace nibble {
namespace {

// Items of an answer that are one assistant message in a template: its reasoning, text and calls
// come as items that follow each other.
class ResponseItems {
 public:
  explicit ResponseItems(Json* messages) : messages_(messages) {}

  void Add(const Json& item, const std::string& at);

 private:
  bool AddCallOf(const std::string& type, const Json& item, const std::string& at);
  void AddOutputOf(const std::string& type, const Json& item, const std::string& at);
  void AddMessage(const Json& item, const std::string& at);
  void AddAgentMessage(const Json& item, const std::string& at);
  // `arguments` is the object or its text.
  void AddCall(const std::string& id, const std::string& name, Json arguments);
  void AddOutput(const std::string& id, std::string text);
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
  } else if (type == "agent_message") {
    AddAgentMessage(item, at);
  } else if (type == "reasoning") {
    AddReasoning(item, at);
  } else if (type == "item_reference") {
    FailUsage("{}.type: \"item_reference\" is not supported, as nothing is stored", at);
  } else if (!AddCallOf(type, item, at)) {
    // AddOutputOf skips items of unknown types: only the service reads them, or they tell what it
    // did by itself, and each version of a client has more of them.
    AddOutputOf(type, item, at);
  }
}

bool ResponseItems::AddCallOf(const std::string& type, const Json& item, const std::string& at) {
  const auto name = [&] {
    return FunctionName(FindString(item, "namespace", at).value_or(""),
                        GetString(item, "name", at));
  };
  if (type == "function_call") {
    AddCall(GetString(item, "call_id", at), name(), FindString(item, "arguments", at).value_or(""));
  } else if (type == "custom_tool_call") {
    AddCall(GetString(item, "call_id", at), name(), CustomArguments(GetString(item, "input", at)));
  } else if (type == "tool_search_call" || type == "local_shell_call") {
    // A call that the service ran by itself has no id for an answer.
    const auto id = FindString(item, "call_id", at);
    const Json* arguments = FindField(item, type == "local_shell_call" ? "action" : "arguments");
    if (id) AddCall(*id, type.substr(0, type.size() - 5), arguments ? *arguments : Json::object());
  } else {
    return false;
  }
  return true;
}

void ResponseItems::AddOutputOf(const std::string& type, const Json& item, const std::string& at) {
  if (type == "function_call_output" || type == "custom_tool_call_output") {
    AddOutput(
        GetString(item, "call_id", at),
        SaidText(GetField(item, "output", at), {"input_text", "output_text"}, at + ".output"));
  } else if (type == "tool_search_output") {
    ResponsesTools found;  // tools that later calls may use
    ToolsFromItems(Json::array({item}), &found);
    std::string names;
    for (const auto& [name, tool] : found) JoinText(name, &names);
    const auto id = FindString(item, "call_id", at);
    if (id) AddOutput(*id, names.empty() ? "nothing" : names);
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

// Adds a message of another agent of the client.
void ResponseItems::AddAgentMessage(const Json& item, const std::string& at) {
  std::string text;
  ForEachObject(GetField(item, "content", at), kMaxParts, at + ".content",
                [&](const Json& part, const std::string& at_part) {
                  JoinText(FindString(part, "text", at_part).value_or(""), &text);
                });
  if (text.empty()) return;
  may_add_calls_ = false;
  messages_->push_back({{"role", "user"}, {"content", std::move(text)}});
}

void ResponseItems::AddOutput(const std::string& id, std::string text) {
  may_add_calls_ = false;
  messages_->push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", std::move(text)}});
}

void ResponseItems::AddCall(const std::string& id, const std::string& name, Json arguments) {
  // Reasoning between two calls begins a message of its own.
  const bool joins = may_add_calls_ && reasoning_.empty();
  Json& message = joins ? messages_->back() : NewAssistant("");
  if (!message.contains("tool_calls")) message["tool_calls"] = Json::array();
  message["tool_calls"].push_back(
      {{"id", id},
       {"type", "function"},
       {"function", {{"name", name}, {"arguments", std::move(arguments)}}}});
}

// Adds the reasoning, or its summary where the item has only that; encrypted reasoning is skipped.
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

}  // namespace nibble
