// SPDX-License-Identifier: Apache-2.0
#include "quantize/plan/choose_clips.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "formats/quantizer.h"
#include "models/import/open_network.h"
#include "quantize/plan/make_plan.h"

namespace nibble {
namespace {

TEST(BestClip, FindsTheValleyToAHundredth) {
  for (const double valley : {0.3, 0.47, 0.7, 0.79, 0.85, 0.9, 0.96, 1.0}) {
    EXPECT_DOUBLE_EQ(BestClip([&](double clip) { return std::fabs(clip - valley); }), valley);
  }
}

// The first norm's outputs for `ids`: embedding rows at root mean square 1.
Matrix<float> FirstInputs(const Matrix<float>& embedding, const std::vector<int32_t>& ids,
                          double eps) {
  Matrix<float> x(static_cast<int64_t>(ids.size()), embedding.cols);
  for (size_t t = 0; t < ids.size(); ++t) {
    const auto row = embedding.row(ids[t]);
    double sum = 0;
    for (float v : row) sum += double{v} * v;
    const double scale = 1 / std::sqrt(sum / static_cast<double>(row.size()) + eps);
    for (size_t i = 0; i < row.size(); ++i) {
      x.row(static_cast<int64_t>(t))[i] = static_cast<float>(row[i] * scale);
    }
  }
  return x;
}

// |(x - x^) W^T|^2 over q, k and v by plain loops; of the first columns of W if x has fewer.
double OutputError(Matrix<float> x, FloatLayer& layer, const FormatSpec& format) {
  std::vector<int8_t> codes(static_cast<size_t>(x.cols));
  std::vector<float> back(codes.size());
  float scale = 0, zero_offset = 0;
  int32_t code_sum = 0;
  double total = 0;
  for (int64_t t = 0; t < x.rows; ++t) {
    const ActRow out = {codes.data(), &scale, &zero_offset, &code_sum};
    QuantizeActivations(x.row(t), format, out);
    DequantizeActivations(out, format, back);
    for (size_t i = 0; i < back.size(); ++i) back[i] = x.row(t)[i] - back[i];
    for (Role role : {Role::kQ, Role::kK, Role::kV}) {
      for (int64_t n = 0; n < layer[role].rows; ++n) {
        double y = 0;
        for (size_t i = 0; i < back.size(); ++i) y += back[i] * layer[role].row(n)[i];
        total += y * y;
      }
    }
  }
  return total;
}

// The share by which the error of `format`'s clip exceeds the least one. The error changes by 1 %
// within 0.02 of the best clip; random signs add about as much.
double Excess(const Matrix<float>& x, FloatLayer layer, FormatSpec format) {
  const double chosen = OutputError(x, layer, format);
  double min = INFINITY;
  for (int percent = 50; percent <= 100; percent += 2) {
    format.clip = percent / 100.0;
    min = std::min(min, OutputError(x, layer, format));
  }
  return chosen / min - 1;
}

// Layers whose gathers leave channels where they are.
FloatLayers InOrder(const ModelConfig& config, const Plan& plan, const Rotator& rotator) {
  return [&](int64_t i) {
    FloatLayer layer = rotator.Layer(i);
    for (Role role : kLayerRoles) {
      if (!plan.at(i, role).gather) continue;
      auto& gather = layer.gathers[role];
      gather.resize(static_cast<size_t>(config.inputs(i, role)));
      std::iota(gather.begin(), gather.end(), 0);
    }
    return layer;
  };
}

// Outlier channels in another format, the last ones, take part in no clip.
TEST(ChooseClips, LeavesTheTailOut) {
  const Network source = OpenNetwork(NIBBLE_SOURCE_DIR "/samples/tiny");
  const ModelConfig& c = source.config;
  Recipe recipe = kNibbleRecipe;
  recipe.rotation = Rotation::kHadamard;  // linears read norms without weights: FirstInputs
  recipe.order = ChannelOrder::kEnergy;
  recipe.tail = 1024;
  recipe.tail_weights = recipe.tail_activations = {.bits = 8};
  Plan plan = MakePlan(c, recipe);
  const int64_t tail = plan.at(0, Role::kQ).tail.columns, kept = c.hidden_size - tail;
  ASSERT_EQ(tail, c.hidden_size / 4);
  const Rotator rotator(source, recipe, plan, 0);
  std::vector<int32_t> ids(96);
  Rng rng(2);
  for (int32_t& id : ids) id = static_cast<int32_t>(rng.Below(4096));
  // Together with the tail, whose inputs are 20 times as large, the others would round to 0.
  Matrix<float> embedding = rotator.Table(Role::kEmbedding);
  for (int64_t n = 0; n < embedding.rows; ++n) {
    for (float& v : embedding.row(n).last(static_cast<size_t>(tail))) v *= 20;
  }
  ChooseClips(*MakeBackend("cpu", false), c, RowsOf(embedding), InOrder(c, plan, rotator), ids, 48,
              plan, [](double) {});
  const Matrix<float> all = FirstInputs(embedding, ids, c.norm_eps);
  Matrix<float> x(all.rows, kept);
  for (int64_t t = 0; t < x.rows; ++t) std::copy_n(all.row(t).begin(), kept, x.row(t).begin());
  EXPECT_LT(Excess(x, rotator.Layer(0), plan.at(0, Role::kQ).activations), 0.03);
}

// A weight-only tail: the floats that stand in for its weights have none.
TEST(ChooseClips, RunsLinearsThatReadFloatsWithoutTheirTails) {
  const Network source = OpenNetwork(NIBBLE_SOURCE_DIR "/samples/tiny");
  const ModelConfig& c = source.config;
  Recipe recipe = kQuikRecipe;
  recipe.activations.clip = 0;
  recipe.rules = {{std::string(kDownPattern), "a-bits=16"}};
  Plan plan = MakePlan(c, recipe);
  ASSERT_GT(plan.at(0, Role::kDown).tail.columns, 0);
  const Rotator rotator(source, recipe, plan, 0);
  const std::vector<int32_t> ids(48, 7);
  ChooseClips(*MakeBackend("cpu", false), c, rotator.embedding(), InOrder(c, plan, rotator), ids,
              48, plan, [](double) {});
  for (int64_t i = 0; i < c.layers; ++i) EXPECT_GT(plan.at(i, Role::kO).activations.clip, 0) << i;
}

TEST(ChooseClips, FindsTheClipOfLeastOutputErrorInTheFirstLayer) {
  const Network source = OpenNetwork(NIBBLE_SOURCE_DIR "/samples/tiny");
  const ModelConfig& c = source.config;
  for (const bool signed_scale : {false, true}) {
    Recipe recipe = kNibbleRecipe;
    recipe.rotation = Rotation::kHadamard;
    recipe.activations.signed_scale = signed_scale;
    Plan plan = MakePlan(c, recipe);
    EXPECT_EQ(plan.at(0, Role::kQ).activations.clip, 0);
    plan.linears[LinearName(2, Role::kO)].activations.clip = 0.625;  // given, not searched
    const Rotator rotator(source, recipe, plan, 0);
    Rng rng(1);
    std::vector<int32_t> ids;
    for (int i = 0; i < 96; ++i) ids.push_back(static_cast<int32_t>(rng.Below(4096)));
    double done = 0;
    const FloatLayers layers = [&](int64_t i) { return rotator.Layer(i); };
    ChooseClips(*MakeBackend("cpu", false), c, rotator.embedding(), layers, ids, 48, plan,
                [&](double layers_done) {
                  EXPECT_GE(layers_done, done);
                  done = layers_done;
                });
    EXPECT_EQ(done, static_cast<double>(c.layers));
    const Matrix<float> x = FirstInputs(rotator.Table(Role::kEmbedding), ids, c.norm_eps);
    EXPECT_LT(Excess(x, rotator.Layer(0), plan.at(0, Role::kQ).activations), 0.03);
    for (int64_t i = 0; i < c.layers; ++i) {
      EXPECT_EQ(plan.at(i, Role::kV).activations, plan.at(i, Role::kQ).activations);
      for (Role role : {Role::kQ, Role::kO, Role::kUp, Role::kDown}) {
        const double clip = plan.at(i, role).activations.clip;
        if (i == 2 && role == Role::kO) {
          EXPECT_EQ(clip, 0.625);
        }
        EXPECT_TRUE(clip > 0.6 && clip < 1) << i << " " << RoleName(role) << " " << clip;
      }
    }
  }
}

}  // namespace
}  // namespace nibble
