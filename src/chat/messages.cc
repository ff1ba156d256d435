// SPDX-License-Identifier: Apache-2.0
#include "chat/messages.h"

#include <map>
#include <set>

#include "base/error.h"
#include "base/json_integers.h"
#include "chat/message_fields.h"

namespace nibble {
namespace {

using FunctionNames = std::map<std::string, std::string>;  // of the ids of calls

const std::vector<std::string_view>& PartTypes() {
  static const std::vector<std::string_view> types = {"text", "input_text", "output_text",
                                                      "refusal"};
  return types;
}

Json ArgumentsObject(const Json& function, const std::string& path) {
  const Json* arguments = FindField(function, "arguments");
  if (arguments == nullptr) return Json::object();
  if (arguments->is_object()) return *arguments;
  if (!arguments->is_string()) FailUsage("{}.arguments: must be a string or an object", path);
  const auto text = arguments->get<std::string>();
  if (text.empty()) return Json::object();
  try {
    Json parsed = ParseJsonKeepingIntegers(text, path);
    if (parsed.is_object()) return parsed;
  } catch (const Error&) {
  }
  return text;
}

Json TemplateCalls(const Json& calls, const std::string& path, FunctionNames* names) {
  Json result = Json::array();
  ForEachObject(calls, kMaxTools, path, [&](const Json& reported, const std::string& at) {
    const std::string at_function = at + ".function";
    const std::string type = FindString(reported, "type", at).value_or("function");
    if (type != "function") {
      FailUsage("{}.type: \"{}\" is not supported, only \"function\" is", at, Printable(type));
    }
    const Json& function = GetField(reported, "function", at);
    CheckObject(function, at_function);
    Json call = Json::object();
    const std::string name = GetString(function, "name", at_function);
    if (const auto id = FindString(reported, "id", at)) {
      call["id"] = *id;
      (*names)[*id] = name;
    }
    call["type"] = type;
    call["function"] = {{"name", name}, {"arguments", ArgumentsObject(function, at_function)}};
    result.push_back(std::move(call));
  });
  return result;
}

void AddAssistantFields(const Json& message, const std::string& at, FunctionNames* names,
                        Json* result) {
  auto reasoning = FindString(message, "reasoning_content", at);
  if (!reasoning) reasoning = FindString(message, "reasoning", at);
  if (reasoning) (*result)["reasoning_content"] = *reasoning;
  const Json* calls = FindField(message, "tool_calls");
  if (calls == nullptr) return;
  Json converted = TemplateCalls(*calls, at + ".tool_calls", names);
  // Templates take an empty list for calls that were made.
  if (!converted.empty()) (*result)["tool_calls"] = std::move(converted);
}

void AddToolFields(const Json& message, const std::string& at, const FunctionNames& names,
                   Json* result) {
  const auto id = FindString(message, "tool_call_id", at);
  if (!id) return;
  (*result)["tool_call_id"] = *id;
  const auto name = names.find(*id);
  if (!result->contains("name") && name != names.end()) (*result)["name"] = name->second;
}

Json TemplateMessage(const Json& message, const std::string& at, FunctionNames* names) {
  CheckObject(message, at);
  std::string role = GetString(message, "role", at);
  if (role == "developer") role = "system";
  if (role != "system" && role != "user" && role != "assistant" && role != "tool") {
    FailUsage("{}.role: \"{}\" is none of system, developer, user, assistant and tool", at,
              Printable(role));
  }
  Json result = {{"role", role}};
  const bool may_be_empty = role == "assistant" || role == "tool";
  const Json* content =
      may_be_empty ? FindField(message, "content") : &GetField(message, "content", at);
  result["content"] = content == nullptr ? "" : SaidText(*content, PartTypes(), at + ".content");
  if (const auto name = FindString(message, "name", at)) result["name"] = *name;
  if (role == "assistant") AddAssistantFields(message, at, names, &result);
  if (role == "tool") AddToolFields(message, at, *names, &result);
  return result;
}

}  // namespace

Json TemplateMessages(const Json& openai_messages) {
  FunctionNames names;
  Json result = Json::array();
  ForEachObject(openai_messages, kMaxMessages, "messages",
                [&](const Json& message, const std::string& at) {
                  result.push_back(TemplateMessage(message, at, &names));
                });
  if (result.empty()) FailUsage("messages: there are none");
  return result;
}

Json TemplateTools(const Json& openai_tools) {
  Json result = Json::array();
  std::set<std::string> names;
  ForEachObject(openai_tools, kMaxTools, "tools", [&](const Json& reported, const std::string& at) {
    if (GetString(reported, "type", at) != "function") return;
    const std::string at_function = at + ".function";
    const Json& function = GetField(reported, "function", at);
    CheckObject(function, at_function);
    Json tool = FunctionTool(function, "parameters", at_function);
    const auto name = tool["function"]["name"].get<std::string>();
    if (!names.insert(name).second) FailUsage("{}.name: \"{}\" is there twice", at_function, name);
    result.push_back(std::move(tool));
  });
  return result;
}

}  // namespace nibble
