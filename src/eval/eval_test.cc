// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "eval/log_sum_exp.h"
#include "eval/perplexity.h"
#include "eval/text_windows.h"

namespace nibble {
namespace {

constexpr const char* kTiny = NIBBLE_SOURCE_DIR "/samples/tiny";

TEST(TextWindows, OneBosInFrontAndNoIncompleteWindow) {
  const Tokenizer tokenizer = Tokenizer::Load(std::string(kTiny) + "/tokenizer.json");
  const std::string text = "the river and the town and the river and the town";
  const auto ids = tokenizer.Encode(text);
  const auto windows = TextWindows(tokenizer, text, {.context = 4}, "test");
  ASSERT_EQ(windows.size(), ids.size() / 4);
  EXPECT_EQ(windows[0][0], 0);  // BOS
  std::vector<int32_t> joined;
  for (const auto& w : windows) joined.insert(joined.end(), w.begin(), w.end());
  EXPECT_TRUE(std::equal(joined.begin(), joined.end(), ids.begin()));
  EXPECT_EQ(TextWindows(tokenizer, text, {.context = 4, .windows = 1}, "test").size(), 1u);
  const auto bos = TextWindows(tokenizer, text, {.context = 4, .window_bos = true}, "test");
  for (const auto& w : bos) EXPECT_EQ(w[0], 0);
  EXPECT_THROW(TextWindows(tokenizer, "short", {.context = 100}, "test"), Error);
}

TEST(TextWindows, TheGptqProtocolJoinsRowsWithBlankLines) {
  const Tokenizer tokenizer = Tokenizer::Load(std::string(kTiny) + "/tokenizer.json");
  // Rows: "", " = A = \n", "" -> "" + "\n\n" + " = A = \n" + "\n\n" + "".
  const auto windows =
      TextWindows(tokenizer, " \n = A = \n \n", {.context = 2, .gptq_rows = true}, "t");
  const auto expected = tokenizer.Encode("\n\n = A = \n\n\n");
  std::vector<int32_t> joined;
  for (const auto& w : windows) joined.insert(joined.end(), w.begin(), w.end());
  EXPECT_TRUE(std::equal(joined.begin(), joined.end(), expected.begin()));
}

TEST(LogSumExp, AgreesWithDouble) {
  Rng rng(9);
  for (const size_t count : {1, 7, 16, 4096, 4097, 50000}) {
    for (const double spread : {1.0, 30.0, 200.0}) {
      std::vector<float> row(count);
      for (float& v : row) v = static_cast<float>(spread * rng.Normal());
      const double top = *std::max_element(row.begin(), row.end());
      double sum = 0;
      for (const float v : row) sum += std::exp(static_cast<double>(v) - top);
      // exp is off by about 2 ulp of fp32 and x - top by half of one of up to `spread * 10`; at
      // least four lanes share a piece of up to 4096 values and round once a value.
      const double piece = static_cast<double>(std::min<size_t>(count, 4096));
      const double relative = 0x1p-24 * (4 + 10 * spread + piece / 4);
      EXPECT_NEAR(LogSumExp(row), top + std::log(sum), relative) << count << ", " << spread;
    }
  }
}

class Evaluation : public testing::Test {
 protected:
  void SetUp() override {
    Rng rng(4);
    for (int w = 0; w < 2; ++w) {
      auto& ids = windows_.emplace_back();
      for (int i = 0; i < 150; ++i) ids.push_back(static_cast<int32_t>(rng.Below(4096)));
    }
  }
  Windows windows_;
};

TEST_F(Evaluation, PerplexityIsTheMeanLossOfThePredictedTokens) {
  const auto model = LoadModel(kTiny, "cpu", false);
  const PerplexityResult r = Perplexity(*model, windows_);
  double nll = 0;
  for (const auto& ids : windows_) {
    KvCache cache = model->MakeCache();
    const Model::Sequence sequence = {ids, &cache};
    const float* x = model->Forward({&sequence, 1});
    const float* logits = model->Logits(x, 150);
    for (size_t t = 0; t + 1 < 150; ++t) {
      long double sum = 0;
      for (size_t i = 0; i < 4096; ++i)
        sum += std::exp(static_cast<long double>(logits[t * 4096 + i]));
      nll += static_cast<double>(std::log(sum)) -
             static_cast<double>(logits[t * 4096 + static_cast<size_t>(ids[t + 1])]);
    }
  }
  nll /= 2 * 149;
  // exp of fp32 differences: relative 1e-7 per term.
  EXPECT_NEAR(r.nll, nll, 1e-5);
  EXPECT_DOUBLE_EQ(r.perplexity, std::exp(r.nll));
  EXPECT_EQ(r.tokens, 2 * 149);
}

TEST_F(Evaluation, DivergenceFromItselfIsZero) {
  const auto a = LoadModel(kTiny, "cpu", false), b = LoadModel(kTiny, "cpu", false);
  const KlResult r = KlDivergence(*a, *b, windows_);
  EXPECT_NEAR(r.kl_mean, 0, 1e-12);
  EXPECT_EQ(r.top1_agreement, 1.0);
  EXPECT_EQ(r.perplexity, r.reference_perplexity);
  EXPECT_EQ(r.loss_difference, 0);
  EXPECT_EQ(r.loss_difference_stderr, 0);
  EXPECT_EQ(r.tokens, 2 * 149);
}

TEST_F(Evaluation, TheReferenceArithmeticDivergesLittle) {
  const auto a = LoadModel(kTiny, "cpu", false), b = LoadModel(kTiny, "cpu", true);
  const KlResult r = KlDivergence(*a, *b, windows_);
  // Same fp32 weights, sums in another order: logits differ by about 1e-5, KL by its square.
  EXPECT_LT(r.kl_mean, 1e-8);
  EXPECT_GT(r.top1_agreement, 0.99);
  // Of two windows, the deviation of either from their mean.
  const auto losses = Perplexity(*a, windows_).window_nll,
             others = Perplexity(*b, windows_).window_nll;
  const double first = losses[0] - others[0], second = losses[1] - others[1];
  EXPECT_NE(first, second);
  EXPECT_NEAR(r.loss_difference, (first + second) / 2, 1e-12);
  EXPECT_NEAR(r.loss_difference_stderr, std::fabs(first - second) / 2, 1e-12);
}

}  // namespace
}  // namespace nibble
