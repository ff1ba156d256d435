// SPDX-License-Identifier: Apache-2.0
#include "quantize/plan/choose_cache.h"

#include <gtest/gtest.h>

#include <cmath>

#include "engine/engine_testing.h"
#include "io/io_testing.h"
#include "models/import/open_network.h"
#include "quantize/plan/make_plan.h"
#include "quantize/recipes/recipe_fields.h"
#include "quantize/run/quantize.h"
#include "quantize/walk/sample_text.h"
#include "quantize/walk/windows.h"
#include "text/tokenizer.h"

namespace nibble {
namespace {

constexpr int64_t kContext = 64;  // all of whose predictions are compared

class ChoosesCache : public TemporaryDirectoryTest {
 protected:
  void SetUp() override {
    TemporaryDirectoryTest::SetUp();
    Quantize({.model = kTinyModel, .output = Path("out"), .recipe = recipe_});
  }

  CacheChoice Choose(double max, Plan& plan) const {
    double done = 0;
    const CacheChoice choice =
        ChooseCaches(Path("out"), "cpu", max, ids_, kContext, plan, [&](double share) {
          EXPECT_GE(share, done);
          done = share;
        });
    EXPECT_EQ(done, 1);
    return choice;
  }

  // Logits behind each token of both windows, by a model whose wide caches are in fp32.
  std::vector<std::vector<double>> Predictions(const Plan& plan) const {
    Network network = OpenNetwork(Path("out"));
    network.caches = LayerCaches(network.config, plan);
    for (KvSpec& cache : network.caches) {
      for (FormatSpec* format : {&cache.k, &cache.v}) {
        if (format->bits == 8) *format = {.bits = 32};
      }
    }
    Model model(std::move(network), MakeBackend("cpu", false));
    const auto vocab = static_cast<size_t>(model.config().vocab_size);
    std::vector<std::vector<double>> rows;
    for (size_t w = 0; w < 2; ++w) {
      KvCache cache = model.MakeCache();
      const Model::Sequence window = {std::span(ids_).subspan(w * kContext, kContext), &cache};
      const float* const logits = model.Logits(model.Forward({&window, 1}), kContext);
      for (size_t i = 0; i < kContext; ++i)
        rows.emplace_back(logits + i * vocab, logits + (i + 1) * vocab);
    }
    return rows;
  }

  Recipe recipe_ = ChangedRecipe(kRtnRecipe, ParseFields("w-bits=8,a-bits=16,kv-bits=8"));
  const Network source_ = OpenNetwork(kTinyModel);
  const Plan plan_ = MakePlan(source_.config, recipe_);
  const std::vector<int32_t> ids_ =
      RandomWindows(Tokenizer::Load(kTinyModel).Encode(SampleCalibrationText()), 3, kContext, 1,
                    "the sample text");
};

double MeanDivergence(const std::vector<std::vector<double>>& p,
                      const std::vector<std::vector<double>>& q) {
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    double of_p = 0, of_q = 0, kl = 0;
    for (size_t t = 0; t < p[i].size(); ++t) of_p += std::exp(p[i][t]), of_q += std::exp(q[i][t]);
    for (size_t t = 0; t < p[i].size(); ++t) {
      const double probability = std::exp(p[i][t]) / of_p;
      kl += probability * std::log(probability / (std::exp(q[i][t]) / of_q));
    }
    sum += kl;
  }
  return sum / static_cast<double>(p.size());
}

TEST_F(ChoosesCache, AsMuchAsMayBeLostIsWhatAModelOfThatPlanLoses) {
  const auto exact = Predictions(plan_);
  Plan all = plan_, some = plan_, none = plan_;
  const CacheChoice every = Choose(10, all);
  EXPECT_EQ(every.narrow, every.parts);
  EXPECT_EQ(every.parts, 2 * source_.config.layers);
  // Sums of exponentials in another order, of values that are subtracted.
  EXPECT_NEAR(every.loss, MeanDivergence(exact, Predictions(all)), 1e-9);

  const double max = every.loss / 3;
  const CacheChoice choice = Choose(max, some);
  EXPECT_GT(choice.narrow, 0);
  EXPECT_LT(choice.narrow, choice.parts);
  EXPECT_LE(choice.loss, max);
  EXPECT_NEAR(choice.loss, MeanDivergence(exact, Predictions(some)), 1e-9);
  int64_t narrow = 0;
  for (const auto& [layer, formats] : some.layer_caches) {
    narrow += (formats.k.bits == 4) + (formats.v.bits == 4);
  }
  EXPECT_EQ(narrow, choice.narrow);

  EXPECT_EQ(Choose(1e-9, none).narrow, 0);
  EXPECT_TRUE(none.layer_caches.empty());
}

// The parts that were narrowed are cheaper than those that were not.
TEST_F(ChoosesCache, TheCheapestPartsAreNarrow) {
  Plan some = plan_;
  Plan all = plan_;
  Choose(Choose(10, all).loss / 3, some);
  const auto exact = Predictions(plan_);
  double dearest = 0, cheapest_left = 1;
  for (int64_t layer = 0; layer < source_.config.layers; ++layer) {
    for (const auto part : {&CacheFormats::k, &CacheFormats::v}) {
      Plan one = plan_;
      one.layer_caches[layer] = {plan_.k, plan_.v};
      (one.layer_caches[layer].*part).bits = 4;
      const double cost = MeanDivergence(exact, Predictions(one));
      const auto taken = some.layer_caches.find(layer);
      const bool narrow = taken != some.layer_caches.end() && (taken->second.*part).bits == 4;
      if (narrow) dearest = std::max(dearest, cost);
      if (!narrow) cheapest_left = std::min(cheapest_left, cost);
    }
  }
  EXPECT_LE(dearest, cheapest_left);
}

}  // namespace
}  // namespace nibble
