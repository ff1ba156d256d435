// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include "base/error.h"
#include "chat/message_fields.h"
#include "chat/messages.h"

namespace nibble {
namespace {

std::string AnthropicText(const Json& content, const std::string& path) {
  return ContentText(content, {"text"}, path);
}

[[noreturn]] void RefuseBlock(const std::string& type, const std::string& at) {
  FailUsage("{}.type: \"{}\" is not supported", at, Printable(type));
}

// Claude Code begins its system blocks with one for billing, which differs in each request. It is
// left out: in a prompt it would end the beginning that all requests share in the cache.
std::string SystemText(const Json& system) {
  constexpr std::string_view kBill = "x-anthropic-billing-header:";
  if (!system.is_array()) return AnthropicText(system, "system");
  std::string text;
  ForEachObject(system, kMaxParts, "system", [&](const Json& block, const std::string& at) {
    const std::string type = GetString(block, "type", at);
    if (type != "text") RefuseBlock(type, at);
    const std::string own = GetString(block, "text", at);
    if (!own.starts_with(kBill)) JoinText(own, &text);
  });
  return text;
}

// The text of a block: a text, a document in plain text, results of a search, the name of a tool,
// or words that stand for a picture or sound. Nothing for other types.
std::optional<std::string> BlockText(const Json& block, const std::string& at) {
  const std::string type = GetString(block, "type", at);
  if (type == "text") return GetString(block, "text", at);
  if (type == "tool_reference") return GetString(block, "tool_name", at);
  if (type != "document") {
    if (auto unseen = UnseenPart(block)) return unseen;
  }
  std::string text;
  for (const char* head : {"title", "source", "context"}) {
    const Json* value = FindField(block, head);
    if (value != nullptr && value->is_string()) JoinText(value->get<std::string>(), &text);
  }
  if (type == "search_result") {
    JoinText(AnthropicText(GetField(block, "content", at), at + ".content"), &text);
    return text;
  }
  if (type != "document") return std::nullopt;
  const Json& source = GetField(block, "source", at);
  CheckObject(source, at + ".source");
  const std::string kind = GetString(source, "type", at + ".source");
  if (kind == "text") {
    JoinText(GetString(source, "data", at + ".source"), &text);
  } else if (kind == "content") {
    JoinText(AnthropicText(GetField(source, "content", at + ".source"), at + ".source.content"),
             &text);
  } else {
    JoinText(*UnseenPart(block), &text);  // a PDF, by its bytes or its address
  }
  return text;
}

std::string ResultText(const Json& content, const std::string& path) {
  if (!content.is_array()) return AnthropicText(content, path);
  std::string text;
  ForEachObject(content, kMaxParts, path, [&](const Json& block, const std::string& at) {
    const auto own = BlockText(block, at);
    if (!own) RefuseBlock(GetString(block, "type", at), at);
    JoinText(*own, &text);
  });
  return text;
}

// A user's texts, and results of tools, which are messages of their own, in the order they stand
// in.
void AddUserBlocks(const Json& blocks, const std::string& path, Json* messages) {
  std::string text;
  const auto end_text = [&] {
    if (!text.empty()) messages->push_back({{"role", "user"}, {"content", text}});
    text.clear();
  };
  const size_t before = messages->size();
  ForEachObject(blocks, kMaxParts, path, [&](const Json& block, const std::string& at) {
    const std::string type = GetString(block, "type", at);
    if (const auto own = BlockText(block, at)) {
      JoinText(*own, &text);
    } else if (type == "tool_result") {
      end_text();
      const Json* content = FindField(block, "content");
      messages->push_back(
          {{"role", "tool"},
           {"tool_call_id", GetString(block, "tool_use_id", at)},
           {"content", content == nullptr ? "" : ResultText(*content, at + ".content")}});
    } else {
      RefuseBlock(type, at);
    }
  });
  end_text();
  if (messages->size() == before) messages->push_back({{"role", "user"}, {"content", ""}});
}

void AddAssistantBlocks(const Json& blocks, const std::string& path, Json* messages) {
  std::string text, reasoning;
  Json calls = Json::array();
  ForEachObject(blocks, kMaxParts, path, [&](const Json& block, const std::string& at) {
    const std::string type = GetString(block, "type", at);
    if (type == "text") {
      JoinText(GetString(block, "text", at), &text);
    } else if (type == "compaction") {  // a summary of earlier messages
      JoinText(FindString(block, "content", at).value_or(""), &text);
    } else if (type == "thinking") {
      JoinText(GetString(block, "thinking", at), &reasoning);
    } else if (type == "tool_use") {
      const Json* const given = FindField(block, "input");  // null: no arguments
      const Json input = given == nullptr ? Json::object() : *given;
      CheckObject(input, at + ".input");
      calls.push_back(
          {{"id", GetString(block, "id", at)},
           {"type", "function"},
           {"function", {{"name", GetString(block, "name", at)}, {"arguments", input}}}});
    } else if (type != "redacted_thinking" && type != "server_tool_use" && type != "mcp_tool_use" &&
               !type.ends_with("_tool_result")) {  // of tools that the service ran
      RefuseBlock(type, at);
    }
  });
  Json message = {{"role", "assistant"}, {"content", text}};
  if (!reasoning.empty()) message["reasoning_content"] = reasoning;
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  messages->push_back(std::move(message));
}

}  // namespace

Json MessagesFromAnthropic(const Json& body) {
  CheckObject(body, "body");
  Json result = Json::array();
  if (const Json* system = FindField(body, "system")) {
    const std::string text = SystemText(*system);
    if (!text.empty()) result.push_back({{"role", "system"}, {"content", text}});
  }
  const Json* messages = FindField(body, "messages");
  if (messages == nullptr) FailUsage("messages: is missing");
  const auto add = [&](const Json& message, const std::string& at) {
    const std::string role = GetString(message, "role", at);
    if (role != "user" && role != "assistant" && role != "system") {
      FailUsage("{}.role: \"{}\" is neither user, assistant nor system", at, Printable(role));
    }
    const Json& content = GetField(message, "content", at);
    if (!content.is_array() || role == "system") {
      const std::string text = AnthropicText(content, at + ".content");
      result.push_back({{"role", role}, {"content", text}});
    } else if (role == "user") {
      AddUserBlocks(content, at + ".content", &result);
    } else {
      AddAssistantBlocks(content, at + ".content", &result);
    }
  };
  ForEachObject(*messages, kMaxMessages, "messages", add);
  return result;
}

Json ToolsFromAnthropic(const Json& tools) {
  Json result = Json::array();
  ForEachObject(tools, kMaxTools, "tools", [&](const Json& tool, const std::string& at) {
    // Other types name tools that the service itself would run.
    if (FindString(tool, "type", at).value_or("custom") != "custom") return;
    result.push_back(FunctionTool(tool, "input_schema", at));
  });
  return result;
}

}  // namespace nibble
