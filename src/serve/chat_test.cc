// SPDX-License-Identifier: Apache-2.0
// /v1/chat/completions: messages, tools, reasoning and streams.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/rng.h"
#include "serve/serve_testing.h"

namespace nibble::serve {
namespace {

constexpr const char* kChatPath = "/v1/chat/completions";

Json UserSays(const std::string& text) {
  return {{"messages", Json::array({Json{{"role", "user"}, {"content", text}}})}};
}

const Json& LampTool() {
  static const Json tool = Json::parse(R"({"type": "function", "function": {"name": "set_lamp",
      "description": "Sets it.", "parameters": {"type": "object", "properties":
        {"mode": {"enum": ["on", "off"]}, "level": {"type": "integer", "minimum": 0, "maximum": 9}},
      "required": ["mode", "level"], "additionalProperties": false}}})");
  return tool;
}
const Json& DoorTool() {
  static const Json tool = Json::parse(R"({"type": "function", "function": {"name": "open_door",
      "parameters": {"type": "object", "properties": {"wide": {"type": "boolean"}},
      "required": ["wide"], "additionalProperties": false}}})");
  return tool;
}

constexpr const char* kLampCall =
    "<tool_call>\n{\"name\": \"set_lamp\", \"arguments\": {\"mode\": \"on\", \"level\": 3}}\n"
    "</tool_call>";

class ChatTest : public ServeTest {
 protected:
  static Json Whole(const Json& body) { return service().Ok(kChatPath, body).json; }
  static Json FirstChoice(const Json& body) { return Whole(body)["choices"][0]; }
  static int64_t TokensOf(const std::string& text) {
    return static_cast<int64_t>(service().tokenizer().Encode(text, false).size());
  }
};

// Joins the chunks of a stream into the choices and the usage of a whole answer.
Json JoinedDeltas(const std::vector<Event>& events, size_t choices) {
  Json whole = {{"choices", Json::array()}, {"usage", nullptr}};
  for (size_t i = 0; i < choices; ++i) {
    whole["choices"].push_back(
        {{"index", i}, {"message", nullptr}, {"logprobs", nullptr}, {"finish_reason", nullptr}});
  }
  EXPECT_EQ(events.back().data, "[DONE]");
  for (size_t e = 0; e + 1 < events.size(); ++e) {
    const Json& chunk = events[e].data;
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    EXPECT_EQ(chunk["id"], events[0].data["id"]);
    if (chunk["choices"].empty()) {
      EXPECT_EQ(e + 2, events.size());
      whole["usage"] = chunk["usage"];
      continue;
    }
    const Json& part = chunk["choices"][0];
    Json& choice = whole["choices"].at(part["index"].get<size_t>());
    Json& message = choice["message"];
    const Json& delta = part["delta"];
    if (message.is_null()) {
      EXPECT_EQ(delta, (Json{{"role", "assistant"}, {"content", ""}})) << "the role comes first";
      message = {{"role", "assistant"}, {"content", nullptr}};
      continue;
    }
    EXPECT_TRUE(choice["finish_reason"].is_null()) << "something follows an end";
    for (const char* field : {"content", "reasoning_content"}) {
      if (!delta.contains(field)) continue;
      const std::string before = message.value(field, Json()).is_string() ? message[field] : "";
      message[field] = before + delta[field].get<std::string>();
    }
    for (const Json& call : delta.value("tool_calls", Json::array())) {
      Json& calls = message["tool_calls"];
      const size_t index = call["index"];
      if (call.contains("id")) {
        EXPECT_EQ(index, calls.size());
        EXPECT_EQ(call["function"]["arguments"], "");
        calls.push_back(
            {{"id", call["id"]}, {"type", call["type"]}, {"function", call["function"]}});
      } else {
        Json& arguments = calls.at(index)["function"]["arguments"];
        arguments = arguments.get<std::string>() + call["function"]["arguments"].get<std::string>();
      }
    }
    if (part.contains("logprobs") && !part["logprobs"].is_null()) {
      for (const Json& item : part["logprobs"]["content"])
        choice["logprobs"]["content"].push_back(item);
    }
    choice["finish_reason"] = part["finish_reason"];
    if (!choice["finish_reason"].is_null()) {
      EXPECT_TRUE(delta.empty());
    }
  }
  return whole;
}

