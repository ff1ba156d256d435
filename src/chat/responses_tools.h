// SPDX-License-Identifier: Apache-2.0
// Tools of /v1/responses. Templates know functions alone, so other tools that the client runs
// become functions, and calls of these become calls of the client's tools: Codex finds a tool by
// its namespace and name, and runs no custom tool that is called as a function.
#pragma once

#include <map>
#include <string>

#include "base/json.h"

namespace nibble {

struct ResponsesTool {
  enum class Kind { kFunction, kCustom, kSearch };
  Kind kind = Kind::kFunction;
  std::string name, space;  // empty for the client's own, which is "functions"
};
using ResponsesTools = std::map<std::string, ResponsesTool>;  // by the names of functions

// The name of a tool's function: the tool's name with its namespace in front.
std::string FunctionName(const std::string& space, const std::string& name);

// `tools` as TemplateTools takes them: functions, custom tools with their text as the argument
// "input", searches for tools that the client runs, and the tools of namespaces. Tools that the
// service itself would run are left out.
Json ToolsFromResponses(const Json& tools, ResponsesTools* known);
// The tools that items of `input` bring: additional_tools, and results of a search for tools. Tools
// that are known already are not repeated.
Json ToolsFromItems(const Json& input, ResponsesTools* known);

// The text of a custom tool's call from the arguments of its function, which may be cut.
std::string CustomInput(const std::string& arguments);
Json CustomArguments(const std::string& input);

}  // namespace nibble
