// SPDX-License-Identifier: Apache-2.0
#include "serve/response_items.h"

namespace nibble::serve {

Json ReasoningItem() {
  return {{"type", "reasoning"},
          {"id", NewId("rs_")},
          {"summary", Json::array()},
          {"content", Json::array()},
          {"status", "in_progress"}};
}

Json MessageItem() {
  return {{"type", "message"},
          {"id", NewId("msg_")},
          {"role", "assistant"},
          {"content", Json::array()},
          {"status", "in_progress"}};
}

Json CallItem(const ChatCall& call, const ResponsesTools& known) {
  const auto found = known.find(call.name);
  const ResponsesTool tool =
      found == known.end() ? ResponsesTool{.name = call.name} : found->second;
  Json item = {{"call_id", call.id}, {"status", "in_progress"}};
  switch (tool.kind) {
    case ResponsesTool::Kind::kSearch:
      item.update({{"type", "tool_search_call"},
                   {"id", NewId("tsc_")},
                   {"execution", "client"},
                   {"arguments", Json::object()}});
      return item;
    case ResponsesTool::Kind::kCustom:
      item.update({{"type", "custom_tool_call"}, {"id", NewId("ctc_")}, {"input", ""}});
      break;
    case ResponsesTool::Kind::kFunction:
      item.update({{"type", "function_call"}, {"id", NewId("fc_")}, {"arguments", ""}});
  }
  item["name"] = tool.name;
  if (!tool.space.empty()) item["namespace"] = tool.space;
  return item;
}

CallField FieldOf(const Json& call_item) {
  if (call_item["type"] == "custom_tool_call") return {"input", "custom_tool_call_input", false};
  if (call_item["type"] == "tool_search_call") return {"arguments", nullptr, false};
  return {"arguments", "function_call_arguments", true};
}

void FinishCall(const std::string& arguments, Json* call_item) {
  Json& field = (*call_item)[FieldOf(*call_item).name];
  if (field.is_object()) {
    Json parsed = Json::parse(arguments, nullptr, false);
    if (parsed.is_object()) field = std::move(parsed);
  } else {
    field = (*call_item)["type"] == "custom_tool_call" ? CustomInput(arguments) : arguments;
  }
}

}  // namespace nibble::serve
