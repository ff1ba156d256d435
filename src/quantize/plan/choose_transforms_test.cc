// SPDX-License-Identifier: Apache-2.0
// Online transforms stay where they help and go where they do harm, and the maps stay exact.
#include "quantize/plan/choose_transforms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compute/exact_backend.h"
#include "engine/engine_testing.h"
#include "models/import/open_network.h"
#include "models/random_model_testing.h"
#include "quantize/map/invariance.h"
#include "quantize/plan/make_plan.h"
#include "quantize/round/round.h"

namespace nibble {
namespace {

class ChooseTransformsTest : public testing::Test {
 protected:
  void SetUp() override {
    Rng rng(2);
    for (int i = 0; i < 3 * kContext; ++i) {
      ids_.push_back(static_cast<int32_t>(rng.Below(static_cast<uint64_t>(c_.vocab_size))));
    }
  }
  void Choose(const Recipe& recipe) {
    plan_ = MakePlan(c_, recipe);
    Rotator rotator(source_, recipe, plan_, 3);
    double layers = 0;
    ChooseTransforms(*backend_, c_, recipe, rotator, ids_, kContext, plan_,
                     [&](double done) { layers = done; });
    EXPECT_EQ(layers, c_.layers);
    EXPECT_NO_THROW(CheckInvariance(
        source_, rotator, [&](int64_t i) { return rotator.Layer(i); }, plan_, *MakeExactBackend()));
  }
  // Layers whose linear of this kind has no online transform.
  Json LayersWithout(Role role) const {
    Json layers = Json::array();
    for (int64_t i = 0; i < c_.layers; ++i) {
      if (plan_.at(i, role).input_transform.identity()) layers.push_back(i);
    }
    return layers;
  }

  // Weights that can be rounded without any error as they are.
  static void MakeExact(PackedLinear& linear) {
    const FormatSpec format = {.bits = 4, .clip = 0};
    Tensor& values = linear.weights.values;
    const Matrix<float> codes = Decode(RoundNearest(ToF64(values), format).weights);
    values = Tensor::Of(DType::kF32, {codes.rows, codes.cols}, codes.data);
  }

  static constexpr int64_t kContext = 48;
  Network source_ = OpenNetwork(kTinyModel);
  const ModelConfig& c_ = source_.config;
  std::unique_ptr<Backend> backend_ = MakeBackend("cpu", false);
  std::vector<int32_t> ids_;
  Plan plan_;
};

// Down's weights in layer 1 can be rounded without any error as they are; what gate and up read has
// one channel far above the others, whose weights are small: 4 bits cannot hold both.
TEST_F(ChooseTransformsTest, HarmIsFoundAndHelpIsKept) {
  Recipe recipe = kQuarotRecipe;
  recipe.rotation = Rotation::kInputs;
  recipe.balance = 0;
  recipe.rounding = Rounding::kNearest;
  recipe.rules.push_back({std::string(kDownPattern), "a-bits=16"});
  MakeExact(source_.layers[1][Role::kDown]);
  for (LayerWeights& layer : source_.layers) {
    Matrix<float> norm = ToF32(layer.vectors[LayerVector::kMlpNorm]);
    norm.data[5] *= 40;
    layer.vectors[LayerVector::kMlpNorm] = Tensor::Of(DType::kF32, {c_.hidden_size}, norm.data);
    for (Role role : {Role::kGate, Role::kUp}) {
      Tensor& values = layer[role].weights.values;
      Matrix<float> w = ToF32(values);
      for (int64_t n = 0; n < w.rows; ++n) w.row(n)[5] /= 40;
      values = Tensor::Of(DType::kF32, {w.rows, w.cols}, w.data);
    }
  }
  Choose(recipe);
  EXPECT_THAT(LayersWithout(Role::kDown), testing::Contains(Json(1)));
  EXPECT_EQ(LayersWithout(Role::kGate), Json::array());
  EXPECT_EQ(LayersWithout(Role::kUp), Json::array());
  const Json& said = plan_.provenance["transforms_left_out"];
  for (Role role : {Role::kQ, Role::kO, Role::kGate, Role::kDown}) {
    EXPECT_EQ(said.value(RoleName(role), Json::array()), LayersWithout(role)) << RoleName(role);
  }
  // Linears that share an input have it prepared alike.
  EXPECT_EQ(LayersWithout(Role::kQ), LayersWithout(Role::kV));
}

// In families without a norm in front of q, k and v, these still share what is left out.
TEST_F(ChooseTransformsTest, ReadersOfOneInputGoTogetherWithoutANorm) {
  const std::vector<FamilyModel> families = FamilyModels();
  const auto olmo2 = std::ranges::find(families, std::string_view("olmo2"), &FamilyModel::name);
  ASSERT_NE(olmo2, families.end());
  source_ = OpenNetwork(RandomModel("transforms-olmo2", SmallConfig(olmo2->changes)));
  for (int32_t& id : ids_) id %= static_cast<int32_t>(c_.vocab_size);
  for (Role role : {Role::kQ, Role::kK, Role::kV, Role::kGate, Role::kUp}) {
    MakeExact(source_.layers[0][role]);
  }
  Recipe recipe = kQuarotRecipe;
  recipe.rounding = Rounding::kNearest;
  recipe.activations = {.bits = 16};
  Choose(recipe);
  EXPECT_THAT(LayersWithout(Role::kQ), testing::Contains(Json(0)));
  EXPECT_THAT(LayersWithout(Role::kGate), testing::Contains(Json(0)));
  EXPECT_EQ(LayersWithout(Role::kQ), LayersWithout(Role::kK));
  EXPECT_EQ(LayersWithout(Role::kQ), LayersWithout(Role::kV));
  EXPECT_EQ(LayersWithout(Role::kGate), LayersWithout(Role::kUp));
}

// A residual stream that is turned keeps its readers as they are; scales go with the transform.
TEST_F(ChooseTransformsTest, MapsStayExact) {
  Choose(kQuarotRecipe);
  EXPECT_FALSE(plan_.provenance["transforms_left_out"].contains("q"));
  Recipe inputs = kNibbleRecipe;
  inputs.rotation = Rotation::kInputs;
  Choose(FittedTo(c_, inputs));
}

}  // namespace
}  // namespace nibble
