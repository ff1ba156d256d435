// SPDX-License-Identifier: Apache-2.0
#include "chat/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error_testing.h"
#include "text/chat_template.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Convert = Json (*)(const Json&);

Json Parse(const std::string& text) {
  return ParseJson(text, "test");
}

void ExpectJson(const Json& value, const std::string& expected) {
  EXPECT_EQ(value.dump(), Parse(expected).dump());
}

// Each case: the path that the error begins with, and the input.
void ExpectErrors(Convert convert, const std::vector<std::pair<std::string, std::string>>& cases) {
  for (const auto& [path, text] : cases) {
    SCOPED_TRACE(text);
    const Json input = Parse(text);
    EXPECT_THAT(ErrorOf([&] { convert(input); }), StartsWith(path + ": "));
    try {
      convert(input);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
    }
  }
}

TEST(TemplateMessages, BecomeWhatTemplatesExpect) {
  ExpectJson(TemplateMessages(Parse(R"([
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "name": "ann", "content": [{"type": "text", "text": "a"},
                                                    {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": null, "reasoning": "hm", "tool_calls": [
          {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": [1]}"}},
          {"id": "c2", "type": "function", "function": {"name": "g", "arguments": ""}},
          {"id": "c3", "function": {"name": "h", "arguments": {"y": null}}},
          {"id": "c4", "function": {"name": "h", "arguments": "{\"cut"}}]},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "12"}]},
        {"role": "tool", "tool_call_id": "c3", "name": "k", "content": null},
        {"role": "assistant", "content": "", "tool_calls": []}])")),
             R"([
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "a\nb", "name": "ann"},
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [
          {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"x": [1]}}},
          {"id": "c2", "type": "function", "function": {"name": "g", "arguments": {}}},
          {"id": "c3", "type": "function", "function": {"name": "h", "arguments": {"y": null}}},
          {"id": "c4", "type": "function", "function": {"name": "h", "arguments": "{\"cut"}}]},
        {"role": "tool", "content": "12", "tool_call_id": "c2", "name": "g"},
        {"role": "tool", "content": "", "name": "k", "tool_call_id": "c3"},
        {"role": "assistant", "content": ""}])");
}

TEST(TemplateMessages, RenderInATemplateThatWalksArguments) {
  const auto chat_template = ChatTemplate::Parse(
      "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.name }}"
      "{% for k, v in c.function.arguments|items %} {{ k }}={{ v }}{% endfor %}{% endfor %}"
      "{% endfor %}",
      "test");
  const Json messages = TemplateMessages(Parse(R"([{"role": "assistant", "tool_calls": [
      {"type": "function", "function": {"name": "f",
       "arguments": "{\"b\": 1, \"a\": \"x\"}"}}]}])"));
  EXPECT_EQ(chat_template.Render(messages, false), "f b=1 a=x");
}

TEST(TemplateMessages, ErrorsNameTheField) {
  ExpectErrors(
      TemplateMessages,
      {{"messages", "{}"},
       {"messages", "[]"},
       {"messages[0]", "[1]"},
       {"messages[0].role", "[{}]"},
       {"messages[0].role", R"([{"role": 1, "content": ""}])"},
       {"messages[0].role", R"([{"role": "robot", "content": ""}])"},
       {"messages[0].content", R"([{"role": "user"}])"},
       {"messages[0].content", R"([{"role": "user", "content": null}])"},
       {"messages[0].content", R"([{"role": "user", "content": {"type": "text"}}])"},
       {"messages[1].content[1].type",
        R"([{"role": "user", "content": "a"}, {"role": "user", "content":
            [{"type": "text", "text": ""}, {"type": "hologram", "hologram": {"url": "x"}}]}])"},
       {"messages[0].content[0]", R"([{"role": "user", "content": ["a"]}])"},
       {"messages[0].content[0].text", R"([{"role": "user", "content": [{"type": "text"}]}])"},
       {"messages[0].content[0].text",
        R"([{"role": "user", "content": [{"type": "text", "text": 1}]}])"},
       {"messages[0].name", R"([{"role": "user", "content": "", "name": 1}])"},
       {"messages[0].tool_call_id", R"([{"role": "tool", "tool_call_id": []}])"},
       {"messages[0].reasoning_content", R"([{"role": "assistant", "reasoning_content": 1}])"},
       {"messages[0].tool_calls", R"([{"role": "assistant", "tool_calls": {}}])"},
       {"messages[0].tool_calls[0]", R"([{"role": "assistant", "tool_calls": [1]}])"},
       {"messages[0].tool_calls[0].type",
        R"([{"role": "assistant", "tool_calls": [{"type": "custom"}]}])"},
       {"messages[0].tool_calls[0].function", R"([{"role": "assistant", "tool_calls": [{}]}])"},
       {"messages[0].tool_calls[0].function.name",
        R"([{"role": "assistant", "tool_calls": [{"function": {}}]}])"},
       {"messages[0].tool_calls[0].function.arguments",
        R"([{"role": "assistant",
            "tool_calls": [{"function": {"name": "f", "arguments": 1}}]}])"}});
  EXPECT_THAT(ErrorOf([] {
                TemplateMessages(Parse(R"([{"role": "user", "content": [{"type": "hologram"}]}])"));
              }),
              HasSubstr("\"hologram\" is not supported"));
}

