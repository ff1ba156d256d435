// SPDX-License-Identifier: Apache-2.0
// Answers do not depend on how their requests are scheduled.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error_testing.h"
#include "engine/log_sum_exp.h"
#include "engine/session.h"
#include "grammar/grammar.h"
#include "grammar/token_bytes.h"
#include "schedule/schedule_testing.h"

namespace nibble {
namespace {

TEST_F(SchedulerTest, AnswersAreThoseOfASession) {
  for (const Sampling& sampling : {Sampling{.temperature = 0}, Sampling{.temperature = 1},
                                   Sampling{.temperature = 0, .repetition = 3}}) {
    std::vector<int32_t> prompt = Ids(70, 1);
    // The text that comes next is in the prompt, where a penalty finds it.
    const std::vector<int32_t> text = tokenizer().Encode(" a house and a river and a house and a");
    prompt.insert(prompt.end(), text.begin(), text.end());
    Session session(model());
    const Generation expected =
        Generate(session, prompt, {.max_tokens = 30, .sampling = sampling, .seed = 3});
    const CollectedAnswer answer =
        AskAlone({.prompt = prompt, .max_tokens = 30, .sampling = sampling, .seed = 3});
    EXPECT_EQ(answer.ids, expected.ids);
    EXPECT_EQ(answer.text, tokenizer().Decode(expected.ids, true));
    EXPECT_EQ(answer.end, End::kLength);
  }
}

// A grammar that waits for a token sees the one that begins it, also where the model's argmax is
// taken without looking at other logits.
TEST_F(SchedulerTest, AGrammarBeginsBehindItsTokenHoweverTokensAreChosen) {
  const VocabularyTrie trie(tokenizer(), model().config().vocab_size);
  const GenerationRequest free = {
      .prompt = Ids(20, 4), .max_tokens = 12, .seed = 1, .stop_ids = {1}};
  const auto ask = [&](const GenerationRequest& request) {
    Scheduler scheduler(model(), tokenizer(), &trie, {.max_batch = 8, .pages = 200});
    const Answers answers = Ask(scheduler, request);
    while (scheduler.Step()) {
    }
    return (*answers)[0].ids;
  };
  GenerationRequest greedy = free;
  greedy.sampling.temperature = 0;
  const std::vector<int32_t> unbound = ask(greedy);
  ASSERT_EQ(std::ranges::find(unbound, unbound[2]), unbound.begin() + 2);
  for (const bool repeats : {false, true}) {
    GenerationRequest bound = greedy;
    bound.grammar = RegexGrammar("[0-9]{4}", "test");
    bound.grammar_after = unbound[2], bound.grammar_repeats = repeats;
    const std::vector<int32_t> ids = ask(bound);
    ASSERT_GT(ids.size(), 3u);
    EXPECT_TRUE(std::equal(ids.begin(), ids.begin() + 3, unbound.begin()));
    const std::string behind = tokenizer().Decode(std::span(ids).subspan(3), true);
    EXPECT_THAT(behind, testing::MatchesRegex("[0-9][0-9][0-9][0-9].*"));
    bound.logprobs = 0;
    EXPECT_EQ(ask(bound), ids) << "with logprobs";
    bound.logprobs.reset();
    bound.sampling.temperature = 1e-6;
    EXPECT_EQ(ask(bound), ids) << "sampled";
  }
}

enum class Kept { kAll, kWindows, kRecent };

// The sample model; the same with windows in four of six layers: three pages for the same tokens,
// two of which go back; and with a recent form of the cache besides.
class Windows : public SchedulerTest, public testing::WithParamInterface<Kept> {
 protected:
  Model& model() const override {
    static const auto windowed = TinyWithWindows(MakeBackend("cpu", false)),
                      recent = TinyWithRecent(MakeBackend("cpu", false), 8);
    if (GetParam() == Kept::kRecent) return *recent;
    return GetParam() == Kept::kWindows ? *windowed : Sample();
  }
  // Returns the number of pages that the model at hand takes, of three numbers for the same tokens.
  int64_t Pages(int64_t all, int64_t windows, int64_t recent) const {
    if (GetParam() == Kept::kRecent) return recent;
    return GetParam() == Kept::kWindows ? windows : all;
  }
};

INSTANTIATE_TEST_SUITE_P(Scheduler, Windows,
                         testing::Values(Kept::kAll, Kept::kWindows, Kept::kRecent));

// Requests of all kinds arrive, share beginnings, are cancelled, and the pool is too small for all
// that run: each ends once, with the tokens that it has when it is alone, and no page stays in use.
TEST_P(Windows, NeighboursChangeNothing) {
  Rng rng(5);
  const std::vector<int32_t> common = Ids(150, 2);
  struct Asked {
    GenerationRequest request;
    Answers answers;
    uint64_t number = 0;
    bool cancelled = false;
  };
  std::vector<Asked> asked;
  Scheduler scheduler =
      Make({.max_batch = 8, .pages = Pages(16, 27, 80), .prompt_tokens = 48, .reserved_tokens = 8});
  uint64_t steps = 0;
  while (asked.size() < 40 || scheduler.Step()) {
    if (asked.size() < 40 && rng.Below(3) == 0) {
      GenerationRequest r;
      r.prompt.assign(common.begin(), common.begin() + static_cast<int64_t>(rng.Below(150)));
      const std::vector<int32_t> own = Ids(1 + rng.Below(200), rng.Next());
      r.prompt.insert(r.prompt.end(), own.begin(), own.end());
      r.max_tokens = static_cast<int64_t>(1 + rng.Below(rng.Below(3) == 0 ? 200 : 30));
      r.sampling.temperature = rng.Below(2) == 0 ? 0.0 : 0.8;
      r.sampling.presence = rng.Below(3) == 0 ? 0.5 : 0.0;
      r.seed = rng.Next();
      r.client = std::to_string(rng.Below(3));
      if (rng.Below(4) == 0) r.logprobs = 2;
      if (rng.Below(8) == 0) r.prompt_logprobs = 1;
      Asked a = {.request = r};
      a.answers = Ask(scheduler, r, &a.number);
      asked.push_back(std::move(a));
    }
    if (rng.Below(40) == 0 && !asked.empty()) {
      Asked& a = asked[rng.Below(asked.size())];
      a.cancelled = true;
      scheduler.Cancel(a.number);
    }
    scheduler.Step();
    ASSERT_LT(++steps, 20000u);
  }
  for (const Asked& a : asked) {
    const CollectedAnswer& answer = a.answers->at(0);
    EXPECT_EQ(answer.ends, 1);
    const CollectedAnswer alone = AskAlone(a.request);
    const bool whole = answer.end == End::kLength || answer.end == End::kStop;
    EXPECT_TRUE(whole || a.cancelled) << answer.problem;
    ASSERT_LE(answer.ids.size(), alone.ids.size());
    EXPECT_TRUE(std::equal(answer.ids.begin(), answer.ids.end(), alone.ids.begin()));
    if (!whole) continue;
    EXPECT_EQ(answer.ids, alone.ids);
    EXPECT_EQ(answer.text, alone.text);
    ASSERT_EQ(answer.logprobs.size(), alone.logprobs.size());
    for (size_t i = 0; i < alone.logprobs.size(); ++i) {
      EXPECT_EQ(answer.logprobs[i].logprob, alone.logprobs[i].logprob);
    }
    ASSERT_EQ(answer.prompt_logprobs.size(), alone.prompt_logprobs.size());
    for (size_t i = 0; i < alone.prompt_logprobs.size(); ++i) {
      EXPECT_EQ(answer.prompt_logprobs[i].logprob, alone.prompt_logprobs[i].logprob);
    }
  }
  const SchedulerStats stats = scheduler.stats();
  EXPECT_EQ(stats.running, 0);
  EXPECT_EQ(stats.waiting, 0);
  EXPECT_EQ(stats.pages_in_use, 0);
  EXPECT_GT(stats.prefix_hits, 0u);
  EXPECT_GT(stats.preemptions, 0u) << "the pool was not under pressure";
  EXPECT_LE(stats.preemptions, asked.size());
}

TEST_P(Windows, PagesRunOutAndNobodyIsPreemptedTwice) {
  // Eight answers of 60 + 700 tokens come to need 96 pages, and 8 * 2 * 3 for windows.
  const int64_t pages = Pages(30, 40, 110);
  Scheduler scheduler = Make({.max_batch = 8, .pages = pages});
  std::vector<Answers> answers;
  for (uint64_t i = 0; i < 8; ++i) {
    answers.push_back(Ask(scheduler, {.prompt = Ids(60, i), .max_tokens = 700}));
  }
  int64_t max = 0;
  while (scheduler.Step()) max = std::max(max, scheduler.stats().pages_in_use);
  for (const Answers& a : answers) EXPECT_EQ(a->at(0).ids.size(), 700u);
  EXPECT_LE(scheduler.stats().preemptions, 8u);
  EXPECT_GT(scheduler.stats().preemptions, 0u);
  EXPECT_GE(10 * max, 9 * pages) << "pages lie idle under pressure";
}

TEST_P(Windows, ASecondTurnComputesLittleOfTheFirst) {
  Scheduler scheduler = Make();
  std::vector<int32_t> text = Ids(300, 7);
  const Answers first = Ask(scheduler, {.prompt = text, .max_tokens = 50});
  while (scheduler.Step()) {
  }
  const std::vector<int32_t>& written = first->at(0).ids;
  text.insert(text.end(), written.begin(), written.end());
  const auto old = static_cast<int64_t>(text.size());
  const std::vector<int32_t> more = Ids(20, 8);
  text.insert(text.end(), more.begin(), more.end());
  const Answers second = Ask(scheduler, {.prompt = text, .max_tokens = 5});
  while (scheduler.Step()) {
  }
  EXPECT_GE(second->at(0).cached, old - 1);  // the last token written was never read
  EXPECT_EQ(second->at(0).ids, AskAlone({.prompt = text, .max_tokens = 5}).ids);
}

TEST_F(SchedulerTest, SeveralAnswersToOnePromptShareItAndDifferInSeeds) {
  const std::vector<int32_t> prompt = Ids(200, 9);
  Scheduler scheduler = Make();
  const Answers answers = Ask(
      scheduler,
      {.prompt = prompt, .max_tokens = 20, .n = 5, .sampling = {.temperature = 1.5}, .seed = 4});
  while (scheduler.Step()) {
  }
  std::set<std::vector<int32_t>> texts;
  for (const auto& [index, answer] : *answers) {
    EXPECT_EQ(answer.ends, 1);
    texts.insert(answer.ids);
    EXPECT_EQ(answer.cached, index == 0 ? 0 : 192);
  }
  EXPECT_EQ(answers->size(), 5u);
  EXPECT_GT(texts.size(), 1u);
  EXPECT_EQ(scheduler.stats().prompt_tokens, 200u + 4 * 8);
}

TEST_F(SchedulerTest, LogprobsAreThoseOfTheModel) {
  const std::vector<int32_t> prompt = Ids(90, 10);
  const CollectedAnswer answer =
      AskAlone({.prompt = prompt, .max_tokens = 8, .logprobs = 3, .prompt_logprobs = 2});
  std::vector<int32_t> all = prompt;
  all.insert(all.end(), answer.ids.begin(), answer.ids.end());
  const std::vector<float> logits = AllLogits(model(), all);
  ASSERT_EQ(answer.prompt_logprobs.size(), prompt.size() - 1);
  ASSERT_EQ(answer.logprobs.size(), 8u);
  for (size_t i = 1; i < all.size(); ++i) {
    const bool prompts = i < prompt.size();
    const TokenLogprob& reported =
        prompts ? answer.prompt_logprobs[i - 1] : answer.logprobs[i - prompt.size()];
    const std::span row(logits.data() + (i - 1) * 4096, 4096);
    EXPECT_EQ(reported.id, all[i]);
    EXPECT_EQ(reported.logprob, double{row[static_cast<size_t>(all[i])]} - LogSumExp(row));
    ASSERT_EQ(reported.top.size(), prompts ? 2u : 3u);
    const auto best = std::ranges::max_element(row) - row.begin();
    EXPECT_EQ(reported.top[0].first, best);
    EXPECT_GE(reported.top[0].second, reported.top[1].second);
  }
}

TEST_F(SchedulerTest, APromptAloneIsScoredOrEmbedded) {
  const std::vector<int32_t> prompt = Ids(100, 11);
  const CollectedAnswer scored =
      AskAlone({.prompt = prompt, .max_tokens = 0, .prompt_logprobs = 0});
  EXPECT_EQ(scored.ids.size(), 0u);
  EXPECT_EQ(scored.prompt_logprobs.size(), 99u);
  EXPECT_EQ(scored.end, End::kLength);
  const CollectedAnswer embedded =
      AskAlone({.prompt = prompt, .max_tokens = 0, .pooling = Pooling{}});
  ASSERT_EQ(embedded.embedding.size(), 256u);
  double squares = 0;
  for (const float v : embedded.embedding) squares += double{v} * v;
  EXPECT_NEAR(squares, 1, 1e-5);
}

TEST_F(SchedulerTest, StopsEndTextsWhereverTokensAreCut) {
  const std::vector<int32_t> prompt = tokenizer().Encode("The river");
  const std::string whole = AskAlone({.prompt = prompt, .max_tokens = 60}).text;
  ASSERT_GT(whole.size(), 40u);
  for (size_t at = 3; at + 6 < 40; at += 3) {
    for (const bool include : {false, true}) {
      const std::string stop = whole.substr(at, 5);
      const CollectedAnswer answer =
          AskAlone({.prompt = prompt, .max_tokens = 60, .stops = {stop}, .include_stop = include});
      EXPECT_EQ(answer.text, whole.substr(0, whole.find(stop) + (include ? 5 : 0)));
      EXPECT_EQ(answer.end, End::kStop);
      EXPECT_EQ(answer.stop, stop);
    }
  }
}

TEST_F(SchedulerTest, WhatWaitsForTheRestOfAStopIsToldAtTheEnd) {
  const GenerationRequest request = {.prompt = tokenizer().Encode("The river"), .max_tokens = 20};
  const std::string whole = AskAlone(request).text;
  GenerationRequest stopping = request;
  stopping.stops = {whole.substr(whole.size() - 3) + "\x01"};
  EXPECT_EQ(AskAlone(stopping).text, whole);
}

// The last token may end inside a character: what stands for it can be the stop.
TEST_F(SchedulerTest, AStopMayBeFoundWhereTheLengthEnds) {
  const int32_t part = tokenizer().Encode("\xF0\x9F\x98\x80", false)[0];
  ASSERT_EQ(tokenizer().Decode(std::vector<int32_t>{part}, true), "\uFFFD");
  const CollectedAnswer answer = AskAlone(
      {.prompt = Ids(5, 1), .max_tokens = 1, .logit_bias = {{part, 1e6f}}, .stops = {"\uFFFD"}});
  EXPECT_EQ(answer.text, "");
  EXPECT_EQ(answer.stop, "\uFFFD");
  EXPECT_EQ(answer.end, End::kStop);
}

TEST_F(SchedulerTest, BiasesStopIdsAndLeastLengths) {
  const std::vector<int32_t> prompt = Ids(10, 12);
  const GenerationRequest always = {.prompt = prompt, .max_tokens = 10, .logit_bias = {{77, 1e6f}}};
  EXPECT_EQ(AskAlone(always).ids, std::vector<int32_t>(10, 77));
  GenerationRequest stops = always;
  stops.stop_ids = {77};
  EXPECT_EQ(AskAlone(stops).ids, std::vector<int32_t>{77});
  EXPECT_EQ(AskAlone(stops).text, "");
  EXPECT_EQ(AskAlone(stops).end, End::kStop);
  stops.min_tokens = 4;
  const CollectedAnswer late = AskAlone(stops);
  ASSERT_EQ(late.ids.size(), 5u);
  EXPECT_EQ(std::ranges::count(late.ids, 77), 1);
}

TEST_F(SchedulerTest, MarkersAreToldApartFromText) {
  const std::vector<int32_t> prompt = tokenizer().Encode("The river");
  const CollectedAnswer answer =
      AskAlone({.prompt = prompt, .max_tokens = 3, .logit_bias = {{1, 1e6f}}, .markers = {1}});
  EXPECT_EQ(answer.markers, (std::vector<int32_t>{1, 1, 1}));
  EXPECT_EQ(answer.text, "");
}

TEST_F(SchedulerTest, AStopStringMayEndWithAMarker) {
  const std::string marker = tokenizer().TokenText(1);
  // Token 77 until its penalty outweighs the bias, then the marker.
  GenerationRequest request = {.prompt = tokenizer().Encode("The river"),
                               .max_tokens = 4,
                               .logit_bias = {{77, 2050}, {1, 2000}},
                               .markers = {1}};
  request.sampling = {.temperature = 0, .frequency = 100};
  EXPECT_EQ(AskAlone(request).ids, (std::vector<int32_t>{77, 1, 77, 1}));
  const auto ends = [&](const std::string& stop, bool include) {
    request.stops = {stop}, request.include_stop = include;
    const CollectedAnswer answer = AskAlone(request);
    EXPECT_EQ(answer.end, answer.stop.empty() ? End::kLength : End::kStop) << stop;
    return std::pair(answer.text, answer.markers.size());
  };
  const std::string text = tokenizer().Decode(std::vector<int32_t>{77}, true);
  EXPECT_EQ(ends(marker, false), std::pair(text, size_t{0}));
  EXPECT_EQ(ends(marker, true), std::pair(text + marker, size_t{0}));
  EXPECT_EQ(ends(text + marker, false), std::pair(std::string(), size_t{0}));
  EXPECT_EQ(ends(marker + text, false), std::pair(text + text, size_t{2})) << "goes on behind it";
  EXPECT_EQ(ends(marker.substr(1), false), std::pair(text + text, size_t{2})) << "a part of it";
  // A special token that is left out of the text stops it, too.
  request.markers.clear();
  EXPECT_EQ(ends(marker, false), std::pair(text, size_t{0}));
  EXPECT_EQ(ends("none", false), std::pair(text + text, size_t{0}));
}

TEST_F(SchedulerTest, RequestsThatCannotRunAreRefusedAndTooManyWait) {
  Scheduler scheduler = Make({.max_batch = 1, .max_waiting = 3, .pages = 5});
  EXPECT_EQ(scheduler.context(), 320);
  const auto error = [&](GenerationRequest r) {
    return ErrorOf([&] { scheduler.Submit(std::move(r), [](Delta&&) {}); });
  };
  EXPECT_THAT(error({.prompt = {}}), testing::HasSubstr("no token"));
  EXPECT_THAT(error({.prompt = Ids(321, 1)}), testing::HasSubstr("321 tokens, the context is 320"));
  EXPECT_THAT(error({.prompt = {4096}}), testing::HasSubstr("4096 is outside"));
  EXPECT_THAT(error({.prompt = {-1}}), testing::HasSubstr("-1 is outside"));
  EXPECT_THAT(error({.prompt = {5}, .sampling = {.top_p = 2}}), testing::HasSubstr("top-p"));
  const Answers full = Ask(scheduler, {.prompt = Ids(320, 1), .max_tokens = 100});
  Ask(scheduler, {.prompt = {5}, .n = 2});
  EXPECT_FALSE(scheduler.Submit({.prompt = {5}}, [](Delta&&) {}).has_value());
  while (scheduler.Step()) {
  }
  EXPECT_EQ(full->at(0).ids.size(), 1u);
  EXPECT_EQ(full->at(0).end, End::kLength);
}

// A client with many requests does not delay one with a few.
TEST_F(SchedulerTest, ClientsTakeTurns) {
  Scheduler scheduler = Make({.max_batch = 1, .pages = 50});
  std::vector<std::string> order;
  const auto ask = [&](const std::string& client) {
    scheduler.Submit({.prompt = Ids(20, 1), .max_tokens = 5, .client = client},
                     [&order, client](Delta&& d) {
                       if (d.end) order.push_back(client);
                     });
  };
  for (int i = 0; i < 6; ++i) ask("busy");
  scheduler.Step();
  ask("rare");
  ask("rare");
  while (scheduler.Step()) {
  }
  EXPECT_EQ(order, (std::vector<std::string>{"busy", "rare", "busy", "rare", "busy", "busy", "busy",
                                             "busy"}));
}

TEST_F(SchedulerTest, RunServesManyThreadsAndStopEndsAll) {
  Scheduler scheduler = Make({.max_batch = 4, .pages = 60});
  std::thread engine([&] { scheduler.Run(); });
  std::atomic<int> ends = 0, errors = 0;
  std::vector<std::thread> clients;
  for (uint64_t c = 0; c < 4; ++c) {
    clients.emplace_back([&, c] {
      for (uint64_t i = 0; i < 5; ++i) {
        const auto number = scheduler.Submit(
            {.prompt = Ids(10 + 7 * i, c), .max_tokens = 12, .client = std::to_string(c)},
            [&](Delta&& d) { ends += d.end.has_value(); });
        if (i == 3) scheduler.Cancel(*number);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  while (ends < 20) std::this_thread::yield();
  for (int i = 0; i < 3; ++i) {
    scheduler.Submit({.prompt = Ids(10, 1), .max_tokens = 1000},
                     [&](Delta&& d) { errors += d.end == End::kError; });
  }
  scheduler.Stop();
  engine.join();
  EXPECT_EQ(ends, 20);
  EXPECT_EQ(errors, 3);
  EXPECT_EQ(scheduler.stats().pages_in_use, 0);
  EXPECT_FALSE(scheduler.Submit({.prompt = {5}}, [](Delta&&) {}).has_value());
}

}  // namespace
}  // namespace nibble
