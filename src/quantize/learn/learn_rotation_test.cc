// SPDX-License-Identifier: Apache-2.0
#include "quantize/learn/learn_rotation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/thread_pool.h"
#include "compute/gpu_testing.h"
#include "compute/math_services.h"
#include "formats/quantizer.h"
#include "models/import/open_network.h"
#include "quantize/plan/make_plan.h"
#include "quantize/round/host_math.h"
#include "transforms/orthogonal.h"

namespace nibble {
namespace {

constexpr int64_t kWidth = 64;

// Rows with most of their energy in a few directions of their own, which no axis shows.
Matrix<float> SpikyRows(int64_t count, uint64_t seed) {
  Rng basis(1), rng(seed);
  const Matrix<double> axes = RandomOrthogonal(kWidth, basis);
  Matrix<double> rows(count, kWidth);
  for (int64_t t = 0; t < count; ++t) {
    for (size_t j = 0; j < kWidth; ++j) rows.row(t)[j] = 0.2 * rng.Normal();
    for (int i = 0; i < 3; ++i) rows.row(t)[rng.Below(8)] += 4 * rng.Normal();
  }
  ResidualRotation rotation;
  rotation.dense = axes;
  rotation.ApplyToRows(rows);
  Matrix<float> result(count, kWidth);
  std::copy(rows.data.begin(), rows.data.end(), result.data.begin());
  return result;
}

// Mean squared error of 4-bit codes with one scale per row.
double QuantizationError(const Matrix<double>& r, const Matrix<float>& rows) {
  Matrix<double> turned(rows.rows, rows.cols);
  std::copy(rows.data.begin(), rows.data.end(), turned.data.begin());
  ResidualRotation rotation;
  rotation.dense = r;
  rotation.ApplyToRows(turned);
  const FormatSpec format = {.bits = 4, .clip = 1};
  double sum = 0;
  for (int64_t t = 0; t < rows.rows; ++t) {
    const std::vector<float> x(turned.row(t).begin(), turned.row(t).end());
    std::vector<float> decoded(x.size());
    std::vector<int8_t> codes(x.size());
    float scale = 0, zero_offset = 0;
    int32_t code_sum = 0;
    const ActRow row = {codes.data(), &scale, &zero_offset, &code_sum};
    QuantizeActivations(x, format, row);
    DequantizeActivations(row, format, decoded);
    for (size_t i = 0; i < x.size(); ++i) sum += std::pow(decoded[i] - x[i], 2);
  }
  return sum / static_cast<double>(rows.rows);
}

TEST(LearnRotation, LowersTheErrorOfRowsItHasNotSeen) {
  const std::vector<PeakedRows> sets = {{SpikyRows(1024, 2), 1.0}, {SpikyRows(300, 3), 0.5}};
  int64_t last = 0;
  const Matrix<double> r =
      LearnRotation(sets, HostMath(), [&](int64_t steps) { EXPECT_EQ(steps, ++last); });
  EXPECT_EQ(last, kRotationSteps);
  const Matrix<double> identity = IdentityMatrix(kWidth);
  for (int64_t i = 0; i < kWidth; ++i) {
    for (int64_t j = 0; j < kWidth; ++j) {
      double product = 0;
      for (size_t k = 0; k < kWidth; ++k) product += r.row(i)[k] * r.row(j)[k];
      EXPECT_NEAR(product, i == j ? 1 : 0, 1e-13);  // fp64 sums of 64 products
    }
  }
  const Matrix<float> fresh = SpikyRows(500, 4);
  // A random basis is what the identity amounts to here.
  EXPECT_LT(QuantizationError(r, fresh), 0.8 * QuantizationError(identity, fresh));
}

TEST(LearnRotation, LearnsAsMuchOnAGpu) {
  std::unique_ptr<Backend> backend = GpuOrNull();
  if (!backend) GTEST_SKIP() << "needs a GPU";
  const std::vector<PeakedRows> sets = {{SpikyRows(1024, 2), 1.0}, {SpikyRows(300, 3), 0.5, 16}};
  const auto learn = [&](const DenseMath& math) {
    return LearnRotation(sets, math, [](int64_t) {});
  };
  const Matrix<float> fresh = SpikyRows(500, 4);
  const double host = QuantizationError(learn(HostMath()), fresh);
  // The other order of sums ends in another rotation, as good to within the noise of 500 rows.
  EXPECT_NEAR(QuantizationError(learn(*backend->services().MakeDense()), fresh), host, 0.03 * host);
}

double SquaredNorm(std::span<const float> values) {
  return std::inner_product(values.begin(), values.end(), values.begin(), 0.0);
}

// The sample model with each FFN three times over: every token is in the rows of two experts.
TEST(LearnRotation, ReadsOfEveryExpertWhatItIsSent) {
  Network source = OpenNetwork(NIBBLE_SOURCE_DIR "/samples/tiny");
  ModelConfig& c = source.config;
  c.family = "mixtral", c.router = {.experts = 3, .experts_per_token = 2},
  c.expert_size = c.intermediate_size;
  source.config_json["model_type"] = c.family;
  Rng rng(3);
  Matrix<float> router(c.router.experts, c.hidden_size);
  for (float& v : router.data) v = static_cast<float>(rng.Normal() * 0.1);
  for (LayerWeights& layer : source.layers) {
    const LayerWeights ffn = layer;
    layer.linears = {};
    for (Role role : c.layer_roles(0)) layer[role] = ffn[KindOf(role)];
    layer[Role::kRouter].weights = {
        .rows = c.router.experts, .cols = c.hidden_size, .values = Borrow(router)};
    layer[Role::kRouter].input.width = c.hidden_size;
  }
  const Plan plan = MakePlan(c, kQuarotRecipe);
  const Rotator rotator(source, kQuarotRecipe, plan, 0);
  std::vector<int32_t> ids;
  for (int i = 0; i < 2 * 48; ++i) ids.push_back(static_cast<int32_t>(rng.Below(4096)));
  const auto sets =
      CollectPeakedRows(*MakeBackend("cpu", false), c, plan, rotator, ids, 48, [](int64_t) {});
  const size_t of_layer = 2 * (1 + 3);  // inputs and weights of attention and of each expert
  ASSERT_EQ(sets.size(), of_layer * static_cast<size_t>(c.layers));
  for (size_t first = 0; first < sets.size(); first += of_layer) {
    EXPECT_EQ(sets[first].rows.rows, 96);
    int64_t sent = 0;
    for (size_t i = first + 2; i < first + of_layer; i += 2) {
      EXPECT_LT(sets[i].rows.rows, 96);
      EXPECT_EQ(sets[i + 1].rows.rows, 2 * c.intermediate_size);
      sent += sets[i].rows.rows;
    }
    EXPECT_EQ(sent, 2 * 96);
  }
}

TEST(LearnRotation, ReadsWhatNormsOfferAndTheWeightsBehindThem) {
  const Network source = OpenNetwork(NIBBLE_SOURCE_DIR "/samples/tiny");
  const ModelConfig& c = source.config;
  Recipe recipe = kQuarotRecipe;
  recipe.weights.bits = 5;
  recipe.activations.bits = 3;
  const Plan plan = MakePlan(c, recipe);
  const Rotator rotator(source, kQuarotRecipe, plan, 0);
  const auto backend = MakeBackend("cpu", false);
  Rng rng(1);
  std::vector<int32_t> ids;
  for (int i = 0; i < 2 * 48; ++i) ids.push_back(static_cast<int32_t>(rng.Below(4096)));
  const auto sets = CollectPeakedRows(*backend, c, plan, rotator, ids, 48, [](int64_t) {});
  ASSERT_EQ(sets.size(), static_cast<size_t>(4 * c.layers));
  for (size_t i = 0; i < sets.size(); i += 2) {
    const Matrix<float>&x = sets[i].rows, &w = sets[i + 1].rows;
    ASSERT_EQ(x.rows, 96);
    for (int64_t t = 0; t < x.rows; ++t) {  // 1, or less where norm_eps matters
      const double power = SquaredNorm(x.row(t)) / static_cast<double>(x.cols);
      EXPECT_LT(power, 1.0001);
      EXPECT_GT(power, 0.8);
    }
    const FloatLayer layer = rotator.Layer(static_cast<int64_t>(i / 4));
    const auto set = i % 4 == 0 ? LinearSet::kQkv : LinearSet::kMlp;
    double weights = 0, outputs = 0;
    int64_t rows = 0;
    for (Role role : RolesOf(set)) {
      const Matrix<double>& m = layer.weights[role];
      rows += m.rows;
      for (int64_t n = 0; n < m.rows; ++n) {
        for (const double v : m.row(n)) weights += v * v;
        for (int64_t t = 0; t < x.rows; ++t) {
          const double y =
              std::inner_product(m.row(n).begin(), m.row(n).end(), x.row(t).begin(), 0.0);
          outputs += y * y / static_cast<double>(x.rows);
        }
      }
    }
    EXPECT_EQ(w.rows, rows);
    EXPECT_NEAR(SquaredNorm(w.data), weights, 1e-5 * weights);  // rounded to fp32, each by 2^-24
    // Steps of 3 bits are twice, those of 5 bits half as long as those of 4.
    EXPECT_NEAR(sets[i].weight, 4 * weights / outputs, 1e-4 * sets[i].weight);
    const double inputs = SquaredNorm(x.data) / static_cast<double>(x.rows);
    EXPECT_NEAR(sets[i + 1].weight, inputs * static_cast<double>(rows) / outputs / 4,
                1e-4 * sets[i + 1].weight);
  }
}

// A task runs its own ParallelFor alone.
TEST(LearnRotation, DoesNotDependOnThreads) {
  const std::vector<PeakedRows> sets = {{SpikyRows(64, 2), 1.0}, {SpikyRows(64, 3), 1.0}};
  const auto run = [&] { return LearnRotation(sets, HostMath(), [](int64_t) {}).data; };
  std::vector<double> alone;
  ParallelFor(2, [&](size_t task) {
    if (task == 0) alone = run();
  });
  EXPECT_EQ(run(), alone);
}

}  // namespace
}  // namespace nibble
