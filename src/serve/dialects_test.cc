// SPDX-License-Identifier: Apache-2.0
// /v1/messages and /v1/responses: the same answers in their own words, whole and as events.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/serve_testing.h"

namespace nibble::serve {
namespace {

constexpr const char* kThoughtCall =
    "<think>\nHm.\n</think>\nLet me see.<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": "
    "\"sky\"}}\n</tool_call>";

std::string CallAlone() {
  const std::string whole = kThoughtCall;
  return whole.substr(whole.find("<tool_call>"));
}

Json AnthropicBody(const std::string& text) {
  return {{"max_tokens", 200},
          {"messages", Json::array({Json{{"role", "user"}, {"content", text}}})},
          {"tools", Json::parse(R"([{"name": "look", "input_schema": {"type": "object",
              "properties": {"at": {"enum": ["sky", "sea"]}}, "required": ["at"],
              "additionalProperties": false}}])")}};
}
Json ResponsesBody(const std::string& text) {
  return {{"input", text},
          {"max_output_tokens", 200},
          {"tools", Json::parse(R"([{"type": "function", "name": "look", "parameters": {
              "type": "object", "properties": {"at": {"enum": ["sky", "sea"]}},
              "required": ["at"], "additionalProperties": false}}])")}};
}

std::vector<std::string> NamesOf(const std::vector<Event>& events) {
  std::vector<std::string> names;
  for (const Event& event : events) {
    EXPECT_EQ(event.name, event.data["type"]);
    // Any number of deltas counts as one.
    if (names.empty() || names.back() != event.name || !event.name.ends_with("delta")) {
      names.push_back(event.name);
    }
  }
  return names;
}

class MessagesTest : public ServeTest {
 protected:
  static Json Message(const Json& body) { return service().Ok("/v1/messages", body).json; }

  // Joins a stream into a whole message. Its blocks come one after another.
  static Json Joined(const std::vector<Event>& events) {
    Json message = events.at(0).data["message"];
    int64_t open = -1;
    std::string arguments;
    for (const Event& event : events) {
      const Json& e = event.data;
      if (event.name == "content_block_start") {
        EXPECT_EQ(open, -1);
        open = e["index"];
        EXPECT_EQ(open, static_cast<int64_t>(message["content"].size()));
        message["content"].push_back(e["content_block"]);
      } else if (event.name == "content_block_delta") {
        EXPECT_EQ(e["index"], open);
        Json& block = message["content"].back();
        const Json& delta = e["delta"];
        const std::string type = delta["type"];
        if (type == "text_delta")
          block["text"] = block["text"].get<std::string>() + delta["text"].get<std::string>();
        if (type == "thinking_delta")
          block["thinking"] =
              block["thinking"].get<std::string>() + delta["thinking"].get<std::string>();
        if (type == "input_json_delta") arguments += delta["partial_json"].get<std::string>();
      } else if (event.name == "content_block_stop") {
        EXPECT_EQ(e["index"], open);
        open = -1;
        Json& block = message["content"].back();
        if (block["type"] == "tool_use")
          block["input"] = Json::parse(std::exchange(arguments, ""), nullptr, false);
      } else if (event.name == "message_delta") {
        message.update(e["delta"]);
        message["usage"] = e["usage"];
      }
    }
    EXPECT_EQ(open, -1);
    return message;
  }
  // input_tokens does not count the prompt's tokens that came out of the cache.
  static int64_t PromptTokens(const Json& usage) {
    return usage["input_tokens"].get<int64_t>() + usage["cache_read_input_tokens"].get<int64_t>();
  }
  static void EraseRandom(Json* message) {
    message->erase("id");
    Json& usage = (*message)["usage"];
    usage["input_tokens"] = PromptTokens(usage);
    usage.erase("cache_read_input_tokens");
    for (Json& block : (*message)["content"]) block.erase("id");
  }
};