TEST(TemplateMessages, AreBounded) {
  const Json message = Parse(R"({"role": "user", "content": "a"})");
  EXPECT_EQ(TemplateMessages(Json(4096, message)).size(), 4096u);
  EXPECT_THAT(ErrorOf([&] { TemplateMessages(Json(4097, message)); }), HasSubstr("at most 4096"));
  // Arguments nested deeper than ParseJson goes stay text, and nothing crashes.
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "{\"a\":";
  Json call = Parse(R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}])");
  call[0]["tool_calls"][0]["function"]["arguments"] = deep;
  EXPECT_TRUE(TemplateMessages(call)[0]["tool_calls"][0]["function"]["arguments"].is_string());
}

TEST(TemplateTools, AreCheckedAndOthersLeftOut) {
  ExpectJson(TemplateTools(Parse(R"([
        {"type": "function", "function": {"name": "a.b-c_1", "description": "d", "strict": true,
         "parameters": {"type": "object", "properties": {"x": {"type": "string"}}}}},
        {"type": "web_search"}, {"type": "function", "function": {"name": "g"}}])")),
             R"([
        {"type": "function", "function": {"name": "a.b-c_1", "description": "d",
         "parameters": {"type": "object", "properties": {"x": {"type": "string"}}}, "strict": true}},
        {"type": "function", "function": {"name": "g", "description": "",
         "parameters": {"type": "object", "properties": {}}}}])");
  ExpectErrors(
      TemplateTools,
      {{"tools", "{}"},
       {"tools[0]", "[1]"},
       {"tools[0].type", "[{}]"},
       {"tools[1].function", R"([{"type": "x"}, {"type": "function"}])"},
       {"tools[0].function", R"([{"type": "function", "function": "f"}])"},
       {"tools[0].function.name", R"([{"type": "function", "function": {}}])"},
       {"tools[0].function.name", R"([{"type": "function", "function": {"name": ""}}])"},
       {"tools[0].function.name", R"([{"type": "function", "function": {"name": "a b"}}])"},
       {"tools[0].function.name",
        R"([{"type": "function", "function": {"name": ")" + std::string(129, 'a') + "\"}}]"},
       {"tools[1].function.name", R"([{"type": "function", "function": {"name": "f"}},
                                      {"type": "function", "function": {"name": "f"}}])"},
       {"tools[0].function.description",
        R"([{"type": "function", "function": {"name": "f", "description": 1}}])"},
       {"tools[0].function.parameters",
        R"([{"type": "function", "function": {"name": "f", "parameters": []}}])"}});
}

