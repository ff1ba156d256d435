// SPDX-License-Identifier: Apache-2.0
// Layers that are tuned while they are rounded, of families whose networks have outliers.
#include "quantize/learn/tune_block.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "base/thread_pool.h"
#include "compute/exact_backend.h"
#include "formats/packed_weights_testing.h"
#include "models/import/open_network.h"
#include "models/outlier_model_testing.h"
#include "quantize/learn/scale_factors.h"
#include "quantize/map/rotate.h"
#include "quantize/plan/make_plan.h"
#include "quantize/round/host_math.h"
#include "quantize/walk/backprop.h"
#include "quantize/walk/calibrate.h"

namespace nibble {
namespace {

constexpr int64_t kTunedContext = 48, kTunedWindows = 16;

// Both layers of a network, one after the other.
class TunedNetwork {
 public:
  TunedNetwork(const FamilyModel& family, const Recipe& recipe) : recipe_(recipe) {
    const Json config = SmallConfig(family.changes);
    const std::string name = "tuned-" + std::string(family.name);
    source_ = OpenNetwork(RandomModel(name, config, OutlierValues(config)));
    plan_ = MakePlan(source_.config, recipe_);
    PlanInputScales(source_.config, plan_);
    Rng rng(1);
    for (int32_t& id : ids_) {
      id = static_cast<int32_t>(rng.Below(static_cast<uint64_t>(source_.config.vocab_size)));
    }
  }

  struct Result {
    std::vector<LayerWeights> layers;
    double first = 0, last = 0;  // losses, as products over all calls
  };
  // done: what an earlier run has finished.
  Result Run(std::vector<LayerWeights> done = {}) const {
    const Rotator rotator(source_, recipe_, plan_, 0);
    BlockTuning tuning(*backend_, math_, source_.config, recipe_, plan_, rotator.embedding(), ids_,
                       kTunedContext);
    Calibration calibration(*backend_, source_.config, plan_, recipe_, rotator.embedding(), ids_,
                            kTunedContext);
    Result result = {{}, 1, 1};
    for (int64_t i = 0; i < source_.config.layers; ++i) {
      const FloatLayer layer = rotator.Layer(i);
      tuning.Begin(i, layer);
      if (static_cast<size_t>(i) < done.size()) {
        result.layers.push_back(done[static_cast<size_t>(i)]);
        calibration.Skip(result.layers.back(), layer, i);
      } else {
        std::map<Role, double> errors;
        result.layers.push_back(calibration.Round(
            layer, i, errors, [](double, std::string_view) {},
            [&](LinearSet set, FloatLayer& rest, LayerWeights& stored, const auto& progress) {
              const auto [first, last] = tuning.Tune(set, rest, stored, progress);
              if (first == 0) return;
              result.first *= first, result.last *= last;
            }));
      }
      tuning.Pass(result.layers.back());
    }
    return result;
  }

 private:
  Recipe recipe_;
  Network source_;
  Plan plan_;
  std::vector<int32_t> ids_ = std::vector<int32_t>(kTunedWindows * kTunedContext);
  const std::unique_ptr<Backend> backend_ = MakeExactBackend();
  const HostMath math_;
};

Recipe TunedRecipe(const Recipe& like) {
  Recipe recipe = like;
  recipe.tune_epochs = 4;
  return recipe;
}

void ExpectSameLayers(const std::vector<LayerWeights>& a, const std::vector<LayerWeights>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    for (const auto& [role, linear] : a[i].linears) {
      ExpectSamePlanes(linear.weights, b[i][role].weights);
      EXPECT_EQ(linear.input.scales, b[i][role].input.scales);
    }
  }
}

class TunedFamily : public testing::TestWithParam<FamilyModel> {};

// Three calls for each of two layers. Where rounding alone decided, nothing would be gained on
// windows that no step has seen; of the families each has a product of 0.09 to 0.66 of the first.
TEST_P(TunedFamily, OutputsOfUnseenWindowsComeCloser) {
  const auto [layers, first, last] = TunedNetwork(GetParam(), TunedRecipe(kQuipsharpRecipe)).Run();
  RecordProperty("ratio", fmt::format("{:.3f}", last / first));
  EXPECT_LT(last, 0.9 * first);
}

std::vector<FamilyModel> TunableFamilies() {
  std::vector<FamilyModel> families = FamilyModels();
  std::erase_if(families, [](const FamilyModel& family) {
    return !Differentiable(ParseConfig(SmallConfig(family.changes), std::string(family.name)));
  });
  return families;
}
INSTANTIATE_TEST_SUITE_P(All, TunedFamily, testing::ValuesIn(TunableFamilies()),
                         [](const auto& param) { return std::string(param.param.name); });

// Activations and cache are rounded, outputs transformed, and some linears are not rounded at all.
TEST(BlockTuning, TakesOtherFormats) {
  Recipe recipe = TunedRecipe(kQuarotRecipe);
  recipe.gptaq = 0, recipe.output_transforms = true, recipe.weights.bits = 3;
  recipe.rules = {{"\\.0\\.(up|o)$", "w-bits=16"}};
  const auto [layers, first, last] = TunedNetwork({"plain", Json::object()}, recipe).Run();
  RecordProperty("ratio", fmt::format("{:.3f}", last / first));
  EXPECT_LT(last, first);
}

TEST(BlockTuning, GoesOnBehindAFinishedLayerToTheSameBytes) {
  const TunedNetwork network({"plain", Json::object()}, TunedRecipe(kQuipsharpRecipe));
  const std::vector<LayerWeights> whole = network.Run().layers;
  ExpectSameLayers(network.Run({whole[0]}).layers, whole);
}

// A task runs its own ParallelFor alone.
TEST(BlockTuning, DoesNotDependOnThreads) {
  const TunedNetwork network({"plain", Json::object()}, TunedRecipe(kQuipsharpRecipe));
  std::vector<LayerWeights> alone;
  ParallelFor(2, [&](size_t task) {
    if (task == 0) alone = network.Run().layers;
  });
  ExpectSameLayers(network.Run().layers, alone);
}

}  // namespace
}  // namespace nibble