// Ids of calls are random, and an absent content means null.
void EraseIds(Json* choices) {
  for (Json& choice : *choices) {
    Json& message = choice["message"];
    if (message["content"] == "") message["content"] = nullptr;
    if (!message.contains("tool_calls")) continue;
    for (Json& call : message["tool_calls"]) {
      EXPECT_THAT(call["id"].get<std::string>(), testing::StartsWith("call_"));
      call.erase("id");
    }
  }
}

TEST_F(ChatTest, StreamsAreTheWholeInPieces) {
  Rng rng(2);
  const auto one_in = [&](uint64_t n) { return rng.Below(n) == 0; };
  const std::string scripts[] = {"Hello",
                                 kLampCall,
                                 std::string("Wait. ") + kLampCall,
                                 std::string(kLampCall) + "\n" + kLampCall,
                                 "<think>\nHm.\n</think>\nYes.",
                                 "<tool_call>\n{\"name\": \"x\"",
                                 "<think>\nHm.\n</think>\n" + std::string(kLampCall)};
  for (int round = 0; round < 16; ++round) {
    const size_t n = one_in(3) ? 2 : 1;
    Json body = With(UserSays("Light!"), {{"seed", rng.Below(100)}, {"n", n}, {"max_tokens", 150}});
    if (one_in(4)) {
      body["max_tokens"] = 1 + rng.Below(30);
    } else {
      body.update(Saying(scripts[rng.Below(std::size(scripts))]));
    }
    if (one_in(2)) body["tools"] = Json::array({LampTool(), DoorTool()});
    if (one_in(4)) body["max_tokens"] = 1 + rng.Below(40);
    if (one_in(3)) body.update(Json{{"logprobs", true}, {"top_logprobs", rng.Below(3)}});
    if (one_in(3)) body["stop"] = {"es", "lev"};
    if (one_in(4)) body["parallel_tool_calls"] = false;
    if (one_in(4)) body["reasoning_effort"] = "high";
    Json whole = Whole(body);
    body["stream"] = true;
    body["stream_options"] = {{"include_usage", true}};
    Json joined = JoinedDeltas(service().Ok(kChatPath, body).events, n);
    EraseIds(&whole["choices"]);
    EraseIds(&joined["choices"]);
    for (size_t i = 0; i < n; ++i) {
      for (const char* field : {"finish_reason", "message"}) {
        const auto same = [&](const Json& a, const Json& b) {
          return a.is_object() ? Mismatch(a, b) : (a == b ? "" : a.dump() + " and " + b.dump());
        };
        EXPECT_EQ(same(joined["choices"][i][field], whole["choices"][i][field]), "") << body;
      }
      EXPECT_EQ(joined["choices"][i]["logprobs"], whole["choices"][i]["logprobs"]) << body;
    }
    EXPECT_EQ(joined["usage"]["prompt_tokens"], whole["usage"]["prompt_tokens"]);
    // After the one call that is allowed, a step more or less may have run.
    if (!body.contains("parallel_tool_calls")) {
      EXPECT_EQ(joined["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]) << body;
    }
  }
}

TEST_F(ChatTest, CallsAreReadOutOfTheText) {
  const Json tools = {{"tools", Json::array({LampTool(), DoorTool()})}};
  const Json one = FirstChoice(With(With(UserSays("Light!"), tools), Saying(kLampCall)));
  EXPECT_EQ(one["finish_reason"], "tool_calls");
  EXPECT_EQ(
      Mismatch(one["message"], Json::parse(R"({"role": "assistant", "content": null, "tool_calls": [
                       {"id": "<string>", "type": "function", "function": {"name": "set_lamp",
                        "arguments": "{\"mode\": \"on\", \"level\": 3}"}}]})")),
      "");
  // A call is text if the request has no tools.
  const Json text = FirstChoice(With(UserSays("Light!"), Saying(kLampCall)));
  EXPECT_EQ(text["finish_reason"], "stop");
  EXPECT_EQ(text["message"]["content"], kLampCall);
  // A call that is cut must not be run: the answer does not end with "tool_calls".
  const Json stopped = FirstChoice(
      With(With(With(UserSays("Light!"), tools), Saying(kLampCall)), {{"stop", "\"on"}}));
  EXPECT_EQ(stopped["finish_reason"], "stop") << stopped;
  const Json behind =
      FirstChoice(With(With(UserSays("Light!"), tools), Saying(kLampCall + std::string("after"))));
  EXPECT_EQ(behind["finish_reason"], "tool_calls");
  EXPECT_EQ(behind["message"]["content"], "after") << "blanks in front of a call's end are its own";
  const std::string twice = std::string(kLampCall) + "\n" + kLampCall;
  const Json both = FirstChoice(With(With(UserSays("Light!"), tools), Saying(twice)));
  EXPECT_EQ(both["message"]["tool_calls"].size(), 2u);
  EXPECT_NE(both["message"]["tool_calls"][0]["id"], both["message"]["tool_calls"][1]["id"]);
  Json single = With(With(UserSays("Light!"), tools), Saying(twice));
  single["parallel_tool_calls"] = false;
  EXPECT_EQ(FirstChoice(single)["message"]["tool_calls"].size(), 1u);
  Json none = With(With(UserSays("Light!"), tools), Saying(kLampCall));
  none["tool_choice"] = "none";
  EXPECT_EQ(FirstChoice(none)["message"]["content"], kLampCall);
}

TEST_F(ChatTest, RequiredCallsFitTheirSchema) {
  Json body = UserSays("Light!");
  body["tools"] = Json::array({DoorTool(), LampTool()});
  std::set<std::string> called;
  for (int seed = 0; seed < 3; ++seed) {
    for (const Json& choice :
         {Json("required"),
          Json::parse(R"({"type": "function", "function": {"name": "set_lamp"}})"),
          Json::parse(R"({"type": "function", "name": "set_lamp"})")}) {
      const Json more = {
          {"tool_choice", choice}, {"seed", seed}, {"max_tokens", 200}, {"temperature", 1}};
      const Json answer = FirstChoice(With(body, more));
      ASSERT_EQ(answer["finish_reason"], "tool_calls") << answer;
      ASSERT_EQ(answer["message"]["tool_calls"].size(), 1u);
      const Json& function = answer["message"]["tool_calls"][0]["function"];
      const std::string name = function["name"];
      called.insert(name);
      const Json arguments = Json::parse(function["arguments"].get<std::string>());
      if (!choice.is_string()) {
        EXPECT_EQ(name, "set_lamp");
      }
      if (name == "open_door") {
        EXPECT_TRUE(arguments.size() == 1 && arguments["wide"].is_boolean());
        continue;
      }
      EXPECT_EQ(arguments.size(), 2u);
      EXPECT_TRUE(arguments["mode"] == "on" || arguments["mode"] == "off");
      EXPECT_TRUE(arguments["level"].is_number_integer() && arguments["level"] >= 0 &&
                  arguments["level"] <= 9);
    }
  }
  EXPECT_TRUE(called.contains("set_lamp"));
}

// A model made to call does call; one kept from calling writes what the format says.
TEST_F(ChatTest, CallsStayPossibleBesideAFormat) {
  TestService calling(
      {.renamed = {{"<|user|>", "<tool_call>"}, {"<|assistant|>", "</tool_call>"}}});
  const auto begin = std::to_string(*calling.tokenizer().TokenId("<tool_call>"));
  Json body = UserSays("Light!");
  body["tools"] = Json::array({DoorTool()});
  body["response_format"] = Json::parse(R"({"type": "json_schema", "json_schema": {"name": "n",
      "strict": true, "schema": {"type": "object", "properties": {"n": {"type": "integer"}},
      "required": ["n"], "additionalProperties": false}}})");
  const auto answer = [&](int bias, const Json& more) {
    const Json options = {{"max_tokens", 150}, {"temperature", 1}, {"logit_bias", {{begin, bias}}}};
    return calling.Ok(kChatPath, With(With(body, options), more)).json["choices"][0];
  };
  for (int seed = 0; seed < 3; ++seed) {
    const Json call = answer(40, {{"seed", seed}});
    ASSERT_EQ(call["message"]["tool_calls"][0]["function"]["name"], "open_door") << call;
    const Json text = answer(-100, {{"seed", seed}});
    EXPECT_TRUE(Json::parse(text["message"]["content"].get<std::string>())["n"].is_number())
        << text;
  }
  const Json none = answer(40, {{"tool_choice", "none"}});
  EXPECT_TRUE(Json::parse(none["message"]["content"].get<std::string>())["n"].is_number());
  // A keyword that the grammar cannot enforce is refused where the schema is strict.
  body["response_format"]["json_schema"]["schema"]["properties"]["n"] =
      Json::parse(R"({"type": "array", "items": {"type": "integer"}, "uniqueItems": true})");
  const Reply refused = calling.Post(kChatPath, body);
  EXPECT_EQ(refused.status(), 400);
  EXPECT_EQ(refused.param(), "response_format");
  EXPECT_THAT(refused.json["error"]["message"].get<std::string>(),
              testing::HasSubstr("properties.n: \"uniqueItems\""));
  body["response_format"]["json_schema"]["strict"] = false;
  EXPECT_TRUE(answer(-100, {})["message"]["content"].is_string());
}

