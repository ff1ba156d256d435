// SPDX-License-Identifier: Apache-2.0
// Who is answered: keys, names of hosts, and a queue that is full.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/base64.h"
#include "serve/serve_testing.h"

namespace nibble::serve {
namespace {

constexpr std::pair<const char*, const char*> kEveryRoute[] = {
    {"GET", "/"},
    {"GET", "/health"},
    {"GET", "/metrics"},
    {"GET", "/props"},
    {"GET", "/v1/models"},
    {"GET", "/tokenizer_info"},
    {"POST", "/tokenize"},
    {"POST", "/detokenize"},
    {"POST", "/v1/completions"},
    {"POST", "/v1/chat/completions"},
    {"POST", "/v1/responses"},
    {"POST", "/v1/messages"},
    {"POST", "/v1/messages/count_tokens"},
    {"POST", "/v1/embeddings"},
    {"GET", "/there/is/none"},
    {"DELETE", "/v1/models"}};

TestSetup WithKeys(std::vector<std::string> keys) {
  TestSetup setup;
  setup.service.keys = std::move(keys);
  return setup;
}

TEST(ServiceKeys, EveryRouteWantsOne) {
  TestService service(WithKeys({"secret", "other key"}));
  const auto send = [&](const char* method, const char* path, const std::string& fields) {
    return service.Send(TestService::Request(method, path, "{}", fields));
  };
  const std::string good[] = {"Authorization: Bearer secret\r\n",
                              "authorization: bearer secret\r\n",
                              "x-api-key: secret\r\n",
                              "X-Api-Key: other key\r\n",
                              "Authorization: Basic " + EncodeBase64("me:secret") + "\r\n",
                              "Authorization: Basic " + EncodeBase64(":other key") + "\r\n"};
  const std::string bad[] = {"",
                             "Authorization: Bearer \r\n",
                             "Authorization: Bearer secre\r\n",
                             "Authorization: Bearer secret2\r\n",
                             "Authorization: secret\r\n",
                             "Authorization: Bearer Secret\r\n",
                             "x-api-key:\r\n",
                             "x-api-key: nothing\r\nAuthorization: Bearer secret\r\n",
                             "Authorization: Basic " + EncodeBase64("secret:") + "\r\n",
                             "Authorization: Basic !!!\r\n",
                             "Authorization: Basic\r\n",
                             "Cookie: key=secret\r\n"};
  for (const auto& [method, path] : kEveryRoute) {
    for (const std::string& fields : bad) {
      const Reply reply = send(method, path, fields);
      EXPECT_EQ(reply.status(), 401) << path << " " << fields;
      EXPECT_THAT(reply.http.Field("www-authenticate"), testing::StartsWith("Basic"));
      EXPECT_THAT(reply.http.body, testing::HasSubstr("authentication_error"));
      EXPECT_THAT(reply.http.body, testing::Not(testing::HasSubstr("secret")));
    }
    for (const std::string& fields : good) {
      EXPECT_NE(send(method, path, fields).status(), 401) << path << " " << fields;
    }
  }
  EXPECT_EQ(send("GET", "/health", good[0]).status(), 200);
  // With a key, the server may be called by any name.
  EXPECT_EQ(send("GET", "/health", good[0] + "Host: my.example\r\n").status(), 200);
  EXPECT_EQ(service.Send(TestService::Request("HEAD", "/health", "", "")).status(), 401);
}

TEST(ServiceHost, OthersNamesAreNotOurs) {
  TestService service;
  const auto status = [&](const std::string& host, const char* path = "/health") {
    return service.Send(TestService::Request("GET", path, "", "Host: " + host + "\r\n")).status();
  };
  for (const char* host :
       {"", "localhost", "localhost:8080", "127.0.0.1", "127.0.0.1:80", "[::1]", "[::1]:8080"}) {
    EXPECT_EQ(status(host), 200) << host;
  }
  for (const char* host :
       {"evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example",
        "127.0.0.2", "192.168.0.1", "[::2]", "localhost@evil.example"}) {
    EXPECT_THAT(status(host), testing::AnyOf(403, 400)) << host;
    EXPECT_THAT(status(host, "/none"), testing::AnyOf(403, 400)) << host;
  }
  EXPECT_EQ(status("evil.example"), 403);
  TestSetup setup;
  setup.service.local = false;
  TestService open(setup);
  EXPECT_EQ(open.Send(TestService::Request("GET", "/health", "", "Host: my.example\r\n")).status(),
            200);
}

TEST(TokenBudget, FillsSteadilyAndHoldsAMinute) {
  const TokenBudget::Time start{std::chrono::hours(1)};
  const auto after = [&](double seconds) {
    return start + std::chrono::duration_cast<TokenBudget::Time::duration>(
                       std::chrono::duration<double>(seconds));
  };
  TokenBudget budget(2, 600);  // ten a second
  budget.Charge(0, 599, start);
  EXPECT_EQ(budget.Wait(0, start), 0);
  budget.Charge(0, 201, start);  // 200 more than the minute's 600
  EXPECT_EQ(budget.Wait(0, start), 21);
  EXPECT_EQ(budget.Wait(0, after(19.5)), 1);
  EXPECT_EQ(budget.Wait(0, after(21)), 0);
  EXPECT_EQ(budget.Wait(1, start), 0) << "each key has its own";
  budget.Charge(0, 600, after(1000));  // the bucket held no more than a minute's tokens
  EXPECT_EQ(budget.Wait(0, after(1000)), 1);
  TokenBudget any(1, 0);
  any.Charge(0, int64_t{1} << 40, start);
  EXPECT_EQ(any.Wait(0, start), 0);
}

TEST(ServiceKeys, HaveSoManyTokensAMinute) {
  TestSetup setup;
  setup.service.keys = {"one", "two"};
  setup.service.key_tokens = 60;  // one a second
  TestService service(setup);
  const auto ask = [&](const std::string& key, int64_t max_tokens, const Json& prompt = "a") {
    const Json body = {{"prompt", prompt}, {"max_tokens", max_tokens}, {"ignore_eos", true}};
    return service.Send(TestService::Request("POST", "/v1/completions", body.dump(),
                                             "Authorization: Bearer " + key + "\r\n"));
  };
  EXPECT_EQ(ask("one", 50).status(), 200);
  EXPECT_EQ(ask("one", 100).status(), 200) << "some were left, if fewer";
  const Reply refused = ask("one", 1);
  EXPECT_EQ(refused.status(), 429);
  EXPECT_EQ(refused.json["error"]["code"], "rate_limit_exceeded");
  const int64_t wait = std::stoll(refused.http.Field("retry-after"));
  EXPECT_GE(wait, 1);
  EXPECT_LE(wait, 100) << "some 95 tokens were owed";
  EXPECT_THAT(refused.http.body, testing::HasSubstr(fmt::format("try again in {} s", wait)));
  EXPECT_EQ(ask("two", 1).status(), 200);
  EXPECT_EQ(ask("two", 1, std::vector<int>(200, 5)).status(), 200);
  EXPECT_EQ(ask("two", 1).status(), 429) << "what is read counts as well";
  EXPECT_TRUE(service.Quiet());
}

// All users may share one key: then their addresses take turns.
TEST(ServiceKeys, ClientsOfOneKeyTakeTurns) {
  TestSetup setup = WithKeys({"secret"});
  setup.scheduling = {.max_batch = 1, .pages = 20};
  setup.runs = false;
  TestService service(setup);
  std::vector<std::unique_ptr<http::Client>> clients;
  for (const in_addr_t host : {1, 1, 1, 2}) {
    clients.push_back(std::make_unique<http::Client>(service.server(), 0, 0x7F000000 + host));
    clients.back()->Send(TestService::Request(
        "POST", "/v1/completions", R"({"prompt": "a", "max_tokens": 1})", "x-api-key: secret\r\n"));
    const auto count = static_cast<int64_t>(clients.size());
    ASSERT_TRUE(http::Eventually([&] { return service.stats().waiting == count; }));
  }
  for (int i = 0; i < 2; ++i) service->scheduler().Step();
  const auto answer = clients.back()->Answer();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->status, 200);
  while (service->scheduler().Step()) {
  }
}

TEST(ServiceQueue, WhatCannotWaitIsToldToComeAgain) {
  TestService service(
      {.scheduling = {.max_batch = 2, .max_waiting = 3, .pages = 20}, .runs = false});
  std::vector<std::unique_ptr<http::Client>> waiting;
  const std::string request =
      TestService::Request("POST", "/v1/completions", R"({"prompt": "a", "max_tokens": 1})");
  for (int i = 0; i < 3; ++i) {
    waiting.push_back(std::make_unique<http::Client>(service.server()));
    waiting.back()->Send(request);
  }
  EXPECT_TRUE(http::Eventually([&] { return service.stats().waiting == 3; }));
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/v1/responses"}) {
    const Reply reply = service.Send(
        TestService::Request("POST", path, R"({"prompt": "a", "input": "a", "stream": true,
                          "messages": [{"role": "user", "content": "a"}]})"));
    EXPECT_EQ(reply.status(), 429) << path;
    EXPECT_EQ(reply.http.Field("retry-after"), "1");
    EXPECT_EQ(reply.json["error"]["type"], "rate_limit_error");
  }
  const Reply message = service.Send(
      TestService::Request("POST", "/v1/messages",
                           R"({"max_tokens": 1, "messages": [{"role": "user", "content": "a"}]})"));
  EXPECT_EQ(message.status(), 429);
  EXPECT_EQ(message.json["type"], "error");
  // Routes that need no step of the scheduler still answer.
  EXPECT_EQ(service.Get("/health").status(), 200);
  EXPECT_THAT(service.Get("/metrics").http.body,
              testing::HasSubstr("num_requests_waiting{engine=\"0\",model_name=\"tiny\"} 3\n"));
  // Once there is room the rest goes on. A list of prompts of which only some fit in the queue is
  // refused as a whole.
  while (service->scheduler().Step()) {
  }
  for (const auto& client : waiting) EXPECT_EQ(client->Answer()->status, 200);
  http::Client first(service.server());
  first.Send(request);
  EXPECT_TRUE(http::Eventually([&] { return service.stats().waiting == 1; }));
  EXPECT_EQ(service.Post("/v1/completions", {{"prompt", {"a", "b", "c"}}}).status(), 429);
  while (service->scheduler().Step()) {
  }
  EXPECT_EQ(first.Answer()->status, 200);
  EXPECT_TRUE(service.Quiet());
  EXPECT_EQ(service.stats().ended[static_cast<size_t>(End::kCancelled)], 2u);
}

