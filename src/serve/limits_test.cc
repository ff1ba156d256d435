// SPDX-License-Identifier: Apache-2.0
// Each number that a request can say, at its limits, beyond them and as other types: an answer or a
// 400 that names the field.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "serve/serve_testing.h"

namespace nibble::serve {
namespace {

struct NumberField {
  const char* name;
  double min, max;
  bool integer = true;
};
constexpr double kTwo32 = 4294967296, kTwo63 = 9223372036854775808.0;
constexpr NumberField kSamplingFields[] = {
    {"temperature", 0, 100, false}, {"top_p", 0, 1, false}, {"top_k", -1, kTwo32}};
constexpr NumberField kMoreSamplingFields[] = {
    {"min_p", 0, 1, false},
    {"typical_p", 1e-6, 1, false},
    {"presence_penalty", -100, 100, false},
    {"frequency_penalty", -100, 100, false},
    {"repetition_penalty", 0.01, 100, false},
    {"seed", -kTwo63, 2 * kTwo63},
    {"n", 1, 16},
    {"min_tokens", 0, kTwo32},
};

struct LimitCase {
  const char* path;
  const char* body;
  std::vector<NumberField> fields;
};

std::vector<LimitCase> LimitCases() {
  std::vector<LimitCase> cases = {
      {"/v1/completions",
       R"({"prompt": "Hi", "max_tokens": 1})",
       {{"max_tokens", 0, kTwo32},
        {"logprobs", 0, 20},
        {"prompt_logprobs", 0, 20},
        {"truncate_prompt_tokens", 1, kTwo32},
        {"best_of", 1, 1}}},
      {"/v1/chat/completions",
       R"({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "logprobs": true})",
       {{"max_tokens", 1, kTwo32}, {"max_completion_tokens", 1, kTwo32}, {"top_logprobs", 0, 20}}},
      {"/v1/messages",
       R"({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1})",
       {{"max_tokens", 1, kTwo32}}},
      {"/v1/responses",
       R"({"input": "Hi", "max_output_tokens": 1})",
       {{"max_output_tokens", 1, kTwo32}}},
  };
  for (LimitCase& c : cases) {
    for (const NumberField& f : kSamplingFields) c.fields.push_back(f);
  }
  for (LimitCase* c : {&cases[0], &cases[1]}) {
    for (const NumberField& f : kMoreSamplingFields) c->fields.push_back(f);
  }
  return cases;
}

std::string Spelled(double value, bool integer) {
  return integer && std::fabs(value) < 1e19 ? fmt::format("{:.0f}", value)
                                            : fmt::format("{}", value);
}

// Values to try in a field, as they stand in a request.
std::vector<std::string> Values(const NumberField& f) {
  std::vector<std::string> values = {"2147483648",
                                     "9223372036854775808",
                                     "-1",
                                     "1e308",
                                     "-1e308",
                                     "\"NaN\"",
                                     "\"5\"",
                                     "true",
                                     "[]",
                                     "{}",
                                     "null",
                                     "1.5",
                                     "18446744073709551616",
                                     "1e-320",
                                     "-0",
                                     "[1]",
                                     "\"\""};
  const double step = f.integer ? 1 : 1e-3 * std::max(1.0, std::fabs(f.max));
  for (const double value : {f.min, f.max, f.max + step, f.min - step}) {
    values.push_back(Spelled(value, f.integer));
  }
  return values;
}

// Returns whether the field takes a value, told from the documented range and the value's text
// alone.
bool IsGood(const NumberField& f, const std::string& text) {
  if (text == "null") return true;
  const Json value = Json::parse(text);
  if (!value.is_number() || (f.integer && !value.is_number_integer())) return false;
  const double number = value.get<double>();
  if (f.min == -kTwo63 && value.is_number_unsigned()) return true;
  return number >= f.min && number <= f.max;
}

class LimitsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    service_ = std::make_unique<TestService>(
        TestSetup{.scheduling = {.max_batch = 8, .pages = 60, .context = 40}});
  }
  static void TearDownTestSuite() { service_.reset(); }

  // The body with `"name": value` as its last field.
  static std::string BodyWith(const std::string& body, const std::string& name,
                              const std::string& value) {
    Json without = Json::parse(body);
    without.erase(name);
    std::string text = without.dump();
    text.insert(text.size() - 1,
                fmt::format("{}\"{}\": {}", without.empty() ? "" : ", ", name, value));
    return text;
  }
  static Reply Timed(const char* path, const std::string& body) {
    const auto start = std::chrono::steady_clock::now();
    Reply reply = service_->Send(TestService::Request("POST", path, body));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (reply.status() == 400) refusals_.push_back(took.count());
    return reply;
  }

  static inline std::unique_ptr<TestService> service_;
  static inline std::vector<double> refusals_;  // seconds
};

