// SPDX-License-Identifier: Apache-2.0
// The order in which requests run, and that no cancelled one runs.
#include <gtest/gtest.h>

#include "schedule/schedule_testing.h"

namespace nibble {
namespace {

// Beside answers a step takes the shortest prompts, and the oldest prompt gets a quarter of it.
TEST_F(SchedulerTest, PromptsThatAreSoonDoneComeFirstAndTheOldestGoesOn) {
  Scheduler scheduler = Make({.max_batch = 8, .pages = 200, .prompt_tokens = 64});
  Ask(scheduler, {.prompt = Ids(4, 1), .max_tokens = 100});
  scheduler.Step();
  const Answers oldest = Ask(scheduler, {.prompt = Ids(100, 2), .max_tokens = 1});
  for (uint64_t step = 0; step < 4; ++step) {
    const Answers shorter = Ask(scheduler, {.prompt = Ids(48, 3 + step), .max_tokens = 1});
    scheduler.Step();
    EXPECT_EQ(shorter->size(), 1u) << step;
    EXPECT_TRUE(oldest->empty()) << step;
  }
  scheduler.Step();
  EXPECT_EQ(oldest->size(), 1u) << "36 tokens were left of it";
}

// Prompts have one length: only the answers' tell the clients apart.
TEST_F(SchedulerTest, WhatIsWrittenCountsForTheTurn) {
  Scheduler scheduler = Make({.max_batch = 1, .pages = 50});
  std::string order;
  uint64_t seed = 0;
  const auto ask = [&](const std::string& client, int64_t tokens) {
    scheduler.Submit({.prompt = Ids(4, ++seed), .max_tokens = tokens, .client = client},
                     [&order, client](Delta&& d) {
                       if (d.end) order += client;
                     });
  };
  for (int i = 0; i < 2; ++i) ask("a", 20);
  for (int i = 0; i < 4; ++i) ask("b", 1);
  while (scheduler.Step()) {
  }
  EXPECT_EQ(order, "abbbba");
}

// When pages run out the newest answer loses its own, and comes back before those behind it.
TEST_F(SchedulerTest, WhoCameFirstEndsFirst) {
  Scheduler scheduler = Make({.max_batch = 8, .pages = 30});
  std::string order;
  for (const char name : std::string("abcdefgh")) {
    scheduler.Submit({.prompt = Ids(60, static_cast<uint64_t>(name)), .max_tokens = 400},
                     [&order, name](Delta&& d) {
                       if (d.end) order += name;
                     });
  }
  while (scheduler.Step()) {
  }
  EXPECT_GT(scheduler.stats().preemptions, 1u);
  EXPECT_EQ(order, "abcdefgh");
}

// Cancel reaches answers whose pages were taken, too.
TEST_F(SchedulerTest, CancelReachesThoseThatWait) {
  Scheduler scheduler = Make({.max_batch = 8, .pages = 30});
  std::vector<Answers> answers;
  std::vector<uint64_t> numbers(8);
  for (uint64_t i = 0; i < 8; ++i) {
    answers.push_back(Ask(scheduler, {.prompt = Ids(60, i), .max_tokens = 700}, &numbers[i]));
  }
  do {
    ASSERT_TRUE(scheduler.Step());
  } while (scheduler.stats().waiting == 0);
  for (const uint64_t number : numbers) scheduler.Cancel(number);
  EXPECT_FALSE(scheduler.Step());
  for (const Answers& a : answers) EXPECT_EQ(a->at(0).end, End::kCancelled);
}

TEST_F(SchedulerTest, CancelReachesThoseThatWaitForAPrompt) {
  for (const bool begun : {false, true}) {
    Scheduler scheduler = Make({.max_batch = 8, .pages = 200, .prompt_tokens = 16});
    Ask(scheduler, {.prompt = Ids(4, 1), .max_tokens = 10});
    scheduler.Step();
    uint64_t number = 0;
    const Answers answers = Ask(scheduler, {.prompt = Ids(100, 2), .n = 3}, &number);
    if (begun) scheduler.Step();
    scheduler.Cancel(number);
    while (scheduler.Step()) {
    }
    ASSERT_EQ(answers->size(), 3u);
    for (const auto& [index, answer] : *answers) EXPECT_EQ(answer.end, End::kCancelled);
  }
}

TEST_F(SchedulerTest, TimesOfAnAnswerAddUp) {
  Scheduler scheduler = Make({.max_batch = 1, .pages = 50});
  for (uint64_t i = 0; i < 3; ++i) Ask(scheduler, {.prompt = Ids(20, i), .max_tokens = 5});
  while (scheduler.Step()) {
  }
  const SchedulerStats s = scheduler.stats();
  EXPECT_NEAR(s.queued.sum() + s.prefill.sum(), s.first_token.sum(), 1e-6);
  EXPECT_LE(s.between_tokens.sum(), s.decode.sum());
  EXPECT_LE(s.first_token.sum() + s.decode.sum(), s.whole.sum() + 1e-3);
  Ask(scheduler, {.prompt = Ids(20, 9), .max_tokens = 0, .prompt_logprobs = 0});
  while (scheduler.Step()) {
  }
  EXPECT_EQ(scheduler.stats().decode.sum(), s.decode.sum()) << "nothing was written";
}

TEST_F(SchedulerTest, WhoCannotBeToldIsCancelled) {
  Scheduler scheduler = Make();
  int reported = 0;
  scheduler.Submit({.prompt = Ids(10, 1), .max_tokens = 50}, [&](Delta&&) {
    ++reported;
    throw std::runtime_error("nobody is there");
  });
  while (scheduler.Step()) {
  }
  EXPECT_EQ(reported, 2) << "a token and the end";
  EXPECT_EQ(scheduler.stats().ended[static_cast<size_t>(End::kCancelled)], 1u);
}

}  // namespace
}  // namespace nibble
