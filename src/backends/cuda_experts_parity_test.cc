// SPDX-License-Identifier: Apache-2.0
// Experts that a GPU has joined, compared with the same experts run one by one.
#include <cmath>
#include <numeric>

#include "backends/cuda/runtime/launch.h"
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

  // Scales of groups are powers of two near each other, so that their fp32 sums are exact in
  // whatever order a kernel adds them up.
  LinearId UploadRandom(const FormatSpec& weights, int64_t rows, const InputSpec& input,
                        bool bias) {
    const auto linear = RandomLinear(rng_, weights, rows, input, bias);
    for (uint16_t& scale : linear->quantized.scales_f16) {
      scale = F16FromF32(std::ldexp(1.0f, -9 + static_cast<int>(rng_.Below(3))));
    }
    return ours_->Upload(linear->packed);
  }

  // Uploads experts of random weights.
  ExpertsSpec Upload(const FormatSpec& weights, const FormatSpec& activations, int64_t width,
                     bool bias,
                     const RouterSpec& router = {.experts = kExperts, .experts_per_token = 2}) {
    ExpertsSpec spec = {.router = router,
                        .gating = kSilu,
                        .gate = {},
                        .up = {},
                        .down = {},
                        .input = {.width = kHidden, .activations = activations},
                        .down_input = {.width = width, .activations = activations}};
    const InputSpec floats = {.width = kHidden, .activations = {.bits = 32}};
    spec.router_input = floats;
    spec.router_linear = ours_->Upload(RouterOf(router.experts, floats));
    for (int64_t e = 0; e < kExperts; ++e) {
      spec.gate.push_back(UploadRandom(weights, width, spec.input, bias));
      spec.up.push_back(UploadRandom(weights, width, spec.input, bias));
      spec.down.push_back(UploadRandom(weights, kHidden, spec.down_input, bias));
    }
    return spec;
  }

  // Experts 1 and 3 always have the same logits.
  PackedLinear RouterOf(int64_t experts, const InputSpec& input) {
    router_ = {experts, kHidden};
    router_.data = RandomVector(rng_, experts * kHidden);
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
      for (int64_t e = 0; e < router_.rows; ++e) {
        double sum = 0;
        for (size_t k = 0; k < kHidden; ++k) {
          const double weight = router_norm_.empty() ? 1 : router_norm_[k];
          sum += double{x[first + k]} * weight * router_.row(e)[k];
        }
        logits.push_back(sum / std::sqrt(squares / kHidden + kEps));
      }
    }
    return logits;
  }

  // The weight of every expert for each token, [tokens, all experts]; 0 for those that it does not
  // have.
  std::vector<float> Weights(const RouterSpec& router, std::span<const double> logits) const {
    std::vector<float> weights;
    const auto experts = static_cast<size_t>(router.experts);
    const auto of_token = static_cast<size_t>(router.experts_per_token);
    for (size_t first = 0; first < logits.size(); first += experts) {
      const auto row = logits.subspan(first, experts);
      std::vector<double> scores, own(static_cast<size_t>(router.all()));
      std::vector<size_t> order(experts);
      for (const double v : row) {
        scores.push_back(router.sigmoid ? 1 / (1 + std::exp(-v)) : std::exp(v));
      }
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, std::greater(), [&](size_t e) {
        return bias_.empty() ? scores[e] : scores[e] + bias_[e];
      });
      double sum = 0;
      const size_t count = router.normalized ? of_token : experts;
      for (size_t i = 0; i < count; ++i) sum += scores[order[i]];
      if (router.sigmoid && !router.normalized) sum = 1;
      for (size_t i = 0; i < of_token; ++i) {
        const double scale = scales_.empty() ? 1 : scales_[order[i]];
        own[order[i]] = scores[order[i]] / sum * router.scale * scale;
      }
      for (size_t e = experts; e < own.size(); ++e) own[e] = 1;
      weights.insert(weights.end(), own.begin(), own.end());
    }
    return weights;
  }

  // values: `before` plus the outputs of the experts of x, from products of each expert's rows;
  // sizes: the sums of their absolute values.
  struct Sums {
    std::vector<float> values;
    std::vector<double> sizes;
  };
  Sums OneByOne(const ExpertsSpec& spec, std::span<const float> weights, std::span<const float> x,
                std::span<const float> before) {
    Sums sums = {{before.begin(), before.end()}, {}};
    for (const float v : before) sums.sizes.push_back(std::fabs(v));
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

  // beside: x stays unchanged, and the experts' outputs go to cleared memory.
  void Expect(ExpertsSpec spec, int64_t tokens, bool beside = false) {
    const auto id = ours_->JoinExperts(spec);
    ASSERT_TRUE(id.has_value());
    const std::vector<float> x = RandomRows(rng_, tokens, kHidden);
    const Buffer<float> device_x = Copy(x), device_sum = Copy(x), norm = Copy(router_norm_);
    float* const to = beside ? device_sum.data() : device_x.data();
    if (beside) ours_->Clear(to, tokens * kHidden);
    ActsSource routed = Normed(device_x);
    if (!router_norm_.empty()) routed.norm_weight = norm.data();
    ours_->RunExperts(*id, routed, Normed(device_x), tokens, to);
    const std::vector<float> y = Host(to, tokens * kHidden);
    const Sums expected = OneByOne(spec, Weights(spec.router, Logits(x)), x,
                                   beside ? std::vector<float>(x.size()) : x);
    if (beside) {
      EXPECT_EQ(Host(device_x.data(), tokens * kHidden), x);
    }
    // Products are the same. A logit of 256 products of size 1/16 is a chain of 2 and 7 sums: off
    // by 9 times 2^-24 of the sum of sizes, 13, and a weight by twice that. Outputs of many rows
    // are rounded to bf16.
    const double error = 9 * 2 * 13 * 0x1p-24 + (tokens > 100 ? 0x1p-8 : 0);
    for (size_t i = 0; i < y.size(); ++i) {
      ASSERT_NEAR(y[i], expected.values[i], error * expected.sizes[i]) << tokens << ", " << i;
    }
    ours_->ReleaseExperts(*id);
  }

  Matrix<float> router_;
  std::vector<float> bias_;                  // ExpertsSpec::router_bias
  std::vector<float> router_norm_, scales_;  // norm_weight of `routed`; ExpertsSpec::expert_scales
};

