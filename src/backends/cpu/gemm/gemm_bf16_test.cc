// SPDX-License-Identifier: Apache-2.0
// GemmBf16 against sums in double, with the bounds its terms promise, and a row against itself in a
// batch.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <span>

#include "backends/cpu/gemm/gemm_f32.h"
#include "backends/cpu/gemm/gram.h"
#include "base/cpu_features.h"
#include "base/half.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "tensor/random_testing.h"

namespace nibble::cpu {
namespace {

Matrix<float> RandomWeights(Rng& rng, int64_t rows, int64_t cols, bool bf16) {
  Matrix<float> weights(rows, cols);
  weights.data = RandomFloats(rng, rows * cols);
  if (!bf16) return weights;
  for (float& w : weights.data) w = F32FromBf16(Bf16FromF32(w));
  return weights;
}

PanelsBf16 Pack(const Matrix<float>& weights) {
  return PackBf16({.dtype = DType::kF32,
                   .shape = {weights.rows, weights.cols},
                   .data = reinterpret_cast<const std::byte*>(weights.data.data())});
}

class GemmBf16Test : public testing::Test {
 protected:
  void SetUp() override {
    if (DetectedIsa() < Isa::kAmx) GTEST_SKIP() << "needs amx";
  }
  void TearDown() override { SetThreads(0); }
};

// Three terms of eight bits, rounded to nearest, are a float: a term leaves 2^-8 of what was there.
// Of the products of two factors' terms, two of 2^-8 2^-16 and one of 2^-32 are dropped. A sum
// rounds once for each product.
void CheckGemm(int64_t tokens, int64_t outputs, int64_t inputs, bool bf16, bool accumulate) {
  SCOPED_TRACE(testing::Message() << tokens << " x " << outputs << " x " << inputs << ", " << bf16);
  Rng rng(17, static_cast<uint64_t>(tokens * 31 + outputs));
  const Matrix<float> weights = RandomWeights(rng, outputs, inputs, bf16);
  const PanelsBf16 panels = Pack(weights);
  ASSERT_EQ(panels.terms, bf16 ? 1 : 3);
  const std::vector<float> x = RandomFloats(rng, tokens * inputs);
  const std::vector<float> bias = RandomFloats(rng, outputs);
  const int64_t stride = outputs + 3;
  const float poison = accumulate ? 7.5f : std::numeric_limits<float>::quiet_NaN();
  std::vector<float> y(static_cast<size_t>(tokens * stride), poison);
  GemmBf16(x.data(), tokens, panels, bias.data(), y.data(), stride, accumulate);
  const double dropped = bf16 ? 0 : 0x1p-23 + 0x1p-32, products = bf16 ? 3 : 6;
  const double relative = dropped + 0x1p-24 * (products * static_cast<double>(inputs) + 2);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t n = 0; n < outputs; ++n) {
      double sum = bias[n] + (accumulate ? poison : 0), size = std::abs(sum);
      for (int64_t k = 0; k < inputs; ++k) {
        const double product = static_cast<double>(x[t * inputs + k]) * weights.row(n)[k];
        sum += product;
        size += std::abs(product);
      }
      ASSERT_NEAR(y[t * stride + n], sum, relative * size) << "token " << t << ", output " << n;
    }
    for (int64_t n = outputs; n < stride; ++n) {  // between the rows: untouched
      ASSERT_TRUE(accumulate ? y[t * stride + n] == poison : std::isnan(y[t * stride + n]));
    }
  }
}

TEST_F(GemmBf16Test, KeepsWhatItsTermsPromise) {
  for (const bool bf16 : {false, true}) {
    CheckGemm(1, 1, 1, bf16, false);
    CheckGemm(2, 97, 1100, bf16, true);
    CheckGemm(17, 32, 512, bf16, false);
    CheckGemm(33, 33, 513, bf16, true);
    CheckGemm(257, 70, 130, bf16, false);
  }
}