TEST_F(MessagesTest, EventsComeInOrder) {
  Json body = With(AnthropicBody("What?"), Saying(kThoughtCall));
  Json whole = Message(body);
  EXPECT_EQ(whole["stop_reason"], "tool_use");
  EXPECT_EQ(Mismatch(whole["content"], Json::parse(R"([
      {"type": "thinking", "thinking": "<string>", "signature": ""},
      {"type": "text", "text": "Let me see."},
      {"type": "tool_use", "id": "<string>", "name": "look", "input": {"at": "sky"}}])")),
            "");
  body["stream"] = true;
  const std::vector<Event> events = service().Ok("/v1/messages", body).events;
  EXPECT_EQ(NamesOf(events), (std::vector<std::string>{
                                 "message_start", "content_block_start", "content_block_delta",
                                 "content_block_stop", "content_block_start", "content_block_delta",
                                 "content_block_stop", "content_block_start", "content_block_delta",
                                 "content_block_stop", "message_delta", "message_stop"}));
  EXPECT_EQ(PromptTokens(events[0].data["message"]["usage"]), PromptTokens(whole["usage"]));
  EXPECT_EQ(events[0].data["message"]["content"], Json::array());
  Json joined = Joined(events);
  EraseRandom(&whole);
  EraseRandom(&joined);
  EXPECT_EQ(Mismatch(joined, whole), "");
}

TEST_F(MessagesTest, StopReasons) {
  const Json says = With(AnthropicBody("What?"), Saying("one two three"));
  EXPECT_EQ(Message(says)["stop_reason"], "end_turn");
  const Json cut = Message(With(says, {{"max_tokens", 1}}));
  EXPECT_EQ(cut["stop_reason"], "max_tokens");
  EXPECT_EQ(cut["usage"]["output_tokens"], 1);
  for (const bool stream : {false, true}) {
    const Json body = With(says, {{"stop_sequences", {"xyz", "two"}}, {"stream", stream}});
    const Reply reply = service().Ok("/v1/messages", body);
    const Json message = stream ? Joined(reply.events) : reply.json;
    EXPECT_EQ(message["stop_reason"], "stop_sequence");
    EXPECT_EQ(message["stop_sequence"], "two");
    EXPECT_EQ(message["content"][0]["text"], "one ");
  }
}

TEST_F(MessagesTest, CountsAreThoseOfTheUsage) {
  Json body = AnthropicBody("What is there to see?");
  body["system"] = Json::parse(R"([{"type": "text", "text": "Be kind."}])");
  for (int i = 0; i < 3; ++i) {
    body["max_tokens"] = 1;
    EXPECT_EQ(service().Ok("/v1/messages/count_tokens", body).json["input_tokens"],
              PromptTokens(Message(body)["usage"]));
    if (i == 0) body["tool_choice"] = {{"type", "none"}};
    if (i == 1) body["thinking"] = {{"type", "enabled"}, {"budget_tokens", 1024}};
  }
}

TEST_F(MessagesTest, ToolChoices) {
  Json body = AnthropicBody("Look!");
  for (const char* choice : {R"({"type": "any"})", R"({"type": "tool", "name": "look"})"}) {
    body["tool_choice"] = Json::parse(choice);
    const Json message = Message(body);
    EXPECT_EQ(message["stop_reason"], "tool_use");
    const Json& block = message["content"].back();
    EXPECT_EQ(block["name"], "look");
    EXPECT_TRUE(block["input"]["at"] == "sky" || block["input"]["at"] == "sea");
  }
  for (const char* choice :
       {R"({"type": "all"})", R"({"type": "tool", "name": "x"})", "5", "{}", R"("any")",
        R"({"type": "tool"})", R"({"type": "auto", "disable_parallel_tool_use": 1})"}) {
    body["tool_choice"] = Json::parse(choice);
    EXPECT_EQ(service().Post("/v1/messages", body).status(), 400) << choice;
  }
}

TEST_F(MessagesTest, OneCallAloneWhereTheOthersAreSwitchedOff) {
  const std::string twice = std::string(kThoughtCall) + CallAlone();
  for (const bool alone : {false, true}) {
    const Json choice = {{"type", "auto"}, {"disable_parallel_tool_use", alone}};
    Json body = With(AnthropicBody("Look!"), {{"tool_choice", choice}});
    const Json content = Message(With(body, Saying(twice)))["content"];
    EXPECT_EQ(std::ranges::count(content, "tool_use", [](const Json& b) { return b["type"]; }),
              alone ? 1 : 2);
  }
}

TEST_F(MessagesTest, TextsGoOnAndCallsDoNot) {
  const auto count = [](const Json& blocks) {
    Json body = AnthropicBody("Look!");
    body["messages"].push_back({{"role", "assistant"}, {"content", blocks}});
    return service().Ok("/v1/messages/count_tokens", body).json["input_tokens"].get<int64_t>();
  };
  Json blocks = Json::parse(R"([{"type": "text", "text": "I look."}])");
  const int64_t text = count(blocks);
  blocks.push_back(
      Json::parse(R"({"type": "tool_use", "id": "t", "name": "look", "input": {"at": "sea"}})"));
  EXPECT_GT(count(blocks), text);
}