// The one call that is allowed ends its answer and no other one.
TEST_F(ChatTest, AnswersBesideACallGoOn) {
  const std::string call = Saying(kLampCall)["guided_regex"];
  const Json more = {
      {"tools", {LampTool()}}, {"parallel_tool_calls", false},   {"n", 8}, {"seed", 1},
      {"temperature", 10},     {"guided_regex", call + "|y{90}"}};
  int calls = 0, texts = 0;
  const Json choices = Whole(With(UserSays("Light!"), more))["choices"];
  for (const Json& choice : choices) {
    const Json& message = choice["message"];
    ++(message.contains("tool_calls") ? calls : texts);
    if (!message.contains("tool_calls")) {
      EXPECT_EQ(message["content"], std::string(90, 'y'));
    }
  }
  EXPECT_TRUE(calls > 0 && texts > 0) << calls << " and " << texts;
}

// The model is made to begin calls; what it says behind a call is free until it begins another.
TEST_F(ChatTest, CallsThatAreBegunFitTheirSchema) {
  TestService calling(
      {.renamed = {{"<|user|>", "<tool_call>"}, {"<|assistant|>", "</tool_call>"}}});
  const auto begin = std::to_string(*calling.tokenizer().TokenId("<tool_call>"));
  Json body = UserSays("Light!");
  body["tools"] = Json::array({DoorTool(), LampTool()});
  for (int seed = 0; seed < 3; ++seed) {
    const Json more = {{"seed", seed},
                       {"max_tokens", 150},
                       {"temperature", 1},
                       {"ignore_eos", true},
                       {"logit_bias", {{begin, 30}}}};
    const Json answer = calling.Ok(kChatPath, With(body, more)).json["choices"][0];
    const Json& calls = answer["message"]["tool_calls"];
    ASSERT_GE(calls.size(), 2u) << answer;
    for (size_t i = 0; i + 1 < calls.size(); ++i) {  // the last one may be cut off
      const Json& function = calls[i]["function"];
      const Json arguments = Json::parse(function["arguments"].get<std::string>());
      if (function["name"] == "open_door") {
        EXPECT_TRUE(arguments.size() == 1 && arguments["wide"].is_boolean()) << arguments;
      } else {
        EXPECT_EQ(function["name"], "set_lamp");
        EXPECT_TRUE(arguments["level"].is_number_integer() && arguments["level"] <= 9) << arguments;
      }
    }
  }
}

