// SPDX-License-Identifier: Apache-2.0
// Experts that a GPU has joined, beside the same experts one by one.
#include <cmath>
#include <numeric>

#include "backends/cuda/launch.h"
#include "backends/parity_testing.h"

namespace nibble {
namespace {

constexpr int64_t kExperts = 5, kHidden = 256;
constexpr float kEps = 1e-5f;

class CudaExpertsTest : public GpuParityTest {
 protected:
  static ActsSource Normed(const Buffer<float>& x) {
    return {.x = x.data(), .op = ActsSource::Op::kRmsNorm, .norm_eps = kEps};
  }

  // Experts of random weights, and what they are called.
  ExpertsSpec Upload(const FormatSpec& weights, const FormatSpec& activation, int64_t width,
                     bool bias) {
    ExpertsSpec spec = {.router = {.experts = kExperts, .experts_per_token = 2},
                        .gating = kSilu,
                        .gate = {},
                        .up = {},
                        .down = {},
                        .input = {.width = kHidden, .activation = activation},
                        .down_input = {.width = width, .activation = activation}};
    const InputSpec floats = {.width = kHidden, .activation = {.bits = 32}};
    spec.router_input = floats;
    spec.router_linear = ours_->Upload(UploadRouter(floats));
    for (int64_t e = 0; e < kExperts; ++e) {
      const auto upload = [&](int64_t rows, const InputSpec& input) {
        return ours_->Upload(RandomLinear(rng_, weights, rows, input, bias)->packed);
      };
      spec.gate.push_back(upload(width, spec.input));
      spec.up.push_back(upload(width, spec.input));
      spec.down.push_back(upload(kHidden, spec.down_input));
    }
    return spec;
  }

  // Experts 1 and 3 always have the same logits.
  PackedLinear UploadRouter(const InputSpec& input) {
    router_ = {kExperts, kHidden};
    router_.data = RandomVector(rng_, kExperts * kHidden);
    for (float& w : router_.data) w /= 16;
    std::ranges::copy(router_.row(1), router_.row(3).begin());
    PackedLinear linear;
    linear.input = input;
    linear.weights = FloatTable(router_);
    return linear;
  }
  std::vector<double> Logits(std::span<const float> x) const {
    std::vector<double> logits;
    for (size_t first = 0; first < x.size(); first += kHidden) {
      double squares = 0;
      for (size_t k = 0; k < kHidden; ++k) squares += double{x[first + k]} * x[first + k];
      for (size_t e = 0; e < kExperts; ++e) {
        double sum = 0;
        for (size_t k = 0; k < kHidden; ++k) {
          sum += double{x[first + k]} * router_.row(static_cast<int64_t>(e))[k];
        }
        logits.push_back(sum / std::sqrt(squares / kHidden + kEps));
      }
    }
    return logits;
  }

  // Of each token a weight for every expert, 0 for those that it does not have.
  static std::vector<float> Weights(const RouterSpec& router, std::span<const double> logits) {
    std::vector<float> weights(logits.size());
    for (size_t first = 0; first < logits.size(); first += kExperts) {
      std::vector<size_t> order(kExperts);
      std::iota(order.begin(), order.end(), first);
      std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return logits[i]; });
      double sum = 0;
      const auto count = router.normalized ? router.experts_per_token : kExperts;
      for (int64_t i = 0; i < count; ++i) sum += std::exp(logits[order[i]]);
      for (int64_t i = 0; i < router.experts_per_token; ++i) {
        weights[order[i]] = static_cast<float>(std::exp(logits[order[i]]) / sum);
      }
    }
    return weights;
  }

