// SPDX-License-Identifier: Apache-2.0
#include "chat/responses_tools.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error_testing.h"
#include "chat/messages.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

Json JsonOf(const std::string& text) {
  return ParseJson(text, "test");
}

Json NamesOf(const Json& tools) {
  Json names = Json::array();
  for (const Json& tool : tools) names.push_back(tool["function"]["name"]);
  return names;
}

Json MessagesOf(const std::string& items) {
  return TemplateMessages(MessagesFromResponses(JsonOf(R"({"input": [)" + items + "]}")));
}

TEST(ResponsesTools, FunctionsAreFlatAndTheServicesOwnAreLeftOut) {
  ResponsesTools known;
  const Json tools = ToolsFromResponses(JsonOf(R"([
      {"type": "function", "name": "f", "description": "d", "strict": false,
       "parameters": {"type": "object"}},
      {"type": "namespace", "name": "x", "tools": []}, {"type": "web_search"},
      {"type": "local_shell"}, {"type": "tool_search"}])"),
                                        &known);
  EXPECT_EQ(tools, JsonOf(R"([{"type": "function", "function": {"name": "f", "description": "d",
                              "parameters": {"type": "object"}}}])"));
  for (const auto& [path, text] : std::vector<std::pair<std::string, std::string>>{
           {"tools", "{}"},
           {"tools[0].type", "[{}]"},
           {"tools[0].name", R"([{"type": "function"}])"},
           {"tools[0].name", R"([{"type": "custom"}])"},
           {"tools[0].format", R"([{"type": "custom", "name": "c", "format": 1}])"},
           {"tools[0].name", R"([{"type": "namespace", "name": 1, "tools": []}])"},
           {"tools[0].tools[1].name",
            R"([{"type": "namespace", "name": "n", "tools": [
                {"type": "function", "name": "f"}, {"type": "function", "name": "a b"}]}])"},
           {"tools[0].parameters", R"([{"type": "function", "name": "f", "parameters": 1}])"}}) {
    const Json given = JsonOf(text);
    EXPECT_THAT(ErrorOf([&] { ToolsFromResponses(given, &known); }), StartsWith(path + ": "));
  }
}

TEST(ResponsesTools, AnythingThatTheClientRunsIsAFunction) {
  ResponsesTools known;
  const Json tools = ToolsFromResponses(JsonOf(R"([
      {"type": "custom", "name": "patch", "description": "Changes files.",
       "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}},
      {"type": "namespace", "name": "mcp__a__", "tools": [{"type": "function", "name": "list"}]},
      {"type": "namespace", "name": "b", "tools": [{"type": "custom", "name": "list"}]},
      {"type": "namespace", "name": "functions", "tools": [{"type": "function", "name": "own"}]},
      {"type": "tool_search", "execution": "client", "description": "Finds more.",
       "parameters": {"type": "object"}}])"),
                                        &known);
  EXPECT_EQ(NamesOf(tools), Json({"patch", "mcp__a__list", "b__list", "own", "tool_search"}));
  const Json& patch = tools[0]["function"];
  EXPECT_THAT(patch["description"].get<std::string>(), HasSubstr("start: /.+/"));
  EXPECT_EQ(patch["parameters"], JsonOf(R"({"type": "object",
      "properties": {"input": {"type": "string"}}, "required": ["input"],
      "additionalProperties": false})"));
  EXPECT_EQ(known.at("mcp__a__list").space, "mcp__a__");
  EXPECT_EQ(known.at("b__list").kind, ResponsesTool::Kind::kCustom);
  EXPECT_EQ(known.at("b__list").name, "list");
  EXPECT_EQ(known.at("own").space, "");
  EXPECT_EQ(known.at("tool_search").kind, ResponsesTool::Kind::kSearch);
}