TEST(Anthropic, MessagesBecomeOpenAis) {
  const Json messages = MessagesFromAnthropic(Parse(R"({
      "system": [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
      "messages": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [
          {"type": "thinking", "thinking": "hm", "signature": "s"},
          {"type": "redacted_thinking", "data": "x"},
          {"type": "text", "text": "I look."},
          {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}]},
        {"role": "user", "content": [
          {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "7"}]},
          {"type": "tool_result", "tool_use_id": "t2"},
          {"type": "text", "text": "So?"}, {"type": "text", "text": "Well?"}]},
        {"role": "user", "content": []}]})"));
  ExpectJson(messages, R"([
      {"role": "system", "content": "Be kind."},
      {"role": "user", "content": "Hi"},
      {"role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": [
        {"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]},
      {"role": "tool", "tool_call_id": "t1", "content": "7"},
      {"role": "tool", "tool_call_id": "t2", "content": ""},
      {"role": "user", "content": "So?\nWell?"},
      {"role": "user", "content": ""}])");
  EXPECT_EQ(TemplateMessages(messages)[3]["name"], "f");
}

TEST(Anthropic, ErrorsNameTheField) {
  ExpectErrors(
      MessagesFromAnthropic,
      {{"body", "[]"},
       {"messages", "{}"},
       {"messages", R"({"messages": "a"})"},
       {"system", R"({"system": 1, "messages": []})"},
       {"system[0].type", R"({"system": [{"type": "image"}], "messages": []})"},
       {"messages[0]", R"({"messages": [1]})"},
       {"messages[0].role", R"({"messages": [{"role": "tool", "content": ""}]})"},
       {"messages[0].content", R"({"messages": [{"role": "user"}]})"},
       {"messages[0].content", R"({"messages": [{"role": "user", "content": 1}]})"},
       {"messages[0].content[0]", R"({"messages": [{"role": "user", "content": [1]}]})"},
       {"messages[0].content[0].type",
        R"({"messages": [{"role": "user", "content": [{"type": "hologram"}]}]})"},
       {"messages[0].content[0].tool_use_id",
        R"({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]})"},
       {"messages[0].content[0].content[0].type",
        R"({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a",
            "content": [{"type": "hologram"}]}]}]})"},
       {"messages[0].content[0].input",
        R"({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a",
            "name": "f", "input": "{}"}]}]})"},
       {"messages[0].content[0].id", R"({"messages": [{"role": "assistant", "content":
            [{"type": "tool_use", "name": "f", "input": {}}]}]})"}});
}

TEST(Anthropic, ToolsBecomeOpenAis) {
  const Json tools = ToolsFromAnthropic(Parse(R"([
      {"name": "f", "description": "d", "input_schema": {"type": "object"}},
      {"type": "web_search_20250305", "name": "web_search"}, {"type": "custom", "name": "g"}])"));
  ExpectJson(tools, R"([
      {"type": "function", "function": {"name": "f", "description": "d",
       "parameters": {"type": "object"}}},
      {"type": "function", "function": {"name": "g", "description": "",
       "parameters": {"type": "object", "properties": {}}}}])");
  EXPECT_EQ(TemplateTools(tools), tools);
  ExpectErrors(ToolsFromAnthropic,
               {{"tools", "1"},
                {"tools[0].name", "[{}]"},
                {"tools[0].type", R"([{"type": 1}])"},
                {"tools[0].input_schema", R"([{"name": "f", "input_schema": 1}])"}});
}

TEST(Responses, ItemsBecomeOpenAisMessages) {
  const Json messages = MessagesFromResponses(Parse(R"({"instructions": "Be kind.", "input": [
      "Hi",
      {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "D"}]},
      {"role": "user", "content": "U"},
      {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}],
       "content": [{"type": "reasoning_text", "text": "hm"}], "encrypted_content": null},
      {"type": "message", "role": "assistant", "content": [
        {"type": "output_text", "text": "I look.", "annotations": []}]},
      {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"a\": 1}"},
      {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "c1", "output": "7"},
      {"type": "function_call_output", "call_id": "c2",
       "output": [{"type": "input_text", "text": "8"}]},
      {"type": "reasoning", "summary": [{"type": "summary_text", "text": "again"}]},
      {"type": "function_call", "call_id": "c3", "name": "f", "arguments": "{}"}]})"));
  ExpectJson(messages, R"([
      {"role": "system", "content": "Be kind."},
      {"role": "user", "content": "Hi"},
      {"role": "developer", "content": "D"},
      {"role": "user", "content": "U"},
      {"role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}},
        {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "{}"}}]},
      {"role": "tool", "tool_call_id": "c1", "content": "7"},
      {"role": "tool", "tool_call_id": "c2", "content": "8"},
      {"role": "assistant", "content": "", "reasoning_content": "again", "tool_calls": [
        {"id": "c3", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}])");
  const Json rendered = TemplateMessages(messages);
  EXPECT_EQ(rendered[4]["tool_calls"][0]["function"]["arguments"]["a"], 1);
  EXPECT_EQ(rendered[6]["name"], "g");
  ExpectJson(MessagesFromResponses(Parse(R"({"input": "Hi"})")),
             R"([{"role": "user", "content": "Hi"}])");
  ExpectJson(MessagesFromResponses(Parse(R"({"input": []})")), "[]");
}