TEST(ServiceStop, AnswersThatAreNotThereEndWithAnErrorInTheirDialect) {
  TestService service({.scheduling = {.max_batch = 8, .pages = 100}});
  const std::string common =
      R"("prompt": "a", "input": "a", "messages": [{"role": "user", "content": "a"}],
         "max_tokens": 900, "max_output_tokens": 900, "ignore_eos": true)";
  const std::pair<const char*, const char*> ends[] = {
      {"/v1/completions", "data: {\"error\":{"},
      {"/v1/chat/completions", "data: {\"error\":{"},
      {"/v1/messages", "event: error\ndata: {\"type\":\"error\",\"error\":{"},
      {"/v1/responses", "event: response.failed\ndata: {\"type\":\"response.failed\""}};
  std::vector<std::unique_ptr<http::Client>> streams, wholes;
  for (const auto& [path, unused] : ends) {
    for (auto* clients : {&streams, &wholes}) {
      clients->push_back(std::make_unique<http::Client>(service.server()));
      const char* stream = clients == &streams ? "true" : "false";
      clients->back()->Send(TestService::Request(
          "POST", path, fmt::format("{{{}, \"stream\": {}}}", common, stream)));
    }
  }
  EXPECT_TRUE(http::Eventually([&] { return service.stats().running == 8; }));
  service->scheduler().Stop();
  for (size_t i = 0; i < std::size(ends); ++i) {
    const auto reported = streams[i]->Answer();
    ASSERT_TRUE(reported.has_value()) << ends[i].first;
    EXPECT_EQ(reported->status, 200);
    EXPECT_THAT(reported->body, testing::HasSubstr(ends[i].second));
    EXPECT_THAT(reported->body, testing::HasSubstr("the server is stopping"));
    EXPECT_THAT(reported->body, testing::Not(testing::HasSubstr("[DONE]")));
    const std::vector<Event> events = EventsOf(reported->body);
    const Json& last = events.back().data;
    EXPECT_EQ(last.value("sequence_number", events.size() - 1), events.size() - 1);
    const auto whole = wholes[i]->Answer();
    ASSERT_TRUE(whole.has_value()) << ends[i].first;
    EXPECT_EQ(whole->status, 500);
    EXPECT_THAT(whole->body, testing::HasSubstr("the server is stopping"));
    const Reply later =
        service.Send(TestService::Request("POST", ends[i].first, fmt::format("{{{}}}", common)));
    const bool anthropic = std::string_view(ends[i].first) == "/v1/messages";
    EXPECT_EQ(later.status(), anthropic ? 529 : 503) << ends[i].first;
    EXPECT_EQ(later.http.Field("retry-after"), "1");
    EXPECT_THAT(later.http.body, testing::HasSubstr("the server is stopping"));
  }
}

}  // namespace
}  // namespace nibble::serve
