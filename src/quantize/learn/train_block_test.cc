// SPDX-License-Identifier: Apache-2.0
// Layers that learn clips and scales: the way back by hand, exact scales, and families whose
// networks have outliers.
#include "quantize/learn/train_block.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "compute/exact_backend.h"
#include "models/import/open_network.h"
#include "models/outlier_model_testing.h"
#include "quantize/learn/block_parameters.h"
#include "quantize/plan/make_plan.h"
#include "quantize/round/host_math.h"
#include "quantize/walk/backprop.h"

namespace nibble {
namespace {

// The range is half of [-1, 2], and its steps are 0.1: two weights lie outside of it.
TEST(ThroughRounding, WeightsOutsideFollowTheEnds) {
  Matrix<double> w(1, 4);
  w.data = {-1, 0.3, 0.34, 2};
  Matrix<float> gradients(1, 4);
  gradients.data = {1, 10, 30, 100};
  const FormatSpec format = {.bits = 4, .symmetric = false};
  const float half[] = {0};
  const EndGradients ends = ThroughRounding(w, format, half, half, gradients);
  // 0.34 is rounded down by 0.4 steps, which a longer step makes more of.
  const double top = 100 - 30 * 0.4 / 15, bottom = 1 + 30 * 0.4 / 15;
  EXPECT_NEAR(gradients.data[0], bottom / 2, 1e-5);
  EXPECT_EQ(gradients.data[1], 10);
  EXPECT_EQ(gradients.data[2], 30);
  EXPECT_NEAR(gradients.data[3], top / 2, 1e-5);
  EXPECT_NEAR(ends.high[0], top * 2 / 4, 1e-5);
  EXPECT_NEAR(ends.low[0], bottom * -1 / 4, 1e-5);
}

// A token's step is a fifteenth of what its ends span; the other element's error is -0.02.
TEST(FactorGradients, EndsOfATokenCarryItsStep) {
  const std::vector<float> exact = {-1, 0.22f, 2}, rounded = {-1, 0.2f, 2}, back = {3, 10, 5};
  const ReadInputs x = {exact, rounded, back};
  const double of_step = -0.02 * 10;
  const auto plain = FactorGradients(x, 3, {.bits = 16});
  const auto asymmetric = FactorGradients(x, 3, {.bits = 4, .symmetric = false});
  const auto symmetric = FactorGradients(x, 3, {.bits = 4});
  const double products[] = {-3, 2.2, 10}, of_ends[] = {1.0 / 3, 0, 2.0 / 3},
               of_largest[] = {0, 0, 1};
  for (size_t k = 0; k < 3; ++k) {
    EXPECT_NEAR(plain[k], products[k], 1e-5);
    EXPECT_NEAR(asymmetric[k], products[k] + of_step * of_ends[k], 1e-5);
    EXPECT_NEAR(symmetric[k], products[k] + of_step * of_largest[k], 1e-5);
  }
}

constexpr int64_t kTrainingContext = 48;

class TrainedFamily : public testing::TestWithParam<FamilyModel> {
 protected:
  TrainedFamily() {
    const Json config = SmallConfig(GetParam().changes);
    const std::string name = "trained-" + std::string(GetParam().name);
    source_ = OpenNetwork(RandomModel(name, config, OutlierValues(config)));
    Rng rng(1);
    for (int32_t& id : ids_) {
      id = static_cast<int32_t>(rng.Below(static_cast<uint64_t>(source_.config.vocab_size)));
    }
  }
  // The residual stream behind a layer in floats.
  std::vector<float> Behind(const FloatLayer& layer, const Rotator& rotator, const Plan& plan) {
    Stream stream(*backend_, source_.config, plan, rotator.embedding(), ids_, kTrainingContext,
                  false);
    stream.Pass(StoreFloats(layer), 0);
    const auto x = stream.host_x();
    return {x.begin(), x.end()};
  }
  // Sums over layers, as they are and with what they have learned.
  BlockTraining::Losses Learn(const Recipe& recipe) {
    const Plan plan = MakePlan(source_.config, recipe);
    const Rotator rotator(source_, recipe, plan, 0);
    BlockTraining training(*backend_, math_, source_.config, recipe, plan, rotator.embedding(),
                           ids_, kTrainingContext);
    BlockTraining::Losses sums;
    for (int64_t i = 0; i < source_.config.layers; ++i) {
      FloatLayer layer = rotator.Layer(i);
      const auto [first, last] = training.Train(i, layer, [](double) {});
      sums.first += first, sums.last += last;
      training.Pass(i, StoreNearest(layer, plan, i));
    }
    return sums;
  }

  Network source_;
  std::vector<int32_t> ids_ = std::vector<int32_t>(4 * kTrainingContext);
  const std::unique_ptr<Backend> backend_ = MakeExactBackend();
  const HostMath math_;
};

TEST_P(TrainedFamily, ScalesChangeNothingInFloats) {
  const Plan plan = MakePlan(source_.config, kOmniquantRecipe);
  const Rotator rotator(source_, kOmniquantRecipe, plan, 0);
  const FloatLayer layer = rotator.Layer(0);
  BlockParameters parameters(source_.config, plan, 0, layer, true);
  Rng rng(2);
  for (int step = 0; step < 40; ++step) {
    for (const auto& [role, w] : layer.weights) {
      Matrix<float> gradients(w.rows, w.cols);
      for (float& value : gradients.data) value = static_cast<float>(rng.Normal());
      parameters.AddWeights(role, std::move(gradients));
    }
    parameters.Step();
  }
  const auto before = Behind(layer, rotator, plan),
             after = Behind(parameters.scaled(), rotator, plan);
  double change = 0, size = 0, moved = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    change += std::pow(before[i] - after[i], 2), size += std::pow(before[i], 2);
  }
  for (size_t i = 0; i < layer[Role::kQ].data.size(); ++i) {
    moved =
        std::max(moved, std::fabs(layer[Role::kQ].data[i] - parameters.scaled()[Role::kQ].data[i]));
  }
  EXPECT_GT(moved, 1e-3);
  EXPECT_LT(std::sqrt(change / size), 1e-5);
}

TEST_P(TrainedFamily, OutputsComeCloser) {
  Recipe weights = kOmniquantRecipe;  // the paper's W2A16, in smaller groups
  weights.activations = weights.k = weights.v = {};
  weights.weights.bits = 2, weights.weights.group = 32;
  weights.learned_channels = false, weights.smoothing = 0;
  for (const Recipe& recipe : {kOmniquantRecipe, weights}) {
    const auto [first, last] = Learn(recipe);
    RecordProperty(fmt::format("ratio_{}", recipe.activations.bits),
                   fmt::format("{:.3f}", last / first));
    EXPECT_LT(last, (recipe.activations.quantized() ? 0.75 : 0.97) * first);
  }
}

std::vector<FamilyModel> DifferentiableFamilies() {
  std::vector<FamilyModel> families = FamilyModels();
  std::erase_if(families, [](const FamilyModel& family) {
    return !Differentiable(ParseConfig(SmallConfig(family.changes), std::string(family.name)));
  });
  return families;
}
INSTANTIATE_TEST_SUITE_P(All, TrainedFamily, testing::ValuesIn(DifferentiableFamilies()),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace nibble
