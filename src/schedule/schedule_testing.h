// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of this folder: the sample model, and requests whose answers are collected.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine_testing.h"
#include "schedule/scheduler.h"

namespace nibble {

struct CollectedAnswer {
  std::string text, problem, stop;
  std::vector<int32_t> ids, markers;
  std::vector<TokenLogprob> logprobs, prompt_logprobs;
  std::vector<float> embedding;
  int ends = 0;
  std::optional<End> end;
  int64_t cached = 0;

  void Add(Delta&& d) {
    EXPECT_EQ(ends, 0) << "nothing follows an end";
    text += d.text;
    ids.insert(ids.end(), d.ids.begin(), d.ids.end());
    if (d.marker) markers.push_back(*d.marker);
    for (auto& l : d.logprobs) logprobs.push_back(std::move(l));
    for (auto& l : d.prompt_logprobs) prompt_logprobs.push_back(std::move(l));
    if (!d.embedding.empty()) embedding = std::move(d.embedding);
    cached = d.cached_tokens;
    if (!d.end) return;
    ++ends;
    end = d.end;
    stop = d.stop;
    problem = d.problem;
  }
};

// A model of small random prompts, and its scheduler.
class SchedulerTest : public testing::Test {
 protected:
  static Model& Sample() {
    static const auto model = LoadModel(kTinyModel, "cpu", false);
    return *model;
  }
  virtual Model& model() const { return Sample(); }
  static const Tokenizer& tokenizer() {
    static const Tokenizer tokenizer = Tokenizer::Load(kTinyModel);
    return tokenizer;
  }
  static std::vector<int32_t> Ids(size_t count, uint64_t seed) {
    Rng rng(seed);
    std::vector<int32_t> ids;
    for (size_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(2 + rng.Below(4000)));
    return ids;
  }
  Scheduler Make(SchedulerOptions options = {.max_batch = 8, .pages = 200}) const {
    return {model(), tokenizer(), nullptr, options};
  }

  // Submits; answers lie in the result by index once steps have run.
  using Answers = std::shared_ptr<std::map<int, CollectedAnswer>>;
  static Answers Ask(Scheduler& scheduler, GenerationRequest request, uint64_t* number = nullptr) {
    auto answers = std::make_shared<std::map<int, CollectedAnswer>>();
    const auto given = scheduler.Submit(std::move(request), [answers](Delta&& delta) {
      (*answers)[delta.index].Add(std::move(delta));
    });
    EXPECT_TRUE(given.has_value());
    if (number != nullptr) *number = given.value_or(0);
    return answers;
  }
  CollectedAnswer AskAlone(GenerationRequest request,
                           SchedulerOptions options = {.max_batch = 8, .pages = 200}) const {
    Scheduler scheduler = Make(options);
    const Answers answers = Ask(scheduler, std::move(request));
    while (scheduler.Step()) {
    }
    return (*answers)[0];
  }
};

}  // namespace nibble
