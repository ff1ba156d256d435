// SPDX-License-Identifier: Apache-2.0
#include "eval/likelihood.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/rng.h"
#include "engine/engine_testing.h"
#include "eval/request_file.h"
#include "io/io_testing.h"

namespace nibble {
namespace {

using testing::HasSubstr;

Model& TinyModel() {
  static const auto model = LoadModel(kTinyModel, "cpu", false);
  return *model;
}

ModelLimits Limits(int64_t context = 1024) {
  ModelLimits limits(TinyModel());
  limits.context = context;
  return limits;
}

std::vector<int32_t> RandomIds(Rng& rng, size_t count) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(rng.Below(4096)));
  return ids;
}

// Question of requests with `shared` equal tokens in front, then their own of the given numbers.
Question RandomQuestion(Rng& rng, size_t shared,
                        const std::vector<std::pair<size_t, size_t>>& own) {
  const std::vector<int32_t> front = RandomIds(rng, shared);
  Question question;
  for (const auto& [context, continuation] : own) {
    std::vector<int32_t> ids = front;
    for (const int32_t id : RandomIds(rng, context)) ids.push_back(id);
    question.push_back(JoinPair(ids, RandomIds(rng, continuation), Limits(), "test"));
  }
  return question;
}

// One forward pass of the whole request, softmax in long double.
Likelihood Whole(Model& model, const Request& r) {
  const int64_t width = model.config().hidden_size, vocab = model.config().vocab_size;
  KvCache cache = model.MakeCache();
  const Model::Sequence sequence = {std::span(r.ids).first(r.ids.size() - 1), &cache};
  const float* x = model.Forward({&sequence, 1});
  Likelihood result = {.greedy = true};
  for (size_t i = r.first; i < r.ids.size(); ++i) {
    const float* logits = model.Logits(x + static_cast<int64_t>(i - 1) * width, 1);
    long double sum = 0;
    int32_t top = 0;
    for (int32_t t = 0; t < vocab; ++t) {
      sum += std::exp(static_cast<long double>(logits[t]));
      if (logits[t] > logits[top]) top = t;
    }
    result.log_likelihood +=
        static_cast<double>(static_cast<long double>(logits[r.ids[i]]) - std::log(sum));
    result.greedy = result.greedy && top == r.ids[i];
  }
  return result;
}

// The continuation that the model would write after the context, the only greedy one.
Request Greedy(const std::vector<int32_t>& context, size_t count) {
  std::vector<int32_t> ids = context;
  for (size_t i = 0; i < count; ++i) {
    int32_t best = 0;
    double best_score = -INFINITY;
    Model& model = TinyModel();
    KvCache cache = model.MakeCache();
    const Model::Sequence sequence = {ids, &cache};
    const float* x = model.Forward({&sequence, 1});
    const float* logits = model.Logits(x + (ids.size() - 1) * 256, 1);
    for (int32_t t = 0; t < 4096; ++t) {
      if (logits[t] > best_score) best_score = logits[best = t];
    }
    ids.push_back(best);
  }
  return {ids, context.size()};
}

TEST(LikelihoodRunner, EqualsAPassOfItsOwnForEachRequest) {
  Rng rng(11);
  std::vector<Question> questions = {
      RandomQuestion(rng, 70, {{0, 3}, {0, 9}, {0, 1}, {0, 4}, {0, 2}}),  // one context
      RandomQuestion(rng, 20, {{2, 5}, {4, 5}}),                          // two contexts
      RandomQuestion(rng, 0, {{1, 1}, {1, 2}}),                           // nothing in common
      RandomQuestion(rng, 100, {{0, 2}}),                                 // a single request
      RandomQuestion(rng, 1, {{0, 150}, {0, 150}}),  // more predictions than a block of logits
      RandomQuestion(rng, 300, {{0, 25}, {10, 15}}),
  };
  Question greedy = {Greedy({0, 100, 200}, 3)};
  greedy.push_back(greedy[0]);
  greedy.back().ids.back() = (greedy.back().ids.back() + 1) % 4096;
  Request recovers = Greedy({0, 100, 200}, 1);  // the first token is not greedy, the rest is
  recovers.ids.back() = (recovers.ids.back() + 1) % 4096;
  recovers = Greedy(recovers.ids, 2);
  recovers.first = 3;
  greedy.push_back(recovers);
  questions.push_back(greedy);
  questions.push_back({questions[0][1], questions[0][1]});  // equal requests

  LikelihoodRunner batch(TinyModel());
  const auto together = batch.Run(questions);
  ASSERT_EQ(together.size(), questions.size());
  for (size_t q = 0; q < questions.size(); ++q) {
    ASSERT_EQ(together[q].size(), questions[q].size());
    const auto alone = batch.Run(std::span(questions).subspan(q, 1));
    for (size_t r = 0; r < questions[q].size(); ++r) {
      const Likelihood expected = Whole(TinyModel(), questions[q][r]);
      // exp to 2 ulp of fp32 in LogSumExp, lanes that sum 4096 / 4 values: 2^-24 * 1000 a token.
      const auto tokens = static_cast<double>(questions[q][r].ids.size() - questions[q][r].first);
      EXPECT_NEAR(together[q][r].log_likelihood, expected.log_likelihood, 6e-5 * tokens);
      EXPECT_EQ(together[q][r].greedy, expected.greedy) << q << ", " << r;
      EXPECT_EQ(together[q][r].log_likelihood, alone[0][r].log_likelihood) << q << ", " << r;
    }
  }
  EXPECT_TRUE(together[6][0].greedy);
  EXPECT_FALSE(together[6][1].greedy);
  EXPECT_FALSE(together[6][2].greedy);
  EXPECT_EQ(together[7][0].log_likelihood, together[7][1].log_likelihood);
}

