// SPDX-License-Identifier: Apache-2.0
#include "quantize/walk/loss_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/engine_testing.h"
#include "models/import/open_network.h"
#include "quantize/map/rotate.h"
#include "quantize/plan/make_plan.h"
#include "quantize/round/host_math.h"

namespace nibble {
namespace {

constexpr int64_t kGroups = 2;

// The sample model, rotated.
struct Turned {
  Network source = OpenNetwork(kTinyModel);
  Recipe recipe = kQuarotRecipe;
  Plan plan = MakePlan(source.config, recipe);
  Rotator rotator{source, recipe, plan, 0};
  std::unique_ptr<Backend> backend = MakeBackend("cpu", true);
  std::vector<int32_t> ids;

  explicit Turned(size_t tokens) {
    Rng rng(3);
    while (ids.size() < tokens) {
      ids.push_back(
          static_cast<int32_t>(rng.Below(static_cast<uint64_t>(source.config.vocab_size))));
    }
  }
  LossWeights Find() const {
    return FindLossWeights(
        *backend, HostMath(),
        {source.config, plan, rotator.Table(Role::kEmbedding), rotator.Table(Role::kHead),
         rotator.FinalNorm(), [&](int64_t i) { return rotator.Layer(i); }, ids, kGroups},
        [](double) {});
  }
  // The residual stream behind the last layer, [tokens, hidden].
  std::vector<float> Last() const {
    const auto tokens = static_cast<int64_t>(ids.size());
    Stream stream(*backend, source.config, plan, rotator.embedding(), ids, tokens, false);
    for (int64_t i = 0; i < source.config.layers; ++i)
      stream.Pass(StoreFloats(rotator.Layer(i)), i);
    return {stream.x(), stream.x() + tokens * source.config.hidden_size};
  }
};

// Gradients of -log p[y] by x [hidden], where y is the first label up to which p sums to more than
// `draw`.
std::vector<double> DrawnGradients(std::span<const float> x, const Matrix<float>& head, double eps,
                                   double draw) {
  const auto n = static_cast<double>(x.size());
  const double scale =
      1 / std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0) / n + eps);
  std::vector<double> p(static_cast<size_t>(head.rows));
  for (size_t v = 0; v < p.size(); ++v) {
    const auto row = head.row(static_cast<int64_t>(v));
    p[v] = std::exp(scale * std::inner_product(x.begin(), x.end(), row.begin(), 0.0));
  }
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  size_t label = 0;
  for (double left = draw * sum; left >= p[label]; ++label) left -= p[label];
  std::vector<double> h(x.size()), gradients(x.size());  // by what the head reads, and by x
  for (size_t v = 0; v < p.size(); ++v) {
    const double gradient = p[v] / sum - (v == label ? 1 : 0);
    for (size_t k = 0; k < h.size(); ++k) h[k] += gradient * head.row(static_cast<int64_t>(v))[k];
  }
  const double along = std::inner_product(x.begin(), x.end(), h.begin(), 0.0);
  for (size_t k = 0; k < h.size(); ++k) {
    gradients[k] = scale * (h[k] - scale * scale * along / n * x[k]);
  }
  return gradients;
}

TEST(LossWeights, OfTheLastLinearAreSquaredGradientsOfThePrediction) {
  const Turned turned(80);
  const ModelConfig& c = turned.source.config;
  const LossWeights weights = turned.Find();
  ASSERT_TRUE(turned.rotator.FinalNorm().empty()) << "folded into the head";
  const Matrix<float> head = turned.rotator.Table(Role::kHead);
  const std::vector<float> x = turned.Last();
  const auto hidden = static_cast<size_t>(c.hidden_size);
  Matrix<double> wanted(kGroups, 80);
  Rng rng(0);
  for (int64_t t = 0; t < wanted.cols; ++t) {
    const std::vector<double> gradients =
        DrawnGradients(std::span(x).subspan(static_cast<size_t>(t) * hidden, hidden), head,
                       c.norm_eps, static_cast<float>(rng.Uniform()));
    for (size_t k = 0; k < hidden; ++k) {
      const auto g = static_cast<int64_t>(k * kGroups / hidden);
      wanted.row(g)[static_cast<size_t>(t)] += gradients[k] * gradients[k];
    }
  }
  const Matrix<float>& ours = weights[static_cast<size_t>(c.layers - 1)][Role::kDown];
  ASSERT_EQ(ours.rows, kGroups);
  ASSERT_EQ(ours.cols, wanted.cols);
  for (int64_t g = 0; g < kGroups; ++g) {
    const auto row = wanted.row(g);
    const auto mean = [&] {
      return std::accumulate(row.begin(), row.end(), 0.0) / static_cast<double>(row.size());
    };
    const double max = kHeaviestToken * mean();
    for (double& w : row) w = std::min(w, max);
    const double after = mean();
    for (size_t t = 0; t < row.size(); ++t) {
      // The weights are made in fp32; 6e-5 was the largest difference.
      ASSERT_NEAR(ours.row(g)[t], row[t] / after, 2e-4 * row[t] / after) << g << ", " << t;
    }
  }
}

TEST(LossWeights, EveryLinearHasThemWithAMeanOfOne) {
  constexpr int64_t kTokens = 2 * kLossPiece + 50;  // two runs that overlap
  const Turned turned(kTokens);
  const ModelConfig& c = turned.source.config;
  const LossWeights weights = turned.Find();
  ASSERT_EQ(weights.size(), static_cast<size_t>(c.layers));
  for (int64_t i = 0; i < c.layers; ++i) {
    for (Role role : c.layer_roles(i)) {
      const Matrix<float>& of_role = weights[static_cast<size_t>(i)][role];
      ASSERT_EQ(of_role.rows, kGroups);
      ASSERT_EQ(of_role.cols, kTokens);
      for (int64_t g = 0; g < kGroups; ++g) {
        const auto row = of_role.row(g);
        const double sum = std::accumulate(row.begin(), row.end(), 0.0);
        EXPECT_NEAR(sum, kTokens, 1e-4 * sum) << RoleName(role) << i;
        EXPECT_GE(*std::ranges::min_element(row), 0);
        EXPECT_GT(*std::ranges::max_element(row), 1.2) << "tokens differ";
      }
    }
  }
}

TEST(LossWeights, AreForNetworksWhoseGradientsAreKnown) {
  ModelConfig config = OpenNetwork(kTinyModel).config;
  Recipe recipe = kW4a8Recipe;
  recipe.loss_groups = 1;
  EXPECT_NO_THROW(MakePlan(config, recipe));
  ModelConfig other = config;
  other.layer_input_size = 32;
  EXPECT_THROW(MakePlan(other, recipe), Error);
  config.gating = kNormalGelu;
  EXPECT_THROW(MakePlan(config, recipe), Error);
}

}  // namespace
}  // namespace nibble