TEST_F(ChatTest, ReasoningIsApart) {
  const Json answer =
      FirstChoice(With(UserSays("Why?"), Saying("<think>\nSo it is.\n</think>\n\nBecause.")));
  EXPECT_THAT(answer["message"]["reasoning_content"].get<std::string>(),
              testing::HasSubstr("So it is."));
  EXPECT_EQ(answer["message"]["content"], "Because.");
  // The template opens the reasoning where the request asks for it.
  Json opened = With(UserSays("Why?"), Saying("So.</think>Because."));
  opened["reasoning_effort"] = "low";
  const Json whole = Whole(opened);
  EXPECT_EQ(whole["choices"][0]["message"]["reasoning_content"], "So.");
  EXPECT_EQ(whole["choices"][0]["message"]["content"], "Because.");
  const int64_t reasoned = whole["usage"]["completion_tokens_details"]["reasoning_tokens"];
  EXPECT_GT(reasoned, 0);
  EXPECT_LT(reasoned, whole["usage"]["completion_tokens"].get<int64_t>());
  // The last token of the reasoning is held back, as it may begin a stop text that does not come:
  // it counts as a token of the text.
  const Json held = Whole(With(opened, {{"stop", ".</think>Bx"}}))["usage"];
  EXPECT_EQ(held["completion_tokens_details"]["reasoning_tokens"], reasoned - 1);
  opened.erase("reasoning_effort");
  opened["chat_template_kwargs"] = {{"enable_thinking", true}};
  EXPECT_EQ(FirstChoice(opened)["message"]["reasoning_content"], "So.");
}

