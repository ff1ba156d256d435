// SPDX-License-Identifier: Apache-2.0
// The check of exactness finds mistakes and makes none: its limit is the rounding that it measures.
#include "quantize/map/invariance.h"

#include <gtest/gtest.h>

#include "compute/exact_backend.h"
#include "engine/engine_testing.h"
#include "models/import/open_network.h"
#include "models/outlier_model_testing.h"
#include "models/real_model_testing.h"
#include "quantize/map/channels.h"
#include "quantize/plan/make_plan.h"

namespace nibble {
namespace {

// A mistake in one linear of a layer, or in what stands in front of it.
enum class Mistake {
  kSignOfOutput,
  kSignOfInput,
  kOrderOfInputs,
  kOrderOfOutputs,
  kScaleOfInput,
  kScaleOfOutput,
  kNorm,
  kGather
};
constexpr int kMistakes = 8;

void SwapColumns(Matrix<double>& w, size_t a, size_t b) {
  for (int64_t n = 0; n < w.rows; ++n) std::swap(w.row(n)[a], w.row(n)[b]);
}

void ScaleColumn(Matrix<double>& w, size_t k, double factor) {
  for (int64_t n = 0; n < w.rows; ++n) w.row(n)[k] *= factor;
}

void Plant(Mistake mistake, Rng& rng, FloatLayer& layer) {
  const auto any = [&](int64_t count) { return rng.Below(static_cast<uint64_t>(count)); };
  auto it = layer.weights.begin();
  std::advance(it, any(7));
  Matrix<double>& w = it->second;
  const auto n = static_cast<int64_t>(any(w.rows));
  const size_t k = any(w.cols), other = (k + 1 + any(w.cols - 1)) % static_cast<size_t>(w.cols);
  switch (mistake) {
    case Mistake::kSignOfOutput:
      for (double& value : w.row(n)) value = -value;
      break;
    case Mistake::kSignOfInput:
      ScaleColumn(w, k, -1);
      break;
    case Mistake::kOrderOfInputs:
      SwapColumns(w, k, other);
      break;
    case Mistake::kOrderOfOutputs:
      std::ranges::swap_ranges(w.row(n), w.row((n + 1) % w.rows));
      break;
    case Mistake::kScaleOfInput:
      ScaleColumn(w, k, 1.1);
      break;
    case Mistake::kScaleOfOutput:
      for (double& value : w.row(n)) value *= 0.9;
      break;
    case Mistake::kNorm: {  // kept, or folded into what reads it
      std::vector<float>& norm = layer.vectors[LayerVector::kAttentionNorm];
      const size_t channel = any(layer[Role::kQ].cols);
      if (!norm.empty()) norm[channel] *= 1.1f;
      for (Role role : {Role::kQ, Role::kK, Role::kV}) {
        if (norm.empty()) ScaleColumn(layer[role], channel, 1.1);
      }
      break;
    }
    case Mistake::kGather: {  // without one, of the columns that it would order
      std::vector<int32_t>& gather = layer.gathers[Role::kO];
      const size_t a = any(layer[Role::kO].cols), b = (a + 1) % (gather.size() + 1);
      if (gather.empty()) SwapColumns(layer[Role::kO], a, a == 0 ? 1 : a - 1);
      if (!gather.empty()) std::swap(gather[a % gather.size()], gather[b % gather.size()]);
      break;
    }
  }
}

// The statistics of channels on random ids.
std::vector<LayerStatistics> StatisticsOf(Backend& backend, const Network& source, const Plan& plan,
                                          const Rotator& rotator) {
  Rng rng(1);
  std::vector<int32_t> ids(96);
  for (int32_t& id : ids) {
    id = static_cast<int32_t>(rng.Below(static_cast<uint64_t>(source.config.vocab_size)));
  }
  return CollectStatistics(backend, source.config, plan, rotator, ids, 48, false,
                           [](double, std::string_view) {});
}

// Checks a source under a recipe, as it is for `seeds` seeds and with `mistakes` planted ones.
void ExpectMistakesFound(const Network& source, const Recipe& recipe, int seeds, int mistakes) {
  const auto backend = MakeExactBackend();
  const Plan plan = MakePlan(source.config, recipe);
  const Rotator rotator(source, recipe, plan, 3);
  std::vector<LayerStatistics> statistics;
  if (recipe.arranges_channels()) statistics = StatisticsOf(*backend, source, plan, rotator);
  const FloatLayers make = [&](int64_t i) {
    FloatLayer layer = rotator.Layer(i);
    if (!statistics.empty()) {
      ArrangeChannels(statistics[static_cast<size_t>(i)], source.config, recipe, plan, i, layer);
    }
    return layer;
  };
  const FloatLayers right = KeepLayers(make, seeds + mistakes, 4e9);
  for (int seed = 0; seed < seeds; ++seed) {
    Invariance worst;
    EXPECT_NO_THROW(worst = CheckInvariance(source, rotator, right, plan, *backend, seed)) << seed;
    EXPECT_GT(worst.change, 0) << worst.part << ": fp32 is never exact";
  }
  for (int i = 0; i < mistakes; ++i) {
    Rng rng(static_cast<uint64_t>(i), 1);
    const auto wrong = static_cast<int64_t>(rng.Below(static_cast<uint64_t>(source.config.layers)));
    const FloatLayers layers = [&](int64_t index) {
      FloatLayer layer = right(index);
      if (index == wrong) Plant(static_cast<Mistake>(i % kMistakes), rng, layer);
      return layer;
    };
    EXPECT_THROW(CheckInvariance(source, rotator, layers, plan, *backend), Error)
        << "mistake " << i % kMistakes << " in layer " << wrong;
  }
}

TEST(PlantedMistakes, AreFoundInTheSampleModel) {
  const Network source = OpenNetwork(kTinyModel);
  Recipe inputs = kQuarotRecipe;
  inputs.rotation = Rotation::kInputs;
  for (const Recipe& recipe : {kQuarotRecipe, inputs, kQuikRecipe}) {
    SCOPED_TRACE(recipe.name);
    ExpectMistakesFound(source, recipe, 2, kMistakes);
  }
}

class FamilyMistakes : public testing::TestWithParam<FamilyModel> {};

// Layers of all families, whose random networks have the outliers of trained ones.
TEST_P(FamilyMistakes, AreFound) {
  const Json config = SmallConfig(GetParam().changes);
  const Network source = OpenNetwork(
      RandomModel("mistakes-" + std::string(GetParam().name), config, OutlierValues(config)));
  ExpectMistakesFound(source, kQuarotRecipe, 2, kMistakes);
}

INSTANTIATE_TEST_SUITE_P(All, FamilyMistakes, testing::ValuesIn(FamilyModels()),
                         [](const auto& param) { return std::string(param.param.name); });

// The embedding and the head are compared as well: here those of another draw of signs.
TEST(PlantedMistakes, AreFoundInTables) {
  const Network source = OpenNetwork(kTinyModel);
  const auto backend = MakeExactBackend();
  const Plan plan = MakePlan(source.config, kQuarotRecipe);
  const Rotator rotator(source, kQuarotRecipe, plan, 3), other(source, kQuarotRecipe, plan, 4);
  const FloatLayers layers = [&](int64_t i) { return rotator.Layer(i); };
  EXPECT_THROW(CheckInvariance(source, other, layers, plan, *backend), Error);
  Network heads = OpenNetwork(kTinyModel);
  Tensor& norm = heads.final_norm;
  Matrix<float> changed = ToF32(norm);
  changed.data[7] *= 0.9f;
  norm = Tensor::Of(DType::kF32, norm.shape, changed.data);
  const Rotator wrong_head(heads, kQuarotRecipe, plan, 3);
  EXPECT_THROW(CheckInvariance(source, wrong_head, layers, plan, *backend), Error);
}

class RealModels : public testing::TestWithParam<const char*> {};

// The mistakes are in the first layers, where massive activations begin.
TEST_P(RealModels, PlantedMistakesAreFound) {
  const std::string path = RealModel(GetParam());
  if (path.empty()) GTEST_SKIP() << "needs " << GetParam();
  Network source = OpenNetwork(path);
  source.config.layers = 4;
  ExpectMistakesFound(source, kQuarotRecipe, 2, kMistakes);
}

// Takes three minutes: --gtest_also_run_disabled_tests.
TEST_P(RealModels, DISABLED_FortyPlantedMistakesAreFoundInAllLayers) {
  const std::string path = RealModel(GetParam());
  if (path.empty()) GTEST_SKIP() << "needs " << GetParam();
  ExpectMistakesFound(OpenNetwork(path), kQuarotRecipe, 20, 40);
}

INSTANTIATE_TEST_SUITE_P(All, RealModels, testing::ValuesIn(kRealModels),
                         [](const auto& param) { return RealModelTestName(param.param); });

}  // namespace
}  // namespace nibble