TEST_F(MessagesTest, HistoryWithToolsComesBack) {
  Json body = AnthropicBody("Look!");
  body["messages"].push_back(Json::parse(R"({"role": "assistant", "content": [
      {"type": "thinking", "thinking": "Hm.", "signature": ""}, {"type": "text", "text": "Yes."},
      {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "sea"}}]})"));
  body["messages"].push_back(Json::parse(R"({"role": "user", "content": [
      {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "Waves"}],
       "is_error": false}, {"type": "text", "text": "Well?"}]})"));
  EXPECT_EQ(Message(With(body, Saying("Waves.")))["content"][0]["text"], "Waves.");
}

TEST_F(MessagesTest, ErrorsAreInTheirShape) {
  const auto error = [&](const Json& body, int status, const char* type) {
    const Reply reply = service().Post("/v1/messages", body);
    EXPECT_EQ(reply.status(), status) << body;
    EXPECT_EQ(Mismatch(reply.json,
                       {{"type", "error"}, {"error", {{"type", type}, {"message", "<string>"}}}}),
              "");
    return reply.json["error"]["message"].get<std::string>();
  };
  Json body = AnthropicBody("What?");
  body.erase("max_tokens");
  EXPECT_THAT(error(body, 400, "invalid_request_error"), testing::HasSubstr("max_tokens"));
  error(With(AnthropicBody("x"), {{"model", "claude"}}), 404, "not_found_error");
  error(With(AnthropicBody("x"), {{"messages", "x"}}), 400, "invalid_request_error");
  error(With(AnthropicBody("x"), {{"system", 5}}), 400, "invalid_request_error");
  error(With(AnthropicBody("x"), {{"thinking", 5}}), 400, "invalid_request_error");
  error(With(AnthropicBody("x"), {{"tools", 5}}), 400, "invalid_request_error");
}

class ResponsesTest : public ServeTest {
 protected:
  static Json Response(const Json& body) { return service().Ok("/v1/responses", body).json; }
};

TEST_F(ResponsesTest, EventsComeInOrderAndNestTheWhole) {
  Json body = With(ResponsesBody("What?"), Saying(kThoughtCall));
  const Json whole = Response(body);
  body["stream"] = true;
  const std::vector<Event> events = service().Ok("/v1/responses", body).events;
  const std::vector<std::string> expected = {"created",
                                             "in_progress",
                                             "output_item.added",
                                             "content_part.added",
                                             "reasoning_text.delta",
                                             "reasoning_text.done",
                                             "content_part.done",
                                             "output_item.done",
                                             "output_item.added",
                                             "content_part.added",
                                             "output_text.delta",
                                             "output_text.done",
                                             "content_part.done",
                                             "output_item.done",
                                             "output_item.added",
                                             "function_call_arguments.delta",
                                             "function_call_arguments.done",
                                             "output_item.done",
                                             "completed"};
  std::vector<std::string> names = NamesOf(events);
  for (std::string& name : names) {
    EXPECT_TRUE(name.starts_with("response."));
    name = name.substr(9);
  }
  EXPECT_EQ(names, expected);
  std::map<int64_t, std::string> deltas;
  std::map<int64_t, Json> done;
  std::string item;
  for (size_t i = 0; i < events.size(); ++i) {
    const Json& e = events[i].data;
    EXPECT_EQ(e["sequence_number"], i);
    if (e["type"] == "response.output_item.added") item = e["item"]["id"];
    if (e.contains("item_id")) {
      EXPECT_EQ(e["item_id"], item);
    }
    if (e.contains("delta")) deltas[e["output_index"]] += e["delta"].get<std::string>();
    if (e["type"] == "response.output_item.done") {
      EXPECT_EQ(e["output_index"], done.size());
      done[e["output_index"]] = e["item"];
    }
  }
  const Json& last = events.back().data["response"];
  ASSERT_EQ(last["output"].size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const auto at = static_cast<int64_t>(i);
    EXPECT_EQ(last["output"][i], done[at]);
    Json streamed = last["output"][i], reported = whole["output"][i];
    EXPECT_EQ(deltas[at], i < 2 ? streamed["content"][0]["text"] : streamed["arguments"]);
    for (const char* random : {"id", "call_id"}) {
      streamed.erase(random);
      reported.erase(random);
    }
    EXPECT_EQ(Mismatch(streamed, reported), "");
  }
  for (const char* field :
       {"input_tokens", "output_tokens", "total_tokens", "output_tokens_details"}) {
    EXPECT_EQ(last["usage"][field], whole["usage"][field]);
  }
}

