// SPDX-License-Identifier: Apache-2.0
// Vectors of texts: those of the states in fp64, in whatever steps they are computed.
#include <algorithm>
#include <cmath>

#include "engine/hf_forward_testing.h"
#include "models/random_model_testing.h"
#include "schedule/schedule_testing.h"

namespace nibble {
namespace {

using Vector = plain::Vector;

class EmbeddingTest : public SchedulerTest {
 protected:
  static const std::string& Directory() {
    static const std::string directory =
        RandomModel("embedding", SmallConfig({{"max_position_embeddings", 2048}}));
    return directory;
  }
  Model& model() const override {
    static const auto model = LoadModel(Directory(), "cpu", false);
    return *model;
  }
  static std::vector<int32_t> Prompt(size_t count, uint64_t seed) {
    Rng rng(seed);
    std::vector<int32_t> ids(count);
    for (int32_t& id : ids) id = static_cast<int32_t>(rng.Below(64));
    return ids;
  }
  static GenerationRequest Embed(const std::vector<int32_t>& ids, Pooling::Tokens tokens,
                                 bool normalize = true) {
    return {.prompt = ids,
            .max_tokens = 0,
            .pooling = Pooling{.tokens = tokens, .normalize = normalize}};
  }
};

constexpr Pooling::Tokens kTokens[] = {Pooling::Tokens::kAll, Pooling::Tokens::kFirst,
                                       Pooling::Tokens::kLast};

Vector Pooled(const std::vector<Vector>& states, Pooling::Tokens tokens, bool normalize) {
  if (tokens == Pooling::Tokens::kFirst) return Pooled({states.front()}, kTokens[0], normalize);
  if (tokens == Pooling::Tokens::kLast) return Pooled({states.back()}, kTokens[0], normalize);
  Vector mean(states[0].size());
  for (const Vector& state : states) {
    for (size_t k = 0; k < mean.size(); ++k) {
      mean[k] += state[k] / static_cast<double>(states.size());
    }
  }
  double length = 0;
  for (const double v : mean) length = std::hypot(length, v);
  for (double& v : mean) v /= normalize ? length : 1;
  return mean;
}

TEST_F(EmbeddingTest, VectorsAreThoseOfFp64) {
  for (const size_t count : {1, 40}) {
    const std::vector<int32_t> ids = Prompt(count, 1);
    const std::vector<Vector> states = HfForward(Directory()).States(ids);
    for (const Pooling::Tokens tokens : kTokens) {
      for (const bool normalize : {true, false}) {
        const Vector expected = Pooled(states, tokens, normalize);
        const std::vector<float> found = AskAlone(Embed(ids, tokens, normalize)).embedding;
        ASSERT_EQ(found.size(), expected.size());
        double largest = 0;
        for (const double v : expected) largest = std::max(largest, std::fabs(v));
        for (size_t k = 0; k < found.size(); ++k) {
          EXPECT_NEAR(found[k], expected[k], 2e-5 * largest) << k;
        }
      }
    }
  }
}

// The text takes two steps alone, and dozens beside an answer that is being written; another text
// begins as it does.
TEST_F(EmbeddingTest, StepsAndNeighboursChangeNothing) {
  const std::vector<int32_t> ids = Prompt(1500, 2);
  const std::vector<int32_t> shorter(ids.begin(), ids.begin() + 700);
  ASSERT_GT(static_cast<int64_t>(ids.size()), model().backend().ChunkTokens());
  for (const Pooling::Tokens tokens : kTokens) {
    Scheduler scheduler = Make({.max_batch = 8, .pages = 400, .prompt_tokens = 48});
    const Answers written = Ask(scheduler, {.prompt = Prompt(5, 3), .max_tokens = 300});
    ASSERT_TRUE(scheduler.Step());
    const Answers embedded = Ask(scheduler, Embed(ids, tokens)),
                  other = Ask(scheduler, Embed(shorter, tokens));
    while (scheduler.Step()) {
    }
    EXPECT_EQ((*written)[0].ids.size(), 300u);
    EXPECT_EQ((*embedded)[0].embedding, AskAlone(Embed(ids, tokens)).embedding);
    EXPECT_EQ((*other)[0].embedding, AskAlone(Embed(shorter, tokens)).embedding);
    EXPECT_EQ((*embedded)[0].embedding == (*other)[0].embedding, tokens == Pooling::Tokens::kFirst);
  }
}

}  // namespace
}  // namespace nibble