// More tokens than one forward takes, in the prefix and behind it; a window of 8 keys.
TEST(LikelihoodRunner, LongRequestsRunInPieces) {
  const std::filesystem::path source =
      NIBBLE_SOURCE_DIR "/tests/data/architectures/mistral_sliding";
  const auto copy = std::filesystem::path(testing::TempDir()) / "nibble_long_context";
  std::filesystem::remove_all(copy);
  std::filesystem::copy(source, copy);
  Json config = ReadJsonFile((copy / "config.json").string());
  config["max_position_embeddings"] = 4096;
  std::ofstream(copy / "config.json") << config.dump();
  const auto model = LoadModel(copy.string(), "cpu", false);
  Rng rng(13);
  const auto ids = [&](size_t count) {
    std::vector<int32_t> all;
    for (size_t i = 0; i < count; ++i) all.push_back(static_cast<int32_t>(rng.Below(512)));
    return all;
  };
  const ModelLimits limits(*model);
  const std::vector<int32_t> context = ids(1500);
  Question question = {JoinPair(context, ids(1300), limits, "a"),
                       JoinPair(context, ids(3), limits, "b")};
  EXPECT_EQ(BatchSize(std::vector{question, question}), 1u);
  const auto results = LikelihoodRunner(*model).Run({&question, 1});
  for (size_t r = 0; r < 2; ++r) {
    const Likelihood expected = Whole(*model, question[r]);
    const auto tokens = static_cast<double>(question[r].ids.size() - question[r].first);
    // The bound is the one above, for lanes that sum 512 / 4 values.
    EXPECT_NEAR(results[0][r].log_likelihood, expected.log_likelihood, 8e-6 * tokens);
    EXPECT_EQ(results[0][r].greedy, expected.greedy);
  }
}

TEST(EvaluateRequests, NamesTheRequestWhoseLogitsAreNotFinite) {
  const auto path = std::filesystem::path(testing::TempDir()) / "nibble_requests.jsonl";
  std::ofstream(path) << R"({"context": [0], "continuation": [5]})"
                      << "\n"
                      << R"({"context": [1], "continuation": [6]})"
                      << "\n";
  const std::string source = "/no/tokenizer/here";  // ids need none
  EXPECT_EQ(EvaluateRequests(TinyModel(), source, path.string(), true).size(), 2u);
  const auto bad = TinyWithHeadValue(NAN);
  EXPECT_THAT(ErrorOf([&] { EvaluateRequests(*bad, source, path.string(), true); }),
              testing::AllOf(HasSubstr(path.string() + ":1: "), HasSubstr("logits are NaN")));
}

TEST(EvaluateRequests, TextsNeedATokenizer) {
  const auto path = std::filesystem::path(testing::TempDir()) / "nibble_text_requests.jsonl";
  std::ofstream(path) << R"({"context": "The", "continuation": " river"})"
                      << "\n";
  EXPECT_EQ(EvaluateRequests(TinyModel(), kTinyModel, path.string(), true).size(), 1u);
  EXPECT_THAT(
      ErrorOf([&] { EvaluateRequests(TinyModel(), "/no/tokenizer/here", path.string(), true); }),
      HasSubstr("/no/tokenizer/here"));
}