// Codex finds a tool by the kind of its call, its namespace and name.
TEST_F(ResponsesTest, CallsAreToldAsTheClientKnowsTheTools) {
  Json body = {{"input", Json::parse(R"([{"role": "user", "content": "Look!"},
                   {"type": "additional_tools", "role": "developer", "tools": [
                     {"type": "custom", "name": "patch", "description": "Changes a file."},
                     {"type": "namespace", "name": "mcp__sky", "tools": [
                       {"type": "function", "name": "look", "parameters": {}}]},
                     {"type": "tool_search", "execution": "client", "parameters": {}}]}])")}};
  body.update(
      Saying("<tool_call>\n{\"name\": \"patch\", \"arguments\": {\"input\": \"a b\"}}\n"
             "</tool_call><tool_call>\n{\"name\": \"mcp__sky__look\", \"arguments\": {}}\n"
             "</tool_call><tool_call>\n{\"name\": \"tool_search\", \"arguments\": "
             "{\"query\": \"q\"}}\n</tool_call>"));
  const Json shape = Json::parse(R"([
      {"type": "custom_tool_call", "id": "<string>", "call_id": "<string>", "name": "patch",
       "input": "a b", "status": "completed"},
      {"type": "function_call", "id": "<string>", "call_id": "<string>", "name": "look",
       "namespace": "mcp__sky", "arguments": "{}", "status": "completed"},
      {"type": "tool_search_call", "id": "<string>", "call_id": "<string>",
       "execution": "client", "arguments": {"query": "q"}, "status": "completed"}])");
  EXPECT_EQ(Mismatch(Response(body)["output"], shape), "");
  body["stream"] = true;
  const std::vector<Event> events = service().Ok("/v1/responses", body).events;
  EXPECT_EQ(Mismatch(events.back().data["response"]["output"], shape), "");
  std::vector<std::string> names = NamesOf(events);
  names.pop_back();
  names.erase(names.begin(), names.begin() + 2);
  EXPECT_EQ(names, (std::vector<std::string>{
                       "response.output_item.added", "response.custom_tool_call_input.delta",
                       "response.custom_tool_call_input.done", "response.output_item.done",
                       "response.output_item.added", "response.function_call_arguments.delta",
                       "response.function_call_arguments.done", "response.output_item.done",
                       "response.output_item.added", "response.output_item.done"}));
  body = With(
      body, {{"stream", false},
             {"guided_regex", nullptr},
             {"tool_choice", {{"type", "function"}, {"name", "look"}, {"namespace", "mcp__sky"}}}});
  EXPECT_EQ(Response(body)["output"][0]["namespace"], "mcp__sky");
}