// Any item between two calls ends the message of the first one.
TEST(Responses, CallsThatFollowEachOtherAreOneMessage) {
  const auto messages = [](const std::string& between) {
    const std::string call =
        R"({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"})";
    const Json result =
        MessagesFromResponses(Parse(R"({"input": [)" + call + ", " + between + call + "]}"));
    std::string calls;
    for (const Json& message : result)
      calls += std::to_string(message.value("tool_calls", Json()).size());
    return calls;
  };
  EXPECT_EQ(messages(""), "2");
  EXPECT_EQ(messages(R"({"type": "reasoning", "summary": [], "content": [
                         {"type": "reasoning_text", "text": "hm"}]}, )"),
            "11");
  EXPECT_EQ(messages(R"({"type": "function_call_output", "call_id": "c", "output": "7"}, )"),
            "101");
  EXPECT_EQ(messages(R"({"role": "user", "content": "go on"}, )"), "101");
  EXPECT_EQ(messages(R"("go on", )"), "101");
}

TEST(Responses, ErrorsNameTheField) {
  ExpectErrors(
      MessagesFromResponses,
      {{"body", "1"},
       {"input", "{}"},
       {"input", R"({"input": 1})"},
       {"instructions", R"({"instructions": 1, "input": ""})"},
       {"input[0]", R"({"input": [1]})"},
       {"input[0].type", R"({"input": [{"type": "item_reference", "id": "x"}]})"},
       {"input[0].type", R"({"input": [{"type": 1}]})"},
       {"input[0].role", R"({"input": [{"content": "a"}]})"},
       {"input[0].role", R"({"input": [{"role": "tool", "content": "a"}]})"},
       {"input[0].content[0].type",
        R"({"input": [{"role": "user", "content": [{"type": "hologram"}]}]})"},
       {"input[0].call_id", R"({"input": [{"type": "function_call", "name": "f"}]})"},
       {"input[0].name", R"({"input": [{"type": "function_call", "call_id": "c"}]})"},
       {"input[0].output", R"({"input": [{"type": "function_call_output", "call_id": "c"}]})"},
       {"input[0].summary[0].type",
        R"({"input": [{"type": "reasoning", "summary": [{"type": "x"}]}]})"}});
  EXPECT_THAT(ErrorOf([] {
                MessagesFromResponses({{"input", Json(4097, Json("a"))}});
              }),
              HasSubstr("at most 4096"));
}

TEST(AnthropicMessages, BlocksWithTextAreText) {
  const auto user = [](const std::string& blocks) {
    return MessagesFromAnthropic(
        Parse(R"({"messages": [{"role": "user", "content": [)" + blocks + "]}]}"));
  };
  ExpectJson(user(R"({"type": "document", "title": "T", "source": {"type": "text",
                      "media_type": "text/plain", "data": "doc"}}, {"type": "text", "text": "x"})"),
             R"([{"role": "user", "content": "T\ndoc\nx"}])");
  ExpectJson(user(R"({"type": "document", "source": {"type": "content",
                      "content": [{"type": "text", "text": "doc"}]}})"),
             R"([{"role": "user", "content": "doc"}])");
  ExpectJson(user(R"({"type": "search_result", "source": "u", "title": "t",
                      "content": [{"type": "text", "text": "x"}]})"),
             R"([{"role": "user", "content": "t\nu\nx"}])");
  ExpectJson(user(R"({"type": "tool_result", "tool_use_id": "a", "content": [
                      {"type": "text", "text": "1"}, {"type": "image", "source": {}},
                      {"type": "tool_reference", "tool_name": "f"}]})"),
             R"([{"role": "tool", "tool_call_id": "a", "content":
                 "1\n[image: not shown, this model reads text alone]\nf"}])");
  for (const char* block :
       {R"({"type": "container_upload", "file_id": "f"})", R"({"type": "document", "source": "x"})",
        R"({"type": "search_result"})",
        R"({"type": "tool_result", "tool_use_id": "a", "content": [{"type": "hologram"}]})"}) {
    EXPECT_THAT(ErrorOf([&] { user(block); }), StartsWith("messages[0].content[0]")) << block;
  }
}