TEST_F(GemmBf16Test, RowAloneEqualsRowInABatchForAnyThreadCount) {
  constexpr int64_t kTokens = 113, kOutputs = 75, kInputs = 700;
  Rng rng(4);
  const PanelsBf16 panels = Pack(RandomWeights(rng, kOutputs, kInputs, false));
  const std::vector<float> x = RandomFloats(rng, kTokens * kInputs);
  std::vector<float> batch(kTokens * kOutputs, NAN), alone(kTokens * kOutputs, NAN);
  SetThreads(2);
  GemmBf16(x.data(), kTokens, panels, nullptr, batch.data(), kOutputs, false);
  SetThreads(1);
  for (int64_t t = 0; t < kTokens; ++t) {
    GemmBf16(x.data() + t * kInputs, 1, panels, nullptr, alone.data() + t * kOutputs, kOutputs,
             false);
  }
  EXPECT_EQ(batch, alone);
}

// Expects sums to equal plain ones up to `relative` of their terms' sizes and not to depend on
// threads. Symmetric sums are compared from the diagonal on down.
void CheckGram(void (*add)(const float*, const float*, int64_t, int64_t, double*),
               std::span<const float> x, std::span<const float> z, int64_t tokens, int64_t width,
               double relative) {
  SCOPED_TRACE(testing::Message() << tokens << " x " << width);
  for (const float* right : {x.data(), z.data()}) {
    std::vector<double> out(static_cast<size_t>(width * width), 0.5), again = out;
    SetThreads(2);
    add(x.data(), right, tokens, width, out.data());
    SetThreads(1);
    add(x.data(), right, tokens, width, again.data());
    ASSERT_EQ(out, again);
    for (int64_t i = 0; i < width; ++i) {
      for (int64_t j = 0; j < (right == x.data() ? i + 1 : width); ++j) {
        double sum = 0.5, size = 0;
        for (int64_t t = 0; t < tokens; ++t) {
          const double product = double{x[t * width + i]} * right[t * width + j];
          sum += product;
          size += std::abs(product);
        }
        ASSERT_NEAR(out[i * width + j], sum, relative * size) << i << ", " << j;
      }
    }
  }
}
constexpr std::pair<int64_t, int64_t> kGrams[] = {{1, 1}, {33, 31}, {70, 300}, {257, 129}, {2, 48}};

// Two terms, rounded, keep 2^-16 of each factor and drop a product of 2^-16; 3 K roundings of sums.
TEST_F(GemmBf16Test, GramKeepsWhatItsTermsPromise) {
  for (const auto& [tokens, width] : kGrams) {
    Rng rng(18, static_cast<uint64_t>(width));
    const std::vector<float> x = RandomFloats(rng, tokens * width);
    const std::vector<float> z = RandomFloats(rng, tokens * width);
    CheckGram(AddGramBf16, x, z, tokens, width, 3 * 0x1p-16 + 0x1p-24 * (3 * tokens));
  }
}

// Products of bf16 are exact in fp32; each step of two adds two roundings. What is no bf16 is
// rounded to one: by 2^-8 at most, in both factors.
TEST(GramPairs, AddsUpWhatIsRoundedToBf16) {
  if (DetectedIsa() < Isa::kAvx512 || !HasBf16()) GTEST_SKIP() << "needs avx512_bf16";
  for (const auto& [tokens, width] : kGrams) {
    Rng rng(19, static_cast<uint64_t>(width));
    std::vector<float> x = RandomFloats(rng, tokens * width);
    std::vector<float> z = RandomFloats(rng, tokens * width);
    const double sums = 0x1p-23 * static_cast<double>(tokens + 1);
    CheckGram(AddGramPairs, x, z, tokens, width, 2 * 0x1p-8 + 0x1p-16 + sums);
    for (auto* values : {&x, &z}) {
      for (float& value : *values) value = F32FromBf16(Bf16FromF32(value));
    }
    CheckGram(AddGramPairs, x, z, tokens, width, sums);
  }
  SetThreads(0);
}

}  // namespace
}  // namespace nibble::cpu
