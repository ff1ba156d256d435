// SPDX-License-Identifier: Apache-2.0
#include "chat/responses_tools.h"

#include "base/error.h"
#include "chat/message_fields.h"
#include "chat/messages.h"

namespace nibble {
namespace {

constexpr char kInput[] = "input", kOwnSpace[] = "functions";

// The description tells models the grammar; their text is not held to it.
Json CustomFunction(const Json& tool, const std::string& at) {
  std::string text = FindString(tool, "description", at).value_or("");
  JoinText("The argument \"input\" is the whole text.", &text);
  if (const Json* format = FindField(tool, "format")) {
    CheckObject(*format, at + ".format");
    if (const auto grammar = FindString(*format, "definition", at + ".format")) {
      JoinText("It follows this grammar:\n" + *grammar, &text);
    }
  }
  const Json parameters = {{"type", "object"},
                           {"properties", {{kInput, {{"type", "string"}}}}},
                           {"required", {kInput}},
                           {"additionalProperties", false}};
  return {{"name", GetString(tool, "name", at)},
          {"description", std::move(text)},
          {"parameters", parameters}};
}

class ToolList {
 public:
  ToolList(bool once, ResponsesTools* known) : once_(once), known_(known) {}

  void Add(const Json& tools, const std::string& space, const std::string& path) {
    ForEachObject(tools, kMaxTools, path, [&](const Json& tool, const std::string& at) {
      const std::string type = GetString(tool, "type", at);
      if (type == "namespace") {
        const Json* own = FindField(tool, "tools");
        if (own != nullptr) Add(*own, FindString(tool, "name", at).value_or(""), at + ".tools");
      } else if (type == "function") {
        AddFunction(ResponsesTool::Kind::kFunction, tool, space, at);
      } else if (type == "custom") {
        AddFunction(ResponsesTool::Kind::kCustom, CustomFunction(tool, at), space, at);
      } else if (type == "tool_search" && FindString(tool, "execution", at) == "client") {
        Json search = tool;
        search["name"] = type;
        AddFunction(ResponsesTool::Kind::kSearch, search, "", at);
      }
    });
  }
  Json Take() { return std::move(list_); }

 private:
  void AddFunction(ResponsesTool::Kind kind, Json function, const std::string& space,
                   const std::string& at) {
    const std::string name = GetString(function, "name", at);
    const std::string whole = FunctionName(space, name);
    const bool is_new =
        known_->try_emplace(whole, ResponsesTool{kind, name, space == kOwnSpace ? "" : space})
            .second;
    if (once_ && !is_new) return;
    function["name"] = whole;
    list_.push_back(FunctionTool(function, "parameters", at));
  }

  const bool once_;
  ResponsesTools* const known_;
  Json list_ = Json::array();
};

}  // namespace

std::string FunctionName(const std::string& space, const std::string& name) {
  if (space.empty() || space == kOwnSpace) return name;
  return space + (space.ends_with("__") ? "" : "__") + name;
}

Json ToolsFromResponses(const Json& tools, ResponsesTools* known) {
  ToolList list(false, known);
  list.Add(tools, "", "tools");
  return list.Take();
}

Json ToolsFromItems(const Json& input, ResponsesTools* known) {
  ToolList list(true, known);
  if (!input.is_array()) return list.Take();
  for (size_t i = 0; i < input.size(); ++i) {
    if (!input[i].is_object()) continue;
    const auto type = input[i].find("type");
    const bool brings =
        type != input[i].end() && (*type == "additional_tools" || *type == "tool_search_output");
    const Json* tools = brings ? FindField(input[i], "tools") : nullptr;
    if (tools != nullptr) list.Add(*tools, "", ItemPath("input", i) + ".tools");
  }
  return list.Take();
}

std::string CustomInput(const std::string& arguments) {
  const Json parsed = Json::parse(arguments, nullptr, false);
  if (!parsed.is_object()) return arguments;
  const auto input = parsed.find(kInput);
  return input != parsed.end() && input->is_string() ? input->get<std::string>() : arguments;
}

Json CustomArguments(const std::string& input) {
  return {{kInput, input}};
}

}  // namespace nibble
