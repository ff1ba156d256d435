// SPDX-License-Identifier: Apache-2.0
// Online transforms stay where they help and go where they do harm, and the maps stay exact.
#include "quantize/choose_transforms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/engine_testing.h"
#include "quantize/invariance.h"
#include "quantize/round.h"

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
        source_, rotator, [&](int64_t i) { return rotator.Layer(i); }, plan_, *backend_));
  }
  // Layers whose linear of this kind has no online transform.
  Json LayersWithout(Role role) const {
    Json layers = Json::array();
    for (int64_t i = 0; i < c_.layers; ++i) {
      if (plan_.at(i, role).input_transform.identity()) layers.push_back(i);
    }
    return layers;
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
  PackedLinear& down = source_.layers[1][Role::kDown];
  const FormatSpec format = {.bits = 4, .clip = 0};
  const Matrix<float> codes = Decode(RoundNearest(ToF64(down.weights.values), format).weights);
  down.weights.values = Tensor::Of(DType::kF32, {codes.rows, codes.cols}, codes.data);
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
