// SPDX-License-Identifier: Apache-2.0
// /v1/completions: texts, their logprobs and their streams agree with each other and with the
// model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "base/rng.h"
#include "engine/log_sum_exp.h"
#include "serve/serve_testing.h"

namespace nibble::serve {
namespace {

constexpr const char* kPath = "/v1/completions";

class CompletionsTest : public ServeTest {
 protected:
  static Json Choices(const Json& body) { return service().Ok(kPath, body).json["choices"]; }
  static Json Choice(const Json& body) { return Choices(body)[0]; }
  static std::vector<int32_t> Ids(const std::string& text) {
    return service().tokenizer().Encode(text, true);
  }
};

// Joins the chunks of a stream into a whole answer.
Json JoinedChunks(const std::vector<Event>& events, size_t choices, bool usage) {
  Json whole = {{"choices", Json::array()}, {"usage", nullptr}};
  std::vector<Json> parts(choices);
  EXPECT_GE(events.size(), 2u);
  EXPECT_EQ(events.back().data, "[DONE]");
  for (size_t e = 0; e + 1 < events.size(); ++e) {
    const Json& chunk = events[e].data;
    EXPECT_EQ(chunk["object"], "text_completion");
    EXPECT_EQ(chunk["id"], events[0].data["id"]);
    if (chunk["choices"].empty()) {
      EXPECT_TRUE(usage && e + 2 == events.size());
      whole["usage"] = chunk["usage"];
      continue;
    }
    EXPECT_EQ(chunk.contains("usage"), usage);
    EXPECT_EQ(chunk["choices"].size(), 1u);
    const Json& choice = chunk["choices"][0];
    Json& part = parts.at(choice["index"]);
    if (part.is_null()) {
      part = choice;
      continue;
    }
    EXPECT_TRUE(part["finish_reason"].is_null()) << "something follows an end";
    part["text"] = part["text"].get<std::string>() + choice["text"].get<std::string>();
    for (const char* field : {"finish_reason", "stop_reason"}) part[field] = choice[field];
    if (!choice["logprobs"].is_null()) {
      for (const auto& [key, list] : choice["logprobs"].items()) {
        for (const Json& item : list) part["logprobs"][key].push_back(item);
      }
    }
    for (const Json& id : choice.value("token_ids", Json::array())) {
      part["token_ids"].push_back(id);
    }
  }
  for (Json& part : parts) whole["choices"].push_back(std::move(part));
  return whole;
}

TEST_F(CompletionsTest, StreamsAreTheWholeInPieces) {
  Rng rng(1);
  const auto one_in = [&](uint64_t n) { return rng.Below(n) == 0; };
  const Json prompts[] = {"The river", {"A house", "The"}, {5, 6, 7}, {{8, 9}, {10}}, ""};
  const size_t counts[] = {1, 2, 1, 2, 1};
  for (int round = 0; round < 24; ++round) {
    const size_t kind = rng.Below(std::size(prompts));
    const int n = one_in(3) ? 2 : 1;
    Json body = {{"prompt", prompts[kind]},
                 {"max_tokens", rng.Below(20)},
                 {"n", n},
                 {"seed", rng.Below(1000)},
                 {"return_token_ids", true},
                 {"temperature", one_in(2) ? 0.0 : 1.2}};
    if (one_in(2)) body["echo"] = true;
    if (one_in(2)) body["logprobs"] = rng.Below(4);
    if (one_in(2)) body["stop"] = {"the", "e", " a"};
    if (one_in(3)) body["stop"] = "s";
    if (one_in(3)) body["include_stop_str_in_output"] = true;
    if (one_in(4)) body["presence_penalty"] = 1.5;
    if (one_in(4)) body["top_k"] = 5;
    if (one_in(4)) body["min_tokens"] = 4;
    if (one_in(4)) body["logit_bias"] = {{"1", 8}};
    const Json whole = service().Ok(kPath, body).json;
    body["stream"] = true;
    body["stream_options"] = {{"include_usage", true}, {"continuous_usage_stats", one_in(2)}};
    const Json joined =
        JoinedChunks(service().Ok(kPath, body).events, counts[kind] * static_cast<size_t>(n), true);
    EXPECT_EQ(joined["choices"], whole["choices"]) << body;
    for (const char* field : {"prompt_tokens", "completion_tokens", "total_tokens"}) {
      EXPECT_EQ(joined["usage"][field], whole["usage"][field]) << body;
    }
    int64_t written = 0;
    for (const Json& choice : whole["choices"]) written += choice["token_ids"].size();
    EXPECT_EQ(whole["usage"]["completion_tokens"], written);
  }
}

TEST_F(CompletionsTest, StreamsHaveTheHeadersOfEvents) {
  const Json body = {{"prompt", "The"}, {"stream", true}, {"max_tokens", 1}};
  const Reply reply = service().Ok(kPath, body);
  EXPECT_EQ(reply.http.Field("content-type"), "text/event-stream");
  EXPECT_EQ(reply.http.Field("cache-control"), "no-cache");
  EXPECT_EQ(reply.http.Field("x-accel-buffering"), "no");
  JoinedChunks(reply.events, 1, false);
  for (const bool each : {false, true}) {
    const Json options = {{"include_usage", true}, {"continuous_usage_stats", each}};
    const Reply counted = service().Ok(kPath, With(body, {{"stream_options", options}}));
    EXPECT_EQ(counted.events[0].data["usage"].is_object(), each);
  }
  EXPECT_EQ(service().Post(kPath, {{"prompt", "x"}, {"stream_options", Json::object()}}).param(),
            "stream_options");
}

TEST_F(CompletionsTest, PromptsOfAllKindsSayTheSame) {
  const std::string text = "The river is";
  const Json greedy = {{"max_tokens", 6}, {"temperature", 0}};
  const std::string expected = Choice(With(greedy, {{"prompt", text}}))["text"];
  const std::vector<int32_t> ids = Ids(text);
  EXPECT_EQ(Choice(With(greedy, {{"prompt", ids}}))["text"], expected);
  const std::vector<int32_t> bare(ids.begin() + 1, ids.end());
  const Json without = Choice(With(greedy, {{"prompt", text}, {"add_special_tokens", false}}));
  EXPECT_EQ(without["text"], Choice(With(greedy, {{"prompt", bare}}))["text"]);
  Json batch = greedy;
  batch["prompt"] = Json::array({"A house", text, ids});
  batch["n"] = 2;
  const Json choices = Choices(batch);
  ASSERT_EQ(choices.size(), 6u);
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(choices[i]["index"], i);
  for (size_t i = 2; i < 6; ++i) EXPECT_EQ(choices[i]["text"], expected);
  const auto truncated = Choice(With(greedy, {{"prompt", ids}, {"truncate_prompt_tokens", 2}}));
  EXPECT_EQ(
      truncated["text"],
      Choice(With(greedy, {{"prompt", Json::array({ids[ids.size() - 2], ids.back()})}}))["text"]);
}

TEST_F(CompletionsTest, PromptsOfNoKindAreRefused) {
  for (const char* prompt :
       {"null", "5", "{}", "[]", "[[]]", "[\"a\", 5]", "[5, \"a\"]", "[1.5]", "[-1]", "[4096]",
        "[[1], [4096]]", "[4294967296]", "[null]", "[true]", "[[[1]]]", "[[1], \"a\", {}]"}) {
    const Reply reply = service().Post(kPath, {{"prompt", Json::parse(prompt)}});
    EXPECT_EQ(reply.status(), 400) << prompt << reply.http.body;
    EXPECT_EQ(reply.param(), "prompt") << prompt << reply.http.body;
  }
  const Reply empty = service().Post(kPath, {{"prompt", ""}, {"add_special_tokens", false}});
  EXPECT_EQ(empty.param(), "prompt");
  // The message tells the prompt's length and the limit.
  const Reply long_one = service().Post(kPath, {{"prompt", std::vector<int>(1025, 5)}});
  EXPECT_EQ(long_one.status(), 400);
  EXPECT_EQ(long_one.json["error"]["code"], "context_length_exceeded");
  EXPECT_THAT(long_one.http.body,
              testing::HasSubstr("1025 tokens; this model's maximum context length is 1024"));
  const Reply unknown = service().Post(kPath, {{"prompt", Json::array({4096})}});
  EXPECT_NE(unknown.json["error"]["code"], "context_length_exceeded");
}

// Evaluations ask for the logprobs of the prompt's tokens: they are the model's own, and the first
// token has none.
TEST_F(CompletionsTest, EchoedPromptsHaveTheModelsLogprobs) {
  const std::vector<int32_t> ids = Ids("The river was wide and the");
  const auto model = LoadModel(kTinyModel, "cpu", false);
  const std::vector<float> logits = AllLogits(*model, ids);
  for (const int max : {0, 1, 5}) {
    const Json choice =
        Choice({{"prompt", ids}, {"max_tokens", 0}, {"echo", true}, {"logprobs", max}});
    EXPECT_EQ(choice["finish_reason"], "length");
    EXPECT_EQ(choice["text"], service().tokenizer().Decode(ids, true));
    const Json& reported = choice["logprobs"];
    ASSERT_EQ(reported["token_logprobs"].size(), ids.size());
    EXPECT_TRUE(reported["token_logprobs"][0].is_null());
    EXPECT_TRUE(reported["top_logprobs"][0].is_null());
    for (size_t i = 1; i < ids.size(); ++i) {
      const std::span row(logits.data() + (i - 1) * 4096, 4096);
      const double expected = double{row[static_cast<size_t>(ids[i])]} - LogSumExp(row);
      EXPECT_EQ(reported["token_logprobs"][i], expected);
      if (max == 0) continue;
      const auto best = std::ranges::max_element(row) - row.begin();
      const Json& top = reported["top_logprobs"][i];
      EXPECT_GE(top.size(), 1u);
      EXPECT_LE(top.size(), static_cast<size_t>(max) + 1);
      const std::string text = service().tokenizer().Decode({{static_cast<int32_t>(best)}}, false);
      EXPECT_EQ(top.begin().key(), text);
    }
  }
  // An answer behind the prompt adds its tokens' logprobs.
  const Json more = Choice({{"prompt", ids}, {"max_tokens", 3}, {"echo", true}, {"logprobs", 0}});
  EXPECT_EQ(more["logprobs"]["token_logprobs"].size(), ids.size() + 3);
}

TEST_F(CompletionsTest, PromptLogprobsAreByToken) {
  const std::vector<int32_t> ids = Ids("The river");
  const Json choice = Choice({{"prompt", ids}, {"max_tokens", 1}, {"prompt_logprobs", 2}});
  const Json echoed = Choice({{"prompt", ids}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 1}});
  const Json& list = choice["prompt_logprobs"];
  ASSERT_EQ(list.size(), ids.size());
  EXPECT_TRUE(list[0].is_null());
  for (size_t i = 1; i < ids.size(); ++i) {
    EXPECT_GE(list[i].size(), 2u);
    EXPECT_LE(list[i].size(), 3u);
    EXPECT_EQ(list[i][std::to_string(ids[i])]["logprob"], echoed["logprobs"]["token_logprobs"][i]);
  }
  EXPECT_EQ(
      service().Post(kPath, {{"prompt", ids}, {"stream", true}, {"prompt_logprobs", 1}}).param(),
      "prompt_logprobs");
}

// Tokens that are pieces of characters are all told as U+FFFD: its logprob is that of the likeliest
// of them.
TEST_F(CompletionsTest, TokensOfOneTextAreToldByTheArgMax) {
  const std::vector<int32_t> ids =
      service().tokenizer().Encode("\xF0\x9F\x98\x80\xE2\x97\x8A", false);
  const Json choice = Choice({{"prompt", ids},
                              {"max_tokens", 0},
                              {"echo", true},
                              {"logprobs", 1},
                              {"prompt_logprobs", 20}});
  const Json& reported = choice["logprobs"];
  size_t hidden = 0;
  for (size_t i = 1; i < ids.size(); ++i) {
    EXPECT_EQ(reported["text_offset"][i], i);
    std::map<std::string, double> likeliest;
    const Json& by_id = choice["prompt_logprobs"][i];
    EXPECT_GE(by_id.size(), 20u);
    for (const Json& entry : by_id) {
      const std::string text = entry["decoded_token"];
      const double logprob = entry["logprob"];
      const auto [known, is_new] = likeliest.emplace(text, logprob);
      known->second = std::max(known->second, logprob);
      hidden += !is_new;
    }
    EXPECT_EQ((reported["top_logprobs"][i].get<std::map<std::string, double>>()), likeliest);
  }
  EXPECT_GT(hidden, 0u) << "no two of these tokens have one text";
}

TEST_F(CompletionsTest, OffsetsAreWhereTokensBegin) {
  for (const bool echo : {false, true}) {
    const Json choice = Choice({{"prompt", "The river"},
                                {"add_special_tokens", false},
                                {"max_tokens", 20},
                                {"echo", echo},
                                {"logprobs", 0},
                                {"temperature", 0}});
    const std::string text = choice["text"];
    const Json& reported = choice["logprobs"];
    ASSERT_TRUE(std::ranges::all_of(text, [](char c) { return c > 0; })) << "characters are bytes";
    for (size_t i = 0; i < reported["tokens"].size(); ++i) {
      const std::string token = reported["tokens"][i];
      EXPECT_EQ(text.substr(reported["text_offset"][i], token.size()), token);
    }
  }
}

TEST_F(CompletionsTest, StopsEndTheTextBeforeThem) {
  const Json body = {{"prompt", "The river"}, {"max_tokens", 40}, {"temperature", 0}};
  const std::string whole = Choice(body)["text"];
  ASSERT_GT(whole.size(), 30u);
  for (size_t at = 2; at < 26; at += 4) {
    const std::string stop = whole.substr(at, 4);
    const Json cut = Choice(With(body, {{"stop", Json::array({"\x01", stop})}}));
    EXPECT_EQ(cut["text"], whole.substr(0, whole.find(stop)));
    EXPECT_EQ(cut["finish_reason"], "stop");
    EXPECT_EQ(cut["stop_reason"], stop);
    const Json kept = Choice(With(body, {{"stop", stop}, {"include_stop_str_in_output", true}}));
    EXPECT_EQ(kept["text"], whole.substr(0, whole.find(stop) + 4));
  }
  const std::vector<std::string> many(17, "x");
  for (const Json& bad : {Json(5), Json({5}), Json(many), Json(std::string(257, 'x')),
                          Json({{"a", 1}}), Json(true)}) {
    EXPECT_EQ(service().Post(kPath, With(body, {{"stop", bad}})).param(), "stop") << bad;
  }
  service().Ok(kPath, With(body, {{"stop", std::vector<std::string>(16, std::string(256, 'x'))},
                                  {"max_tokens", 1}}));
}

TEST_F(CompletionsTest, SeedsDecide) {
  const Json body = {{"prompt", "The"}, {"max_tokens", 12}, {"temperature", 1.5}};
  const auto text = [&](const Json& seed) { return Choice(With(body, {{"seed", seed}}))["text"]; };
  EXPECT_EQ(text(5), text(5));
  EXPECT_EQ(text(-5), text(-5));
  std::set<std::string> texts;
  for (int seed = 0; seed < 5; ++seed) texts.insert(text(seed));
  for (int i = 0; i < 3; ++i) texts.insert(text(nullptr));
  EXPECT_EQ(texts.size(), 8u);
  const Json several = Choices(With(body, {{"seed", 5}, {"n", 3}}));
  EXPECT_EQ(several[0]["text"], text(5));
  EXPECT_NE(several[1]["text"], several[2]["text"]);
}

TEST_F(CompletionsTest, BiasesAndEnds) {
  const auto ask = [&](const Json& more) {
    return Choice(With({{"prompt", "The"}, {"max_tokens", 5}, {"return_token_ids", true}}, more));
  };
  const Json biased = ask({{"logit_bias", {{"77", 100}}}});
  EXPECT_EQ(biased["token_ids"], Json::array({77, 77, 77, 77, 77}));
  const Json ended = ask({{"logit_bias", {{"1", 100}}}});
  EXPECT_EQ(ended["token_ids"], Json::array({1}));
  EXPECT_EQ(ended["text"], "");
  EXPECT_EQ(ended["finish_reason"], "stop");
  // Numbers as other clients write them.
  EXPECT_EQ(ask({{"max_tokens", 3.0}, {"top_p", 0}, {"temperature", 1}, {"top_k", 5.0}})["text"],
            ask({{"max_tokens", 3}, {"temperature", 0}})["text"]);
  const Json ignored = ask({{"logit_bias", {{"1", 100}}}, {"ignore_eos", true}});
  EXPECT_EQ(ignored["token_ids"].size(), 5u);
  EXPECT_EQ(ignored["finish_reason"], "length");
  const Json later = ask({{"logit_bias", {{"1", 100}}}, {"min_tokens", 3}});
  EXPECT_EQ(later["token_ids"].size(), 4u);
  const Json own = ask({{"logit_bias", {{"77", 100}}}, {"stop_token_ids", {77}}});
  EXPECT_EQ(own["token_ids"], Json::array({77}));
  const Json both = ask({{"logit_bias", {{"1", 100}}}, {"stop_token_ids", {77}}});
  EXPECT_EQ(both["token_ids"], Json::array({1})) << "the model's ends stay";
  EXPECT_EQ(ask({{"logit_bias", {{"1", 100}}},
                 {"skip_special_tokens", false},
                 {"ignore_eos", true}})["text"]
                .get<std::string>()
                .substr(0, 15),
            "<|end_of_text|>");
  for (const char* bad : {R"({"x": 1})", R"({"-1": 1})", R"({"4096": 1})", R"({"5": 101})",
                          R"({"5": -101})", R"({"5": "1"})", R"({"5": null})", R"({"": 1})",
                          R"({"99999999999": 1})", R"({"5 ": 1})", "[]", "5"}) {
    const Json bias = Json::parse(bad);
    const Reply reply = service().Post(kPath, {{"prompt", "x"}, {"logit_bias", bias}});
    EXPECT_EQ(reply.status(), 400) << bad;
    EXPECT_THAT(reply.param(), testing::StartsWith("logit_bias")) << bad;
  }
}

TEST_F(CompletionsTest, FormatsAreKept) {
  const Json base = {{"prompt", "The"}, {"max_tokens", 200}, {"temperature", 1}};
  for (int seed = 0; seed < 3; ++seed) {
    const auto text = [&](const Json& more) {
      const Json choice = Choice(With(With(base, {{"seed", seed}}), more));
      EXPECT_EQ(choice["finish_reason"], "stop");
      return choice["text"].get<std::string>();
    };
    const std::string matched =
        text({{"response_format", {{"type", "regex"}, {"pattern", "[a-c]{3}-[0-9]{2}(x|yz)"}}}});
    EXPECT_TRUE(std::regex_match(matched, std::regex("[a-c]{3}-[0-9]{2}(x|yz)"))) << matched;
    const Json schema = Json::parse(R"({"type": "object", "properties": {
        "kind": {"enum": ["cat", "dog"]}, "age": {"type": "integer", "minimum": 0, "maximum": 30},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}},
        "required": ["kind", "age", "tags"], "additionalProperties": false})");
    for (const Json& more : {Json{{"guided_json", schema}},
                             Json{{"response_format",
                                   {{"type", "json_schema"},
                                    {"json_schema", {{"name", "x"}, {"schema", schema}}}}}}}) {
      const Json value = Json::parse(text(more));
      EXPECT_EQ(value.size(), 3u);
      EXPECT_TRUE(value["kind"] == "cat" || value["kind"] == "dog");
      EXPECT_TRUE(value["age"].is_number_integer() && value["age"] >= 0 && value["age"] <= 30);
      EXPECT_LE(value["tags"].size(), 3u);
      for (const Json& tag : value["tags"]) EXPECT_TRUE(tag.is_boolean());
    }
  }
  const Json longer = With(With(base, Saying("ab")), {{"min_tokens", 9}});
  EXPECT_EQ(Choice(longer)["text"], "ab") << "nothing else may come";
  EXPECT_EQ(Choice(With(base, Saying("a (b) [c] {d} $1.50\\n")))["text"], "a (b) [c] {d} $1.50\\n");
}