TEST_F(ChatTest, LogprobsAreOfEachToken) {
  Json body =
      With(UserSays("Hi"),
           {{"max_tokens", 8}, {"temperature", 0}, {"logprobs", true}, {"top_logprobs", 2}});
  const Json choice = FirstChoice(body);
  const Json& list = choice["logprobs"]["content"];
  ASSERT_EQ(list.size(), 8u);
  std::string text;
  for (const Json& item : list) {
    EXPECT_EQ(Mismatch(item, Json::parse(R"({"token": "<string>", "logprob": "<number>",
        "bytes": ["<integer>", "..."], "top_logprobs": [{"token": "<string>",
        "logprob": "<number>", "bytes": ["<integer>", "..."]}, "..."]})")),
              "");
    ASSERT_EQ(item["top_logprobs"].size(), 2u);
    EXPECT_EQ(item["top_logprobs"][0]["token"], item["token"]) << "the likeliest was chosen";
    EXPECT_EQ(item["top_logprobs"][0]["logprob"], item["logprob"]);
    EXPECT_GE(item["logprob"], item["top_logprobs"][1]["logprob"]);
    for (const Json& byte : item["bytes"]) text += static_cast<char>(byte.get<int>());
  }
  EXPECT_EQ(choice["message"]["content"], text);
  body.erase("top_logprobs");
  EXPECT_TRUE(FirstChoice(body)["logprobs"]["content"][0]["top_logprobs"].empty());
}

TEST_F(ChatTest, PromptsAreWhatTheTemplateMakes) {
  const auto prompt = [&](const Json& more) {
    return Whole(With(With(UserSays("Hi"), {{"max_tokens", 1}}), more))["usage"]["prompt_tokens"];
  };
  const std::string begin = "<|begin_of_text|><|im_start|>user\nHi<|im_end|>\n";
  EXPECT_EQ(prompt({}), TokensOf(begin + "<|im_start|>assistant\n"));
  EXPECT_EQ(prompt({{"add_generation_prompt", false}}), TokensOf(begin));
  const Json unthinking = {{"chat_template_kwargs", {{"enable_thinking", false}}},
                           {"reasoning_effort", "high"}};
  EXPECT_EQ(prompt(unthinking), prompt({})) << "what is said outright wins";
  const Json parts =
      Json::parse(R"([{"role": "user", "content": [{"type": "text", "text": "Hi"}]}])");
  EXPECT_EQ(prompt({{"messages", parts}}), prompt({}));
  Json messages = UserSays("Hi")["messages"];
  messages.push_back({{"role", "assistant"}, {"content", "Once upon"}});
  const Json continued = {{"messages", messages}, {"continue_final_message", true}};
  EXPECT_EQ(prompt(continued), TokensOf(begin + "<|im_start|>assistant\nOnce upon"));
  messages.back() = Json::parse(R"({"role": "assistant", "content": null, "tool_calls":
      [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]})");
  const Reply none =
      service().Post(kChatPath, {{"messages", messages}, {"continue_final_message", true}});
  EXPECT_EQ(none.param(), "continue_final_message");
  const Reply whole = service().Post(
      kChatPath, {{"messages", messages}, {"stream_options", {{"include_usage", true}}}});
  EXPECT_EQ(whole.param(), "stream_options");
  EXPECT_EQ(prompt({{"messages", messages}}),
            TokensOf(begin + "<|im_start|>assistant\n<tool_call>\n{\"name\": \"f\", \"arguments\": "
                             "{}}\n</tool_call><|im_end|>\n<|im_start|>assistant\n"));
}

