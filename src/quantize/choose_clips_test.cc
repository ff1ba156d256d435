// SPDX-License-Identifier: Apache-2.0
#include "quantize/choose_clips.h"

#include <gtest/gtest.h>

#include <cmath>

#include "formats/quantizer.h"

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

// |(x - x^) W^T|^2 over q, k and v by plain loops.
double OutputError(Matrix<float> x, FloatLayer& layer, const FormatSpec& format) {
  std::vector<int8_t> codes(static_cast<size_t>(x.cols));
  std::vector<float> back(codes.size());
  float scale = 0, zeta = 0;
  int32_t code_sum = 0;
  double total = 0;
  for (int64_t t = 0; t < x.rows; ++t) {
    const ActRow out = {codes.data(), &scale, &zeta, &code_sum};
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

TEST(ChooseClips, FindsTheClipOfLeastOutputErrorInTheFirstLayer) {
  const Network source = OpenNetwork(NIBBLE_SOURCE_DIR "/samples/tiny");
  const ModelConfig& c = source.config;
  for (const bool signed_scale : {false, true}) {
    Recipe recipe = kNibbleRecipe;
    recipe.activations.signed_scale = signed_scale;
    Plan plan = MakePlan(c, recipe);
    EXPECT_EQ(plan.at(0, Role::kQ).activations.clip, 0);
    plan.linears[LinearName(2, Role::kO)].activations.clip = 0.625;  // given, not searched
    const Rotator rotator(source, recipe, plan, 0);
    Rng rng(1);
    std::vector<int32_t> ids;
    for (int i = 0; i < 96; ++i) ids.push_back(static_cast<int32_t>(rng.Below(4096)));
    int64_t done = 0;
    const FloatLayers layers = [&](int64_t i) { return rotator.Layer(i); };
    ChooseClips(*MakeBackend("cpu", false), c, rotator.Embedding(), layers, ids, 48, plan,
                [&](int64_t count) { EXPECT_EQ(count, ++done); });
    EXPECT_EQ(done, c.layers);
    const Matrix<float> x = FirstInputs(rotator.Embedding(), ids, c.norm_eps);
    FloatLayer layer = rotator.Layer(0);
    FormatSpec format = recipe.activations;
    const auto error = [&](double clip) {
      format.clip = clip;
      return OutputError(x, layer, format);
    };
    double least = INFINITY;
    for (int percent = 50; percent <= 100; percent += 2) {
      least = std::min(least, error(percent / 100.0));
    }
    // The error changes by 1 % within 0.02 of the valley; random signs add about as much.
    EXPECT_LT(error(plan.at(0, Role::kQ).activations.clip), 1.03 * least);
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