TEST(ResponsesTools, ItemsBringMoreAndNoneTwice) {
  ResponsesTools known;
  ToolsFromResponses(JsonOf(R"([{"type": "function", "name": "a"}])"), &known);
  const Json input = JsonOf(R"(["Hi", {"type": "message", "tools": [{"type": "nothing"}]},
      {"type": "additional_tools", "tools": [
        {"type": "function", "name": "a"}, {"type": "function", "name": "b"}]},
      {"type": "tool_search_output", "call_id": "c", "tools": [
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "b"}]},
        {"type": "function", "name": "b"}]},
      {"type": "additional_tools"}])");
  EXPECT_EQ(NamesOf(ToolsFromItems(input, &known)), Json({"b", "n__b"}));
  EXPECT_EQ(ToolsFromItems("Hi", &known), Json::array());
  EXPECT_THAT(ErrorOf([&] {
                ToolsFromItems(JsonOf(R"([{"type": "additional_tools", "tools": [{}]}])"), &known);
              }),
              StartsWith("input[0].tools[0].type: "));
}

TEST(ResponsesTools, CallsComeBackAsTheModelWroteThem) {
  const Json messages = MessagesOf(R"(
      {"type": "custom_tool_call", "call_id": "1", "name": "patch", "input": "*** \"x\""},
      {"type": "web_search_call", "action": {"type": "search"}},
      {"type": "function_call", "call_id": "2", "namespace": "b", "name": "f", "arguments": "{}"},
      {"type": "tool_search_call", "call_id": "3", "execution": "client",
       "arguments": {"query": "q"}},
      {"type": "tool_search_call", "call_id": null, "execution": "server", "arguments": {}},
      {"type": "local_shell_call", "call_id": "4", "action": {"type": "exec", "command": ["ls"]}},
      {"type": "custom_tool_call_output", "call_id": "1", "output": [
        {"type": "input_text", "text": "done"}]},
      {"type": "tool_search_output", "call_id": "3", "tools": [
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "b"}]}]})");
  ASSERT_EQ(messages.size(), 3u);
  const Json& calls = messages[0]["tool_calls"];
  ASSERT_EQ(calls.size(), 4u);
  EXPECT_EQ(calls[0]["function"],
            JsonOf(R"({"name": "patch", "arguments": {"input": "*** \"x\""}})"));
  EXPECT_EQ(calls[1]["function"]["name"], "b__f");
  EXPECT_EQ(calls[2]["function"],
            JsonOf(R"({"name": "tool_search", "arguments": {"query": "q"}})"));
  EXPECT_EQ(calls[3]["function"]["name"], "local_shell");
  EXPECT_EQ(messages[1]["content"], "done");
  EXPECT_EQ(messages[1]["name"], "patch");
  EXPECT_EQ(messages[2]["content"], "n__b");
}

// Items of unknown types come from another version of Codex, or from a session that began with
// another model.
TEST(ResponsesTools, ItemsOfOthersDoNotEndAConversation) {
  const Json messages = MessagesOf(R"(
      {"type": "ghost_snapshot"}, {"type": "compaction", "encrypted_content": "x"},
      {"type": "image_generation_call", "result": "x"}, {"type": "of_next_year"},
      {"type": "agent_message", "author": "a", "content": [
        {"type": "input_text", "text": "Done."}, {"type": "encrypted_content"}]},
      {"type": "agent_message", "author": "a", "content": [{"type": "encrypted_content"}]},
      {"role": "user", "content": "Hi"})");
  EXPECT_EQ(messages, JsonOf(R"([{"role": "user", "content": "Done."},
                                {"role": "user", "content": "Hi"}])"));
}

TEST(ResponsesTools, TextOfACustomCall) {
  EXPECT_EQ(CustomInput(CustomArguments("a\n\"b\"").dump()), "a\n\"b\"");
  for (const char* as_it_is :
       {R"({"input": "cut)", R"({"text": "a"})", R"({"input": 1})", "[]", ""}) {
    EXPECT_EQ(CustomInput(as_it_is), as_it_is);
  }
}

}  // namespace
}  // namespace nibble
