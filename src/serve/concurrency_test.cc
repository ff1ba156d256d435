// SPDX-License-Identifier: Apache-2.0
// Many clients at once: each gets the answer that it would get alone, the counters add up, and
// clients that leave early leave nothing running.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "base/rng.h"
#include "serve/serve_testing.h"

namespace nibble::serve {
namespace {

struct SentRequest {
  std::string path;
  Json body;
};

SentRequest RandomRequest(Rng& rng) {
  const auto one_in = [&](uint64_t n) { return rng.Below(n) == 0; };
  constexpr const char* kStarts[] = {"The river was wide and slow. ", "A house stood by the sea. ",
                                     "The river was wide and deep. "};
  std::string text;
  for (uint64_t i = 0; i <= rng.Below(12); ++i) text += kStarts[rng.Below(3)];
  SentRequest r = {"/v1/completions",
                   {{"seed", rng.Below(1000)}, {"max_tokens", 1 + rng.Below(24)}}};
  if (one_in(3)) r.body["temperature"] = 0;
  if (one_in(3)) r.body["stop"] = "e";
  if (one_in(4)) r.body["n"] = 3;
  if (one_in(3)) r.body["stream"] = true;
  if (one_in(6)) r.body.update(Saying("said and done"));
  if (one_in(8)) r.body["presence_penalty"] = 1;
  if (one_in(2)) {
    r.body["prompt"] = text;
    if (one_in(3)) r.body.update(Json{{"logprobs", 2}, {"echo", one_in(2)}});
    return r;
  }
  r.path = "/v1/chat/completions";
  r.body["messages"] = Json::array({Json{{"role", "user"}, {"content", text}}});
  if (one_in(3)) r.body.update(Json{{"logprobs", true}, {"top_logprobs", 1}});
  return r;
}

// All that an answer says except its id and its time; a stream gives the same however it is cut
// into chunks.
std::map<int64_t, std::string> SaidBy(const Reply& reply) {
  std::map<int64_t, std::string> said;
  EXPECT_EQ(reply.status(), 200) << reply.http.body;
  if (!reply.json.is_null()) {
    for (const Json& choice : reply.json["choices"]) said[choice["index"]] = choice.dump();
  }
  for (const Event& event : reply.events) {
    if (event.data == "[DONE]") continue;
    for (const Json& choice : event.data["choices"]) {
      std::string& text = said[choice["index"]];
      text += choice.value("text", "");
      if (choice.contains("delta")) text += choice["delta"].value("content", "");
      if (choice.contains("logprobs")) text += choice["logprobs"].dump();
      if (!choice["finish_reason"].is_null())
        text += "|" + choice["finish_reason"].get<std::string>();
    }
  }
  return said;
}

double MetricOf(const std::string& text, const std::string& name, const std::string& labels = "") {
  const std::string line = "vllm:" + name + "{engine=\"0\",model_name=\"tiny\"" + labels + "} ";
  const size_t at = text.find(line);
  EXPECT_NE(at, text.npos) << line;
  return at == text.npos ? -1 : std::stod(text.substr(at + line.size()));
}

TEST(ServiceCrowd, EachGetsWhatItGetsAlone) {
  TestService service;
  constexpr size_t kClients = 32, kEach = 2;
  std::vector<SentRequest> sent(kClients * kEach);
  std::vector<Reply> replies(sent.size());
  Rng rng(3);
  for (SentRequest& r : sent) r = RandomRequest(rng);
  std::vector<std::thread> clients;
  for (size_t c = 0; c < kClients; ++c) {
    clients.emplace_back([&, c] {
      for (size_t i = c * kEach; i < (c + 1) * kEach; ++i) {
        replies[i] = service.Post(sent[i].path, sent[i].body);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(service.Quiet());

  const std::string metrics = service.Get("/metrics").http.body;
  const SchedulerStats stats = service.stats();
  int64_t answers = 0, ended = 0;
  for (const SentRequest& r : sent) answers += r.body.value("n", 1);
  for (const char* reason : {"stop", "length", "abort", "error"}) {
    ended += static_cast<int64_t>(
        MetricOf(metrics, "request_success_total", fmt::format(",finished_reason=\"{}\"", reason)));
  }
  const auto count = static_cast<double>(answers);
  EXPECT_EQ(ended, answers);
  EXPECT_EQ(MetricOf(metrics, "num_requests_running"), 0);
  EXPECT_EQ(MetricOf(metrics, "num_requests_waiting"), 0);
  EXPECT_EQ(MetricOf(metrics, "kv_cache_usage_perc"), 0);
  EXPECT_GT(MetricOf(metrics, "prefix_cache_hits_total"), 0);
  EXPECT_EQ(MetricOf(metrics, "num_preemptions_total"), 0);
  EXPECT_EQ(MetricOf(metrics, "prompt_tokens_total"),
            MetricOf(metrics, "prefix_cache_queries_total") -
                MetricOf(metrics, "prefix_cache_hits_total"));
  for (const char* name : {"request_prompt_tokens", "request_generation_tokens",
                           "e2e_request_latency_seconds", "request_queue_time_seconds",
                           "time_to_first_token_seconds", "request_decode_time_seconds"}) {
    EXPECT_EQ(MetricOf(metrics, std::string(name) + "_count"), count) << name;
    EXPECT_EQ(MetricOf(metrics, std::string(name) + "_bucket", ",le=\"+Inf\""), count) << name;
  }
  EXPECT_EQ(MetricOf(metrics, "request_prompt_tokens_sum"),
            MetricOf(metrics, "prefix_cache_queries_total"));
  EXPECT_EQ(MetricOf(metrics, "request_generation_tokens_sum"),
            MetricOf(metrics, "generation_tokens_total"));
  EXPECT_EQ(MetricOf(metrics, "inter_token_latency_seconds_count"),
            MetricOf(metrics, "generation_tokens_total") - count);
  EXPECT_EQ(stats.written_tokens, MetricOf(metrics, "generation_tokens_total"));

  for (size_t i = 0; i < sent.size(); ++i) {
    const Reply alone = service.Post(sent[i].path, sent[i].body);
    EXPECT_EQ(SaidBy(replies[i]), SaidBy(alone)) << sent[i].path << " " << sent[i].body;
  }
}

TEST(ServiceCrowd, WhoLeavesLeavesNothingBehind) {
  TestService service({.scheduling = {.max_batch = 6, .pages = 40, .reserved_tokens = 64}});
  Rng seeds(4);
  std::vector<std::thread> clients;
  for (int c = 0; c < 8; ++c) {
    clients.emplace_back([&service, seed = seeds.Next()] {
      Rng rng(seed);
      for (int i = 0; i < 8; ++i) {
        SentRequest r = RandomRequest(rng);
        r.body["max_tokens"] = 700;
        r.body["ignore_eos"] = true;
        r.body.erase("stop");
        if (rng.Below(3) > 0) r.body["stream"] = true;
        const std::string request = TestService::Request("POST", r.path, r.body.dump());
        http::Client client(service.server());
        const bool part = rng.Below(8) == 0;  // of a request
        client.Send(
            std::string_view(request).substr(0, part ? rng.Below(request.size()) : request.size()));
        const size_t bytes = rng.Below(2000);
        for (int wait = 0; wait < 20 && client.buffer().size() < bytes; ++wait) {
          client.Receive(std::chrono::milliseconds(1 + rng.Below(10)));
        }
        if (rng.Below(2) == 0) client.Reset();
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(service.Quiet());
  EXPECT_TRUE(http::Eventually([&] { return service.server()->connections() == 0; }));
  const SchedulerStats stats = service.stats();
  EXPECT_GT(stats.ended[static_cast<size_t>(End::kCancelled)], 20u);
  EXPECT_EQ(stats.ended[static_cast<size_t>(End::kError)], 0u);
  service.Ok("/v1/completions", {{"prompt", "a"}});
}

}  // namespace
}  // namespace nibble::serve