TEST(BatchSize, HoldsAboutAPrefillChunk) {
  Rng rng(12);
  const Question small = RandomQuestion(rng, 90, {{0, 10}, {0, 5}});  // 100 tokens at most
  EXPECT_EQ(BatchSize(std::vector<Question>(50, small)), 10u);
  EXPECT_EQ(BatchSize(std::vector<Question>(3, small)), 3u);
  const Question falling = RandomQuestion(rng, 10, {{0, 590}, {0, 5}});
  EXPECT_EQ(BatchSize(std::vector<Question>(3, falling)), 1u) << "the longest request counts";
  EXPECT_EQ(BatchSize(std::vector{RandomQuestion(rng, 1000, {{0, 24}}), small}), 1u);
}

class Pairs : public testing::Test {
 protected:
  Request Encode(const std::string& context, const std::string& continuation, int64_t limit = 1024,
                 bool special = true) const {
    return EncodePair(tokenizer_, context, continuation, special, Limits(limit), "here");
  }
  const Tokenizer tokenizer_ = Tokenizer::Load(kTinyModel);
};

TEST_F(Pairs, TheContinuationIsWhatTheWholeTextHasBeyondTheContext) {
  const Request r = Encode("The river", " bank was");
  EXPECT_EQ(r.ids, tokenizer_.Encode("The river bank was"));
  EXPECT_EQ(r.first, tokenizer_.Encode("The river").size());
  EXPECT_EQ(r.ids[0], 0);  // BOS
  EXPECT_EQ(Encode("The river", " bank was", 1024, false).ids,
            tokenizer_.Encode("The river bank was", false));
}

TEST_F(Pairs, SpaceAtTheEndOfTheContextBelongsToTheContinuation) {
  for (const char* space : {" ", "\n", " \n\t ", "\u00a0", "\u3000\u2028"}) {
    const Request r = Encode(std::string("The river") + space, "bank");
    EXPECT_EQ(r.ids, tokenizer_.Encode(std::string("The river") + space + "bank"));
    EXPECT_EQ(r.first, tokenizer_.Encode("The river").size()) << "space: '" << space << "'";
  }
}

TEST_F(Pairs, TheOldestTokensAreDroppedAndTheLastIsNoInput) {
  const std::vector<int32_t> ids = tokenizer_.Encode("The river and the town and the bank");
  const size_t context = tokenizer_.Encode("The river and the town and the").size();
  const Request r = Encode("The river and the town and the", " bank", 4);
  EXPECT_EQ(r.ids, std::vector<int32_t>(ids.end() - 5, ids.end()));
  EXPECT_EQ(r.ids.size() - r.first, ids.size() - context);
  const auto exact = static_cast<int64_t>(ids.size()) - 1;
  EXPECT_EQ(Encode("The river and the town and the", " bank", exact).ids, ids);
  const std::vector<int32_t> three = {1, 2, 3};
  EXPECT_EQ(JoinPair({0}, three, Limits(3), "here").ids, (std::vector<int32_t>{0, 1, 2, 3}));
}

TEST_F(Pairs, AnEmptyContextIsBos) {
  const Request r = Encode("", "The river");
  EXPECT_EQ(r.ids, tokenizer_.Encode("The river"));
  EXPECT_EQ(r.first, 1u);
  EXPECT_EQ(Encode("", "The river", 1024, false).ids, r.ids) << "something must come first";
}

TEST_F(Pairs, WhatCannotBeScoredIsRefused) {
  EXPECT_THAT(ErrorOf([&] { Encode("The river", ""); }),
              testing::AllOf(HasSubstr("here: "), HasSubstr("no token")));
  EXPECT_THAT(ErrorOf([&] { Encode("The", " river and the town", 3); }),
              testing::AllOf(HasSubstr("here: "), HasSubstr("context is 3")));
  EXPECT_THAT(ErrorOf([&] { Encode(" ", "", 3, false); }), HasSubstr("here: "));
  EXPECT_THAT(ErrorOf([] { JoinPair({}, std::vector{1}, Limits(), "here"); }), HasSubstr("here: "));
  for (const int32_t id : {-1, 4096}) {
    EXPECT_THAT(ErrorOf([&] { JoinPair({1}, std::vector{id}, Limits(), "here"); }),
                testing::AllOf(HasSubstr("here: "), HasSubstr("id " + std::to_string(id))));
  }
}

}  // namespace
}  // namespace nibble