TEST_F(LimitsTest, NumbersAreTakenOrNamed) {
  for (const LimitCase& c : LimitCases()) {
    const bool anthropic = std::string_view(c.path) == "/v1/messages";
    for (const NumberField& f : c.fields) {
      for (const std::string& value : Values(f)) {
        const Reply reply = Timed(c.path, BodyWith(c.body, f.name, value));
        bool good = IsGood(f, value);
        if (anthropic && value == "null") good = std::string_view(f.name) != "max_tokens";
        EXPECT_EQ(reply.status(), good ? 200 : 400)
            << c.path << " " << f.name << " = " << value << " " << reply.http.body;
        if (reply.status() != 400) continue;
        if (!anthropic) {
          EXPECT_EQ(reply.param(), f.name) << value << " " << reply.http.body;
        }
        EXPECT_THAT(reply.http.body, testing::HasSubstr("\"message\"")) << value;
        if (anthropic) {
          EXPECT_THAT(reply.http.body, testing::HasSubstr(f.name)) << value;
        }
      }
    }
  }
  // A machine that others use may answer late at times, but not half of the time.
  std::ranges::sort(refusals_);
  EXPECT_LT(refusals_[refusals_.size() / 2], 0.1);
  EXPECT_LT(refusals_.back(), 2);
}

TEST_F(LimitsTest, BareNanIsNoJson) {
  for (const char* value : {"NaN", "Infinity", "-Infinity", "1e999", "0x10", "01", "+1", "1."}) {
    const Reply reply = Timed("/v1/completions", BodyWith("{\"prompt\": \"a\"}", "top_p", value));
    EXPECT_EQ(reply.status(), 400) << value;
  }
}

TEST_F(LimitsTest, OtherFieldsOfTheWrongTypeAreNamed) {
  constexpr std::pair<const char*, const char*> kWrong[] = {
      {"echo", "1"},
      {"echo", "\"true\""},
      {"stream", "1"},
      {"stream_options", "5"},
      {"stream_options", R"({"include_usage": 1})"},
      {"add_special_tokens", "0"},
      {"return_token_ids", "[]"},
      {"suffix", "\"x\""},
      {"suffix", "5"},
      {"ignore_eos", "1"},
      {"max_tokens", "3.5"},
      {"include_stop_str_in_output", "1"},
      {"skip_special_tokens", "\"\""},
      {"stop_token_ids", "5"},
      {"stop_token_ids", "[-1]"},
      {"stop_token_ids", "[4096]"},
      {"stop_token_ids", "[1.5]"},
      {"guided_regex", "5"},
      {"guided_grammar", "{}"}};
  for (const auto& [name, value] : kWrong) {
    const Reply reply = Timed("/v1/completions", BodyWith("{\"prompt\": \"a\"}", name, value));
    EXPECT_EQ(reply.status(), 400) << name << " = " << value << reply.http.body;
    if (reply.status() == 400) {
      EXPECT_EQ(reply.param(), name) << value << reply.http.body;
    }
  }
  const Json chat = {{"messages", Json::parse(R"([{"role": "user", "content": "a"}])")}};
  constexpr std::pair<const char*, const char*> kWrongChat[] = {
      {"tools", "5"},
      {"tools", "{}"},
      {"tools", "[5]"},
      {"tools", R"([{"type": "function"}])"},
      {"tools", R"([{"type": "function", "function": {"name": "a b"}}])"},
      {"tool_choice", "5"},
      {"tool_choice", "\"always\""},
      {"tool_choice", "[]"},
      {"tool_choice", R"({"function": 5})"},
      {"tool_choice", R"({"function": {"name": "none"}})"},
      {"tool_choice", "\"required\""},
      {"parallel_tool_calls", "1"},
      {"reasoning_effort", "5"},
      {"chat_template_kwargs", "[]"},
      {"chat_template_kwargs", R"({"messages": 1})"},
      {"chat_template_kwargs", R"({"tools": 1})"},
      {"chat_template_kwargs", R"({"bos_token": ""})"},
      {"chat_template_kwargs", R"({"x": [1]})"},
      {"chat_template_kwargs", R"({"x": {}})"},
      {"add_generation_prompt", "1"},
      {"continue_final_message", "1"},
      {"chat_template", "\"x\""},
      {"logprobs", "1"},
      {"stream", "\"\""},
      {"stream_options", "[]"},
      {"messages", "5"},
      {"messages", "{}"},
      {"messages", "[]"},
      {"messages", "[5]"},
      {"messages", "[{}]"},
      {"messages", R"([{"role": "alien", "content": "x"}])"},
      {"messages", R"([{"role": "user", "content": 5}])"},
      {"messages", R"([{"role": "user", "content": [{"type": "hologram"}]}])"},
      {"messages", R"([{"role": "assistant", "tool_calls": [{"function": 5}]}])"}};
  for (const auto& [name, value] : kWrongChat) {
    const Reply reply = Timed("/v1/chat/completions", BodyWith(chat.dump(), name, value));
    EXPECT_EQ(reply.status(), 400) << name << " = " << value << reply.http.body;
    if (reply.status() == 400) {
      EXPECT_EQ(reply.param(), name) << value << reply.http.body;
    }
  }
}