// Told so by an event, Codex sums up the history; at a status of 400 it gives up.
TEST_F(ResponsesTest, AStreamSaysThatAPromptIsTooLong) {
  std::string text;
  for (int i = 0; i < 1100; ++i) text += "cat ";
  Json body = {{"input", text}};
  EXPECT_EQ(service().Post("/v1/responses", body).status(), 400);
  body["stream"] = true;
  const std::vector<Event> events = service().Ok("/v1/responses", body).events;
  EXPECT_EQ(NamesOf(events), (std::vector<std::string>{"response.created", "response.in_progress",
                                                       "error", "response.failed"}));
  for (size_t i = 0; i < events.size(); ++i) EXPECT_EQ(events[i].data["sequence_number"], i);
  const Json& error = events[2].data["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_EQ(error["param"], "input");
  const Json& response = events[3].data["response"];
  EXPECT_EQ(response["status"], "failed");
  EXPECT_EQ(response["error"], (Json{{"code", error["code"]}, {"message", error["message"]}}));
  body["model"] = "another";  // other errors have a status of their own
  EXPECT_EQ(service().Post("/v1/responses", body).status(), 404);
}

TEST_F(ResponsesTest, AnswersThatAreCutAreIncomplete) {
  for (const bool stream : {false, true}) {
    const Reply reply = service().Ok("/v1/responses", {{"input", "What?"},
                                                       {"max_output_tokens", 3},
                                                       {"stream", stream},
                                                       {"logit_bias", {{"1", -100}}}});
    const Json response = stream ? reply.events.back().data["response"] : reply.json;
    if (stream) {
      EXPECT_EQ(reply.events.back().name, "response.incomplete");
    }
    EXPECT_EQ(response["status"], "incomplete");
    EXPECT_EQ(response["incomplete_details"]["reason"], "max_output_tokens");
    EXPECT_EQ(response["usage"]["output_tokens"], 3);
  }
}

// Blanks behind a call are not part of it.
TEST_F(ResponsesTest, ACallThatIsWholeIsCompleteWhereverTheAnswerEnds) {
  const std::string call = Saying(CallAlone())["guided_regex"];
  for (const bool stream : {false, true}) {
    const Json more = {{"guided_regex", call + "\n{900}"}, {"stream", stream}};
    const Reply reply = service().Ok("/v1/responses", With(ResponsesBody("What?"), more));
    const Json response = stream ? reply.events.back().data["response"] : reply.json;
    EXPECT_EQ(response["status"], "incomplete");
    EXPECT_EQ(response["output"].back()["type"], "function_call");
    EXPECT_EQ(response["output"].back()["status"], "completed");
  }
}

TEST_F(ResponsesTest, ConversationsComeWhole) {
  Json body = ResponsesBody("");
  body["instructions"] = "Be kind.";
  body["input"] = Json::parse(R"([{"role": "user", "content": "Look!"},
      {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
      {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{\"at\": \"sea\"}"},
      {"type": "function_call_output", "call_id": "c1", "output": "Waves"},
      {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Well?"}]}])");
  EXPECT_EQ(Response(With(body, Saying("Waves.")))["output"][0]["content"][0]["text"], "Waves.");
  body["tool_choice"] = Json::parse(R"({"type": "function", "name": "look"})");
  const Json called = Response(body)["output"];
  ASSERT_EQ(called.back()["type"], "function_call");
  EXPECT_THAT(called.back()["arguments"].get<std::string>(), testing::ContainsRegex("sky|sea"));
}

TEST_F(ResponsesTest, TextHasTheFormat) {
  const Json format = Json::parse(R"({"format": {"type": "json_schema", "name": "x", "schema": {
      "type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
      "additionalProperties": false}}})");
  const Json output = Response({{"input", "Is it?"}, {"text", format}})["output"];
  EXPECT_TRUE(Json::parse(output[0]["content"][0]["text"].get<std::string>())["ok"].is_boolean());
}

TEST_F(ResponsesTest, WhatIsStoredNowhereIsRefused) {
  for (const auto& [name, value] :
       std::vector<std::pair<const char*, Json>>{{"previous_response_id", "resp_1"},
                                                 {"text", 5},
                                                 {"text", {{"format", 5}}},
                                                 {"reasoning", "high"},
                                                 {"reasoning", {{"effort", 5}}},
                                                 {"tools", {{"a", 1}}},
                                                 {"tool_choice", 5},
                                                 {"input", 5},
                                                 {"input", Json::array({5})}}) {
    Json body = {{"input", "Hi"}};
    body[name] = value;
    const Reply reply = service().Post("/v1/responses", body);
    EXPECT_EQ(reply.status(), 400) << name << value;
    if (reply.status() == 400) {
      EXPECT_THAT(reply.param(), testing::StartsWith(name)) << reply.http.body;
    }
  }
}

// Agents count the events of a stream, not its comments, and ask again where none comes.
TEST(QuietStreams, SayThatTheyAreAlive) {
  TestSetup setup;
  setup.http.limits.keep_alive = std::chrono::milliseconds(20);
  setup.runs = false;
  TestService service(setup);
  const auto waiting = [&](const char* path, const Json& body, const std::string& sign) {
    http::Client client(service.server());
    client.Send(TestService::Request("POST", path, With(body, {{"stream", true}}).dump()));
    const auto reported = [&](const std::string& text) {
      while (client.buffer().find(text) == std::string::npos) {
        if (!client.Receive()) return false;
      }
      return true;
    };
    EXPECT_TRUE(reported(sign)) << path << client.buffer();
  };
  const Json messages = Json::array({Json{{"role", "user"}, {"content", "a"}}});
  waiting("/v1/messages", {{"messages", messages}, {"max_tokens", 1}},
          "event: ping\ndata: {\"type\": \"ping\"}\n\n");
  waiting("/v1/responses", {{"input", "a"}},
          "event: response.in_progress\ndata: {\"type\":\"response.in_progress\","
          "\"sequence_number\":3,");
  waiting("/v1/chat/completions", {{"messages", messages}}, ": keep-alive\n\n");
}

}  // namespace
}  // namespace nibble::serve