TEST_F(CudaExpertsTest, AreTheSameTogetherAndOneByOne) {
  if (cuda::KernelCapability() != 9) GTEST_SKIP() << "needs compute capability 9.0";
  const FormatSpec levels = {.bits = 4, .group = 128, .second_level = true};
  const FormatSpec floats = {.bits = 4, .group = 32, .codebook = Codebook::kE2m1};
  for (const FormatSpec& weights : {FormatSpec{.bits = 4},
                                    {.bits = 8},
                                    {.bits = 4, .symmetric = false},
                                    levels,
                                    {.bits = 4, .group = 128},
                                    {.bits = 4, .symmetric = false, .group = 64},
                                    {.bits = 8, .group = 128},
                                    floats}) {
    for (const FormatSpec& activations :
         {FormatSpec{.bits = 8}, {.bits = 4}, {.bits = 8, .symmetric = false}}) {
      for (const bool bias : {false, true}) {
        SCOPED_TRACE(FormatText(weights) + " x " + FormatText(activations));
        ExpertsSpec spec = Upload(weights, activations, weights.group != 0 ? 256 : 200, bias);
        spec.router.normalized = bias;
        // Groups of 8, 32 and 128 rows; experts of either path have kernels of the same rounding.
        for (const int64_t tokens : {1, 3, 20, 35, 700}) Expect(spec, tokens);
      }
    }
  }
}

TEST_F(CudaExpertsTest, SigmoidsChooseWithABiasBesideSharedExperts) {
  if (cuda::KernelCapability() != 9) GTEST_SKIP() << "needs compute capability 9.0";
  bias_ = {0.03f, -0.02f, 0, 0.01f};  // experts of many tokens each, as kernels round alike
  const Buffer<float> device_bias = Copy(bias_);
  for (const bool normalized : {true, false}) {
    ExpertsSpec spec = Upload({.bits = 4}, {.bits = 8}, 200, false,
                              {.experts = 4,
                               .experts_per_token = 2,
                               .shared = 1,
                               .sigmoid = true,
                               .normalized = normalized,
                               .scale = 2.5f});
    spec.router_bias = device_bias.data();
    for (const int64_t tokens : {1, 20, 700}) Expect(spec, tokens);
  }
}

// Gemma 4 has this form: the router has a norm of its own, experts have scales, and their outputs
// go to memory of their own beside an FFN's.
TEST_F(CudaExpertsTest, ExpertsStandBesideAnFfn) {
  if (cuda::KernelCapability() != 9) GTEST_SKIP() << "needs compute capability 9.0";
  scales_ = {0.75f, 1.5f, 0.5f, 1.25f, 1};
  for (int64_t k = 0; k < kHidden; ++k) router_norm_.push_back(k % 3 == 0 ? 0.5f : 1);
  const Buffer<float> device_scales = Copy(scales_);
  ExpertsSpec spec = Upload({.bits = 4}, {.bits = 8}, 200, false);
  spec.gating = kGelu;
  spec.expert_scales = device_scales.data();
  for (const int64_t tokens : {1, 20, 35, 700}) Expect(spec, tokens, true);
}

TEST_F(CudaExpertsTest, OthersStayAlone) {
  for (const auto& [weights, activations] :
       {std::pair<FormatSpec, FormatSpec>{{.bits = 4}, {.bits = 16}},
        {{.bits = 16}, {.bits = 16}},
        {{.bits = 2, .codebook = Codebook::kE8p}, {.bits = 8}},
        {{.bits = 4, .group = 128}, {.bits = 8, .group = 128}}}) {
    EXPECT_FALSE(ours_->JoinExperts(Upload(weights, activations, 256, false)).has_value());
  }
}

}  // namespace
}  // namespace nibble
