// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/rng.h"
#include "engine/engine_testing.h"
#include "engine/log_sum_exp.h"
#include "eval/perplexity.h"
#include "eval/text_windows.h"
#include "io/io_testing.h"

namespace nibble {
namespace {

TEST(TextWindows, OneBosInFrontAndNoIncompleteWindow) {
  const Tokenizer tokenizer = Tokenizer::Load(kTinyModel);
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
  const Tokenizer tokenizer = Tokenizer::Load(kTinyModel);
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

TEST(LogSumExp, IsNanWhereALogitIsNotFinite) {
  std::vector<float> row(4100, 1);
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    for (const size_t at : {0, 1, 7, 15, 4095, 4096, 4099}) {
      row[at] = bad;
      EXPECT_TRUE(std::isnan(LogSumExp(row))) << bad << " at " << at;
      row[at] = 1;
    }
  }
  EXPECT_FALSE(std::isnan(LogSumExp(row)));
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
  const auto model = LoadModel(kTinyModel, "cpu", false);
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

TEST_F(Evaluation, LogitsThatAreNotFiniteNameTheirWindow) {
  const auto good = LoadModel(kTinyModel, "cpu", false);
  for (const float value : {NAN, INFINITY, 3e38f, 1e6f}) {  // of the last, exp(loss) is not
    const auto bad = TinyWithHeadValue(value);
    const auto names = [&](const char* window) {
      return testing::AllOf(testing::HasSubstr(kTinyModel), testing::HasSubstr(window),
                            testing::HasSubstr("logits are NaN, infinite or far too large"));
    };
    EXPECT_THAT(ErrorOf([&] { Perplexity(*bad, windows_); }), names("window 1 of 2"));
    EXPECT_THAT(ErrorOf([&] { KlDivergence(*bad, *good, windows_); }), names("window 1 of 2"));
    EXPECT_THAT(ErrorOf([&] { KlDivergence(*good, *bad, windows_); }), names("window 1 of 2"));
  }
}

TEST_F(Evaluation, TokensOutsideTheVocabularyAreRefused) {
  const auto model = LoadModel(kTinyModel, "cpu", false);
  windows_[1][3] = 4095;
  EXPECT_NO_THROW(Perplexity(*model, windows_));
  windows_[1][3] = 4096;
  EXPECT_THAT(ErrorOf([&] { Perplexity(*model, windows_); }), testing::HasSubstr("id 4096"));
}

TEST_F(Evaluation, DivergenceFromItselfIsZero) {
  const auto a = LoadModel(kTinyModel, "cpu", false), b = LoadModel(kTinyModel, "cpu", false);
  const KlResult r = KlDivergence(*a, *b, windows_);
  EXPECT_NEAR(r.kl_mean, 0, 1e-12);
  EXPECT_EQ(r.top1_agreement, 1.0);
  EXPECT_EQ(r.perplexity, r.reference_perplexity);
  EXPECT_EQ(r.loss_difference, 0);
  EXPECT_EQ(r.loss_difference_stderr, 0);
  EXPECT_EQ(r.tokens, 2 * 149);
  const auto other = TinyWithHeadValue(40.0f);  // one window has no scatter
  EXPECT_EQ(KlDivergence(*a, *other, {windows_[0]}).loss_difference_stderr, 0);
}

// Natural logarithms of the probabilities of each next token, [tokens - 1][vocab].
std::vector<std::vector<long double>> LogProbabilities(Model& model,
                                                       const std::vector<int32_t>& ids) {
  KvCache cache = model.MakeCache();
  const Model::Sequence sequence = {ids, &cache};
  const float* x = model.Forward({&sequence, 1});
  const size_t vocab = 4096;
  const float* logits = model.Logits(x, static_cast<int64_t>(ids.size()));
  std::vector<std::vector<long double>> result;
  for (size_t t = 0; t + 1 < ids.size(); ++t) {
    auto& row = result.emplace_back(logits + t * vocab, logits + (t + 1) * vocab);
    long double sum = 0;
    for (const long double l : row) sum += std::exp(l);
    for (long double& l : row) l -= std::log(sum);
  }
  return result;
}

// One token's logit differs, so both directions of the divergence do.
TEST_F(Evaluation, DivergenceIsThatOfTheModelFromTheReference) {
  const auto model = TinyWithHeadValue(40.0f), reference = LoadModel(kTinyModel, "cpu", false);
  const KlResult r = KlDivergence(*model, *reference, windows_);
  std::vector<long double> kl;
  long double reversed = 0, loss = 0, reference_loss = 0, agree = 0;
  for (const auto& ids : windows_) {
    const auto q = LogProbabilities(*model, ids), p = LogProbabilities(*reference, ids);
    for (size_t t = 0; t < p.size(); ++t) {
      long double sum = 0;
      for (size_t i = 0; i < p[t].size(); ++i) {
        sum += std::exp(p[t][i]) * (p[t][i] - q[t][i]);
        reversed += std::exp(q[t][i]) * (q[t][i] - p[t][i]);
      }
      kl.push_back(sum);
      const auto target = static_cast<size_t>(ids[t + 1]);
      loss -= q[t][target], reference_loss -= p[t][target];
      agree += std::max_element(q[t].begin(), q[t].end()) - q[t].begin() ==
               std::max_element(p[t].begin(), p[t].end()) - p[t].begin();
    }
  }
  const auto count = static_cast<long double>(kl.size());
  const auto mean = [&](long double sum) { return static_cast<double>(sum / count); };
  std::sort(kl.begin(), kl.end());
  // Double sums of 4096 products of size below 1, and differences of logarithms below 100.
  const double rounding = 4096 * 100 * 0x1p-53;
  const double expected = mean(std::accumulate(kl.begin(), kl.end(), 0.0L));
  EXPECT_NEAR(r.kl_mean, expected, rounding);
  EXPECT_NEAR(r.kl_p99, static_cast<double>(kl[kl.size() * 99 / 100]), rounding);
  EXPECT_GT(std::fabs(mean(reversed) - expected), 1000 * rounding) << "the test cannot tell";
  EXPECT_LT(r.kl_p99, static_cast<double>(kl.back()) - rounding);
  EXPECT_DOUBLE_EQ(r.top1_agreement, mean(agree));
  EXPECT_LT(r.top1_agreement, 1);
  // The losses' exponentials are those of LogSumExp (AgreesWithDouble).
  EXPECT_NEAR(r.loss_difference, mean(loss - reference_loss), 1e-4);
  EXPECT_NEAR(std::log(r.perplexity), mean(loss), 1e-4);
  EXPECT_NEAR(std::log(r.reference_perplexity), mean(reference_loss), 1e-4);
  EXPECT_GT(std::fabs(r.loss_difference), 1e-3);
}

TEST_F(Evaluation, TheReferenceArithmeticDivergesLittle) {
  const auto a = LoadModel(kTinyModel, "cpu", false), b = LoadModel(kTinyModel, "cpu", true);
  const KlResult r = KlDivergence(*a, *b, windows_);
  // Same fp32 weights, sums in another order: logits differ by about 1e-5, KL by its square.
  EXPECT_LT(r.kl_mean, 1e-8);
  EXPECT_GT(r.top1_agreement, 0.99);
  // The standard error of two windows is the deviation of either from their mean.
  const auto losses = Perplexity(*a, windows_).window_nll,
             others = Perplexity(*b, windows_).window_nll;
  const double first = losses[0] - others[0], second = losses[1] - others[1];
  EXPECT_NE(first, second);
  EXPECT_NEAR(r.loss_difference, (first + second) / 2, 1e-12);
  EXPECT_NEAR(r.loss_difference_stderr, std::fabs(first - second) / 2, 1e-12);
}

}  // namespace
}  // namespace nibble