// A conversation goes on behind a picture: agents send it again with every later turn.
TEST(TemplateMessages, WhatIsNoTextIsNamedInItsPlace) {
  const std::string seen = "[image: not shown, this model reads text alone]";
  const std::string read = "[document: not shown, this model reads text alone]";
  const auto chat = [](const std::string& part) -> Json {
    return TemplateMessages(Parse(R"([{"role": "user", "content": [
        {"type": "text", "text": "a"}, )" +
                                  part + "]}]"))[0]["content"];
  };
  EXPECT_EQ(chat(R"({"type": "image_url", "image_url": {"url": "data:,"}})"), "a\n" + seen);
  EXPECT_EQ(chat(R"({"type": "file", "file": {"filename": "a.pdf"}})"), "a\n" + read);
  EXPECT_EQ(chat(R"({"type": "input_audio", "input_audio": {"data": ""}})"),
            "a\n[audio: not shown, this model reads text alone]");
  EXPECT_EQ(TemplateMessages(Parse(R"([{"role": "tool", "content": [
                {"type": "image_url", "image_url": {"url": "data:,"}}]}])"))[0]["content"],
            seen);
  const auto anthropic = [](const std::string& block) -> Json {
    return MessagesFromAnthropic(
        Parse(R"({"messages": [{"role": "user", "content": [)" + block + "]}]}"))[0]["content"];
  };
  EXPECT_EQ(anthropic(R"({"type": "image", "source": {}})"), seen);
  EXPECT_EQ(anthropic(R"({"type": "document", "title": "T",
                          "source": {"type": "base64", "data": "AA"}})"),
            "T\n" + read);
  const Json items = MessagesFromResponses(Parse(R"({"input": [
      {"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]},
      {"type": "function_call_output", "call_id": "c", "output": [
        {"type": "input_text", "text": "a"}, {"type": "input_file", "file_data": "data:,"}]}]})"));
  EXPECT_EQ(items[0]["content"], seen);
  EXPECT_EQ(items[1]["content"], "a\n" + read);
}

TEST(AnthropicMessages, TheBlockForTheBillIsNotRead) {
  ExpectJson(MessagesFromAnthropic(Parse(R"({"messages": [], "system": [
                 {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=0a1b;"},
                 {"type": "text", "text": "Be kind."}, {"type": "text", "text": "Be brief."}]})")),
             R"([{"role": "system", "content": "Be kind.\nBe brief."}])");
}

TEST(AnthropicMessages, ToolsOfTheServiceAndCallsWithoutArguments) {
  ExpectJson(MessagesFromAnthropic(Parse(R"({"messages": [{"role": "assistant", "content": [
                 {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
                 {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
                 {"type": "mcp_tool_use", "id": "m", "name": "f", "server_name": "n", "input": {}},
                 {"type": "mcp_tool_result", "tool_use_id": "m", "content": []},
                 {"type": "compaction", "content": "Before."},
                 {"type": "compaction", "content": null},
                 {"type": "text", "text": "x"},
                 {"type": "tool_use", "id": "a", "name": "f", "input": null}]}]})")),
             R"([{"role": "assistant", "content": "Before.\nx", "tool_calls": [
                  {"id": "a", "type": "function", "function": {"name": "f", "arguments": {}}}]}])");
}

}  // namespace
}  // namespace nibble
