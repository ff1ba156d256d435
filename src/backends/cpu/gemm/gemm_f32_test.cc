// SPDX-License-Identifier: Apache-2.0
// GemmF32 against scalar chains of std::fma, bit for bit, and against sums in double.
#include "backends/cpu/gemm/gemm_f32.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/half.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "tensor/random_testing.h"

namespace nibble::cpu {
namespace {

struct GemmShape {
  int64_t tokens, outputs, inputs;
  bool bias, accumulate;
};

class GemmF32Test : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam() && DetectedIsa() < Isa::kAvx512) GTEST_SKIP() << "needs avx512";
  }
  static Isa isa() { return GetParam() ? Isa::kAvx512 : Isa::kAvx2; }
};
INSTANTIATE_TEST_SUITE_P(Isa, GemmF32Test, testing::Bool(),
                         [](const auto& isa) { return isa.param ? "avx512" : "avx2"; });

void CheckGemm(Isa isa, const GemmShape& shape) {
  const auto [tokens, outputs, inputs, with_bias, accumulate] = shape;
  SCOPED_TRACE(testing::Message() << tokens << " x " << outputs << " x " << inputs);
  Rng rng(17, static_cast<uint64_t>(tokens * 31 + outputs));
  Matrix<float> weights(outputs, inputs);
  weights.data = RandomFloats(rng, outputs * inputs);
  const std::vector<float> x = RandomFloats(rng, tokens * inputs);
  const std::vector<float> bias = RandomFloats(rng, outputs);
  const int64_t stride = outputs + 3;
  const float poison = accumulate ? 7.5f : std::numeric_limits<float>::quiet_NaN();
  std::vector<float> y(static_cast<size_t>(tokens * stride), poison);
  GemmF32(isa, x.data(), tokens, PackF32(weights), with_bias ? bias.data() : nullptr, y.data(),
          stride, accumulate);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t n = 0; n < outputs; ++n) {
      float chain = 0;
      double sum = 0, size = 0;
      for (int64_t k = 0; k < inputs; ++k) {
        const float a = x[t * inputs + k], w = weights.data[n * inputs + k];
        chain = std::fma(a, w, chain);
        sum += static_cast<double>(a) * w;
        size += std::abs(static_cast<double>(a) * w);
      }
      if (with_bias) chain += bias[n], sum += bias[n], size += std::abs(bias[n]);
      if (accumulate) chain = poison + chain, sum += poison, size += poison;
      const float got = y[t * stride + n];
      ASSERT_EQ(got, chain) << "token " << t << ", output " << n;
      // inputs + 2 roundings, each of at most 2^-24 of a partial sum below `size`.
      ASSERT_NEAR(got, sum, 1.01 * 0x1p-24 * static_cast<double>(inputs + 2) * size);
    }
    for (int64_t n = outputs; n < stride; ++n) {  // between the rows: untouched
      ASSERT_TRUE(accumulate ? y[t * stride + n] == poison : std::isnan(y[t * stride + n]));
    }
  }
}

TEST_P(GemmF32Test, IsAChainOfFusedMultiplyAdds) {
  CheckGemm(isa(), {1, 1, 1, false, false});
  CheckGemm(isa(), {1, 97, 1100, true, true});
  CheckGemm(isa(), {2, 32, 512, true, false});
  CheckGemm(isa(), {5, 33, 513, false, true});
  CheckGemm(isa(), {13, 31, 64, true, false});
  CheckGemm(isa(), {97, 70, 130, false, false});
  CheckGemm(isa(), {200, 5, 1025, true, true});
}

TEST_P(GemmF32Test, RowAloneEqualsRowInABatchForAnyThreadCount) {
  constexpr int64_t kTokens = 113, kOutputs = 75, kInputs = 700;
  Rng rng(4);
  Matrix<float> weights(kOutputs, kInputs);
  weights.data = RandomFloats(rng, kOutputs * kInputs);
  const PanelsF32 panels = PackF32(weights);
  const std::vector<float> x = RandomFloats(rng, kTokens * kInputs);
  std::vector<float> batch(kTokens * kOutputs, NAN), alone(kTokens * kOutputs, NAN);
  SetThreads(2);
  GemmF32(isa(), x.data(), kTokens, panels, nullptr, batch.data(), kOutputs, false);
  SetThreads(1);
  for (int64_t t = 0; t < kTokens; ++t) {
    GemmF32(isa(), x.data() + t * kInputs, 1, panels, nullptr, alone.data() + t * kOutputs,
            kOutputs, false);
  }
  SetThreads(0);
  EXPECT_EQ(batch, alone);
}

TEST(PackF32Test, ReadsBf16Checkpoints) {
  constexpr int64_t kOutputs = 45, kInputs = 19;
  Rng rng(8);
  std::vector<uint16_t> bits(kOutputs * kInputs);
  Matrix<float> weights(kOutputs, kInputs);
  for (size_t i = 0; i < bits.size(); ++i) {
    bits[i] = Bf16FromF32(static_cast<float>(rng.Normal()));
    weights.data[i] = F32FromBf16(bits[i]);
  }
  const PanelsF32 packed = PackF32(Tensor{.dtype = DType::kBf16,
                                          .shape = {kOutputs, kInputs},
                                          .data = reinterpret_cast<std::byte*>(bits.data())});
  ASSERT_EQ(packed.data.size(), 2u * kPanelF32 * kInputs);
  for (int64_t n = 0; n < 2 * kPanelF32; ++n) {
    for (int64_t k = 0; k < kInputs; ++k) {
      const float expected = n < kOutputs ? weights.data[n * kInputs + k] : 0.0f;
      const int64_t at = (n / kPanelF32 * kInputs + k) * kPanelF32 + n % kPanelF32;
      ASSERT_EQ(packed.data[at], expected) << n << ", " << k;
    }
  }
  EXPECT_EQ(packed.data, PackF32(weights).data);
}

}  // namespace
}  // namespace nibble::cpu