TEST_F(CompletionsTest, FormatsThatAreNoneAreRefused) {
  for (const char* format :
       {R"(5)", R"("json_object")", R"({})", R"({"type": "xml"})", R"({"type": 5})",
        R"({"type": "json_schema"})", R"({"type": "json_schema", "json_schema": {}})",
        R"({"type": "json_schema", "json_schema": 5})",
        R"({"type": "json_schema", "json_schema": {"schema": 5}})",
        R"({"type": "json_schema", "json_schema": {"schema": {"type": "alien"}}})",
        R"({"type": "regex"})", R"({"type": "regex", "pattern": "("})",
        R"({"type": "regex", "pattern": "a{5,2}"})",
        R"({"type": "grammar", "grammar": "not a grammar"})"}) {
    const Json body = {{"prompt", "x"}, {"response_format", Json::parse(format)}};
    const Reply reply = service().Post(kPath, body);
    EXPECT_EQ(reply.status(), 400) << format << reply.http.body;
    if (reply.status() == 400) {
      EXPECT_THAT(reply.param(), testing::StartsWith("response_format")) << format;
    }
  }
}

// The bias makes every text behind "x" a row of a's, which the grammar can derive in too many ways;
// answers behind "y" would have gone on.
TEST_F(CompletionsTest, AnswersBesideOneThatFailsAreNotWritten) {
  const uint64_t before = service().stats().ended[static_cast<size_t>(End::kCancelled)];
  const Reply reply =
      service().Post(kPath, {{"prompt", "The"},
                             {"n", 8},
                             {"seed", 1},
                             {"temperature", 10},
                             {"max_tokens", 500},
                             {"logit_bias", {{std::to_string(Ids("a").back()), 100}}},
                             {"guided_grammar",
                              "root ::= \"x\" deep | \"y\"{400}\n"
                              "deep ::= \"a\" deep \"b\" | \"a\" deep \"c\" | \"a\""}});
  EXPECT_EQ(reply.status(), 500) << reply.http.body;
  EXPECT_THAT(reply.http.body, testing::HasSubstr("too ambiguous"));
  EXPECT_TRUE(service().Quiet());
  EXPECT_GT(service().stats().ended[static_cast<size_t>(End::kCancelled)], before);
}

TEST_F(CompletionsTest, TokensOutOfTheCacheAreCountedOnce) {
  const Json body = {{"prompt", std::vector<int>(90, 7)}, {"max_tokens", 5}, {"ignore_eos", true}};
  service().Ok(kPath, body);
  const Json usage = service().Ok(kPath, body).json["usage"];
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 89) << "the last one is run again";
}

TEST_F(CompletionsTest, ManyPromptsAtOnce) {
  Json body = {{"prompt", Json::array()}, {"max_tokens", 1}, {"temperature", 0}};
  for (int i = 0; i < 100; ++i) body["prompt"].push_back(Json::array({2 + i}));
  const Json choices = Choices(body);
  ASSERT_EQ(choices.size(), 100u);
  EXPECT_EQ(choices[60]["text"], Choice(With(body, {{"prompt", Json::array({62})}}))["text"]);
  // A request with more prompts than may ever wait is a 400: trying again is no use.
  for (int i = 0; i < 1000; ++i) body["prompt"].push_back("a");
  const Reply many = service().Post(kPath, body);
  EXPECT_EQ(many.status(), 400);
  EXPECT_EQ(many.param(), "prompt");
  while (body["prompt"].size() > 500) body["prompt"].erase(body["prompt"].size() - 1);
  body["n"] = 16;
  EXPECT_EQ(service().Post(kPath, body).status(), 400);
  EXPECT_TRUE(service().Quiet());
}

}  // namespace
}  // namespace nibble::serve