TEST_F(LimitsTest, UnknownFieldsAndToolsAreLeftOut) {
  const Json more = Json::parse(R"({"user": "me", "store": true, "metadata": {"a": [1, null]},
      "service_tier": "x", "prompt_cache_key": 5, "include": ["a"], "": {}})");
  service_->Ok("/v1/completions", With(more, {{"prompt", "a"}, {"max_tokens", 1}}));
  const Json messages = Json::parse(R"([{"role": "user", "content": "a", "cache_control": {}}])");
  const Json tools = Json::parse(R"([{"type": "web_search"}, {"type": "namespace", "tools": []},
      {"type": "mcp", "server_label": "x"}])");
  const Json chat = {{"messages", messages}, {"max_tokens", 1}};
  const auto plain = service_->Ok("/v1/chat/completions", chat).json["usage"]["prompt_tokens"];
  const Reply skipped =
      service_->Ok("/v1/chat/completions", With(With(more, chat), {{"tools", tools}}));
  EXPECT_EQ(skipped.json["usage"]["prompt_tokens"], plain);
  service_->Ok("/v1/responses",
               With(more, {{"input", "a"}, {"max_output_tokens", 1}, {"tools", tools}}));
  const Json own = Json::parse(R"([{"type": "bash_20250124", "name": "bash"}])");
  service_->Ok("/v1/messages", With(With(more, chat), {{"tools", own}}));
}

TEST_F(LimitsTest, ListsEndAtTheirLimits) {
  const auto status = [&](const char* path, const Json& body) {
    return Timed(path, body.dump()).status();
  };
  Json bias = Json::object();
  for (int i = 0; i < 1024; ++i) bias[std::to_string(2 + i)] = 0;
  const Json base = {{"prompt", "a"}, {"max_tokens", 1}};
  EXPECT_EQ(status("/v1/completions", With(base, {{"logit_bias", bias}})), 200);
  bias["3000"] = 0;
  EXPECT_EQ(status("/v1/completions", With(base, {{"logit_bias", bias}})), 400);
  Json messages = Json::array();
  for (int i = 0; i < 4097; ++i) messages.push_back({{"role", "user"}, {"content", ""}});
  const Reply many = service_->Post("/v1/chat/completions", {{"messages", messages}});
  EXPECT_EQ(many.param(), "messages");
  EXPECT_THAT(many.http.body, testing::HasSubstr("4096"));
  Json kwargs = Json::object();
  const Json chat = {{"messages", Json::parse(R"([{"role": "user", "content": "a"}])")},
                     {"max_tokens", 1}};
  for (int i = 0; i < 32; ++i) kwargs["a" + std::to_string(i)] = i;
  EXPECT_EQ(status("/v1/chat/completions", With(chat, {{"chat_template_kwargs", kwargs}})), 200);
  kwargs["b"] = 1;
  EXPECT_EQ(status("/v1/chat/completions", With(chat, {{"chat_template_kwargs", kwargs}})), 400);
  for (const size_t bytes : {256, 257}) {
    kwargs = {{"x", std::string(bytes, 'x')}};
    EXPECT_EQ(status("/v1/chat/completions", With(chat, {{"chat_template_kwargs", kwargs}})),
              bytes == 256 ? 200 : 400);
  }
}

TEST_F(LimitsTest, WhatWouldBeIgnoredIsRefused) {
  const auto param = [&](const char* path, const Json& body) {
    const Reply reply = service_->Post(path, body);
    EXPECT_EQ(reply.status(), 400) << body;
    return reply.param();
  };
  for (const int id : {-1, 1 << 30}) {
    EXPECT_EQ(param("/detokenize", {{"tokens", {id}}}), "tokens");
  }
  EXPECT_EQ(param("/v1/embeddings", {{"input", "a"}, {"dimensions", 5}}), "dimensions");
  EXPECT_EQ(param("/v1/completions", {{"prompt", "a"}, {"stop", {""}}}), "stop");
}

TEST_F(LimitsTest, LongTextsAreRefusedWithBothNumbers) {
  const std::string text(100000, 'a');
  const Json messages = Json::array({{{"role", "user"}, {"content", text}}});
  for (const Reply& reply :
       {service_->Post("/v1/completions", {{"prompt", text}}),
        service_->Post("/v1/chat/completions", {{"messages", messages}}),
        service_->Post("/v1/responses", {{"input", text}}),
        service_->Post("/v1/messages", {{"messages", messages}, {"max_tokens", 5}}),
        service_->Post("/v1/embeddings", {{"input", text}})}) {
    EXPECT_EQ(reply.status(), 400);
    EXPECT_THAT(reply.http.body, testing::HasSubstr("maximum context length is 40"));
  }
}

}  // namespace
}  // namespace nibble::serve