  // x plus the outputs of its experts, by products of each expert's rows, and the sum of their
  // sizes.
  struct Sums {
    std::vector<float> values;
    std::vector<double> sizes;
  };
  Sums OneByOne(const ExpertsSpec& spec, std::span<const float> weights, std::span<const float> x) {
    Sums sums = {{x.begin(), x.end()}, {}};
    for (const float v : x) sums.sizes.push_back(std::fabs(v));
    for (size_t e = 0; e < kExperts; ++e) {
      std::vector<float> rows;
      std::vector<size_t> tokens;
      for (size_t t = 0; t < x.size() / kHidden; ++t) {
        if (weights[t * kExperts + e] == 0) continue;
        tokens.push_back(t);
        rows.insert(rows.end(), x.begin() + t * kHidden, x.begin() + (t + 1) * kHidden);
      }
      const auto count = static_cast<int64_t>(tokens.size());
      if (count == 0) continue;
      const Buffer<float> device_rows = Copy(rows);
      Buffer<Intermediate> gate(ours_->allocator()), up(ours_->allocator());
      Buffer<float> y(ours_->allocator());
      const Activations acts = ours_->PrepareActs(Normed(device_rows), count, spec.input);
      const ActsSource gated = ours_->ProjectGated(
          acts,
          {spec.gate[e], gate.Grow(count * spec.down_input.width * ours_->IntermediateBytes())},
          {spec.up[e], up.Grow(count * spec.down_input.width * ours_->IntermediateBytes())},
          spec.gating);
      ours_->Gemm(ours_->PrepareActs(gated, count, spec.down_input), spec.down[e],
                  y.Grow(count * kHidden), kHidden, false);
      const std::vector<float> outputs = Host(y.data(), count * kHidden);
      for (size_t i = 0; i < tokens.size(); ++i) {
        for (size_t k = 0; k < kHidden; ++k) {
          const float output = weights[tokens[i] * kExperts + e] * outputs[i * kHidden + k];
          sums.values[tokens[i] * kHidden + k] += output;
          sums.sizes[tokens[i] * kHidden + k] += std::fabs(output);
        }
      }
    }
    return sums;
  }

  void Expect(ExpertsSpec spec, int64_t tokens) {
    const auto id = ours_->JoinExperts(spec);
    ASSERT_TRUE(id.has_value());
    const std::vector<float> x = RandomRows(rng_, tokens, kHidden);
    const Buffer<float> device_x = Copy(x);
    ours_->RunExperts(*id, Normed(device_x), tokens, device_x.data());
    const std::vector<float> y = Host(device_x.data(), tokens * kHidden);
    const Sums expected = OneByOne(spec, Weights(spec.router, Logits(x)), x);
    // Products are the same. A logit of 256 products of size 1/16 is a chain of 2 and 7 sums: wrong
    // by as many times 2^-24 of the sum of sizes, 13, a weight by twice that. Outputs of many rows
    // are rounded to bf16.
    const double error = 9 * 2 * 13 * 0x1p-24 + (tokens > 100 ? 0x1p-8 : 0);
    for (size_t i = 0; i < y.size(); ++i) {
      ASSERT_NEAR(y[i], expected.values[i], error * expected.sizes[i]) << tokens << ", " << i;
    }
    ours_->ReleaseExperts(*id);
  }

  Matrix<float> router_;
};

TEST_F(CudaExpertsTest, AreTheSameTogetherAndOneByOne) {
  if (cuda::KernelCapability() != 9) GTEST_SKIP() << "needs compute capability 9.0";
  const FormatSpec levels = {.bits = 4, .group = 128, .second_level = true};
  for (const FormatSpec& weights :
       {FormatSpec{.bits = 4}, {.bits = 8}, {.bits = 4, .symmetric = false}, levels}) {
    for (const FormatSpec& activation :
         {FormatSpec{.bits = 8}, {.bits = 4}, {.bits = 8, .symmetric = false}}) {
      for (const bool bias : {false, true}) {
        SCOPED_TRACE(FormatText(weights) + " x " + FormatText(activation));
        ExpertsSpec spec = Upload(weights, activation, weights.second_level ? 256 : 200, bias);
        spec.router.normalized = bias;
        // Groups of 8, 32 and 128 rows; experts of either path have kernels of the same rounding.
        for (const int64_t tokens : {1, 3, 20, 35, 700}) Expect(spec, tokens);
      }
    }
  }
}

TEST_F(CudaExpertsTest, OthersStayAlone) {
  for (const auto& [weights, activation] :
       {std::pair<FormatSpec, FormatSpec>{{.bits = 4}, {.bits = 16}},
        {{.bits = 16}, {.bits = 16}},
        {{.bits = 4, .group = 128}, {.bits = 8}}}) {
    EXPECT_FALSE(ours_->JoinExperts(Upload(weights, activation, 256, false)).has_value());
  }
}

}  // namespace
}  // namespace nibble