TEST_F(ChatTest, StopsAndLengthsSayWhy) {
  const Json cut =
      FirstChoice(With(UserSays("Hi"), {{"max_completion_tokens", 2}, {"max_tokens", 9}}));
  EXPECT_EQ(cut["finish_reason"], "length");
  Json stopped = With(UserSays("Hi"), Saying("one two three"));
  stopped["stop"] = Json::array({"two"});
  const Json choice = FirstChoice(stopped);
  EXPECT_EQ(choice["message"]["content"], "one ");
  EXPECT_EQ(choice["finish_reason"], "stop");
}

TEST(ChatService, ReasoningHasTheNameThatIsAskedFor) {
  TestSetup setup;
  setup.service.vllm_reasoning = true;
  TestService service(setup);
  const Json body = With(UserSays("Why?"), Saying("<think>\nSo.\n</think>\nBecause."));
  const Json message = service.Ok(kChatPath, body).json["choices"][0]["message"];
  EXPECT_TRUE(message.contains("reasoning"));
  EXPECT_FALSE(message.contains("reasoning_content"));
}

TEST(ChatService, AGrammarIsAboutWhatComesBehindReasoning) {
  TestService service({.renamed = {{"<|user|>", "</think>"}}});
  const auto end = std::to_string(*service.tokenizer().TokenId("</think>"));
  const Json more = {{"reasoning_effort", "low"},
                     {"guided_regex", "yes"},
                     {"temperature", 0},
                     {"logit_bias", {{end, 100}}}};
  const Json answer = service.Ok(kChatPath, With(UserSays("Is it?"), more)).json["choices"][0];
  EXPECT_EQ(answer["message"]["content"], "yes");
  EXPECT_FALSE(answer["message"].contains("reasoning_content"));
}

// Gemma ends a call with such a token and waits for the tool's answer.
TEST(ChatService, TokensThatEndCallsEndAnswers) {
  TestService service({.chat_template = std::string(kChatTemplate) + "{# <|tool_call> #}",
                       .renamed = {{"<|user|>", "<|tool_response>"}}});
  const auto end = std::to_string(*service.tokenizer().TokenId("<|tool_response>"));
  const Json whole =
      service.Ok(kChatPath, With(UserSays("Hi"), {{"logit_bias", {{end, 100}}}})).json;
  EXPECT_EQ(whole["usage"]["completion_tokens"], 1);
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "stop");
}

TEST(ChatService, MistralsIdsHaveNineCharacters) {
  TestService service({.chat_template = std::string(kChatTemplate) + "{# [TOOL_CALLS] #}"});
  const Json body = With(UserSays("Light!"), {{"tools", {LampTool()}}});
  const Json said = Saying(R"([TOOL_CALLS][{"name": "set_lamp", "arguments": {}}])");
  const Json message = service.Ok(kChatPath, With(body, said)).json["choices"][0]["message"];
  EXPECT_THAT(message["tool_calls"][0]["id"].get<std::string>(),
              testing::MatchesRegex("[a-zA-Z0-9]{9}"));
}

// A template that fails or renders too much text ends its own request alone.
TEST(ChatService, TemplatesThatFailAreTheRequestsFault) {
  for (const char* source :
       {"{{ raise_exception('roles must alternate') }}",
        "{% for i in range(100000) %}{{ messages[0].content * 1000 }}{% endfor %}"}) {
    TestService service({.chat_template = source});
    const Reply reply = service.Post(kChatPath, UserSays(std::string(1000, 'a')));
    EXPECT_EQ(reply.status(), 400) << reply.http.body;
    EXPECT_EQ(service.Get("/health").status(), 200);
  }
}

}  // namespace
}  // namespace nibble::serve
