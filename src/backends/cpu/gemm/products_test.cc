// SPDX-License-Identifier: Apache-2.0
// Whole products by every row of the kernel table: the fp32 epilogue is one fixed expression, so
// they must match plain loops bit for bit. Also tests of what is packed for them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <numeric>

#include "backends/cpu/acts/activations.h"
#include "backends/cpu/gemm/gemm_int.h"
#include "backends/cpu/gemm/kernels_testing.h"
#include "base/half.h"
#include "base/thread_pool.h"
#include "formats/packed_weights_testing.h"
#include "formats/tile_order.h"
#include "tensor/e2m1.h"

namespace nibble::cpu {
namespace {

using ::testing::HasSubstr;

class ProductTest : public KernelTest {};
INSTANTIATE_TEST_SUITE_P(Rows, ProductTest, ::testing::ValuesIn(RowsOfIntegers()), KernelTestName);

IntPanels Packed(const PackedLinear& linear) {
  return PackPanels(linear.weights, linear.input.activations, linear.bias);
}

// A random linear with random prepared activations, and the product in plain loops.
struct ProductCase {
  int64_t m, n, k;
  Matrix<int8_t> codes;
  int64_t planes;            // rows of codes that a token has
  Matrix<int8_t> act_codes;  // [m * planes, ..], zero from k to the stride
  PlaneVectors weights;
  std::vector<float> bias, act_scales, act_zero_offsets;
  std::vector<int32_t> act_sums;
  InputSpec input;
  PackedLinear linear;

  ProductCase(Rng& rng, int64_t tokens, int64_t outputs, int64_t inputs, const FormatSpec& w,
              const FormatSpec& a)
      : m(tokens),
        n(outputs),
        k(inputs),
        codes(n, k),
        planes(a.bits == 16 ? 2 : 1),
        act_codes(m * planes, (k + 63) / 64 * 64) {
    weights.format = w;
    weights.rows = n;
    weights.cols = k;
    MakeWeights(rng);
    MakeActs(rng, a);
    linear.weights = View(weights);
    linear.input = input;
    if (rng.Below(2) == 0) return;
    for (int64_t i = 0; i < n; ++i) bias.push_back(static_cast<float>(rng.Normal()));
    linear.bias = {DType::kF32, {n}, reinterpret_cast<const std::byte*>(bias.data())};
  }

  void MakeCodewords(Rng& rng) {
    const int64_t bits = weights.format.bits;
    for (int64_t i = 0; i < n * k / 8 * bits; ++i) {
      weights.codes.push_back(static_cast<uint8_t>(rng.Below(256)));
    }
    for (int64_t row = 0; row < n; ++row) {
      std::vector<int16_t> unpacked(static_cast<size_t>(k));
      UnpackRow(View(weights), row, unpacked);
      std::ranges::copy(unpacked, codes.row(row).begin());
      weights.scales.push_back(static_cast<float>(0.001 + rng.Uniform()));
    }
  }

  void MakeWeights(Rng& rng) {
    if (weights.format.lattice()) return MakeCodewords(rng);
    const int bits = weights.format.bits;
    const int64_t half = int64_t{1} << (bits - 1);
    const FormatSpec& format = weights.format;
    weights.codes.resize(static_cast<size_t>(n * PackedBytes(k, bits)));
    for (int64_t row = 0; row < n; ++row) {
      for (int8_t& code : codes.row(row)) code = static_cast<int8_t>(Code(rng, -half, half - 1));
      PackCodes(codes.row(row).data(), k, bits, weights.codes.data() + row * PackedBytes(k, bits));
      if (!format.e2m1()) continue;
      for (int8_t& code : codes.row(row)) code = kE2m1Codes[static_cast<size_t>(code & 15)];
    }
    for (int64_t i = 0; i < n * format.scales(k); ++i) {
      const uint16_t scale = F16FromF32(static_cast<float>(0.001 + rng.Uniform()));
      weights.scales_f16.push_back(scale);
      weights.scales.push_back(F32FromF16(scale));
    }
    for (int64_t i = 0; i < n * format.groups(k); ++i) {
      const int64_t zero = format.symmetric ? 0 : Code(rng, -half, half - 1);
      if (!format.symmetric) weights.zeros.push_back(static_cast<int8_t>(zero));
      if (!format.second_level) continue;
      const int max = LargestGroupScale(static_cast<int>(zero));
      weights.group_scales.push_back(static_cast<uint8_t>(Code(rng, 1, max)));
    }
  }

  void MakeActs(Rng& rng, const FormatSpec& a) {
    input.width = k;
    input.activations = a;
    const int64_t half = int64_t{1} << (a.bits / planes - 1);
    const int64_t groups = a.groups(k), length = k / groups;
    for (int64_t row = 0; row < m * planes; ++row) {
      for (int64_t i = 0; i < k; ++i) {
        act_codes.row(row)[i] = static_cast<int8_t>(Code(rng, -half, half - 1));
      }
      for (int64_t g = 0; g < groups; ++g) {
        const int8_t* first = act_codes.row(row).data() + g * length;
        act_sums.push_back(std::accumulate(first, first + length, 0));
        if (row % planes != 0) continue;
        const double sign = rng.Below(2) == 0 ? 1 : -1;
        act_scales.push_back(static_cast<float>(sign * (0.01 + rng.Uniform())));
        if (!a.symmetric) act_zero_offsets.push_back(static_cast<float>(20 * rng.Normal()));
      }
    }
  }

  Activations Acts(int64_t first, int64_t tokens) const {
    const int64_t groups = input.activations.groups(k);
    return {.tokens = tokens,
            .width = k,
            .format = input.activations,
            .values = nullptr,
            .stride = act_codes.cols,
            .codes = act_codes.row(first * planes).data(),
            .scales = act_scales.data() + first * groups,
            .zero_offsets =
                act_zero_offsets.empty() ? nullptr : act_zero_offsets.data() + first * groups,
            .sums = act_sums.data() + first * planes * groups};
  }

  // The 8-bit code of a second level of scales.
  int64_t LevelCode(int64_t row, int64_t i) const {
    const auto g = static_cast<size_t>((row * k + i) / weights.format.group);
    const int64_t zero = weights.zeros.empty() ? 0 : weights.zeros[g];
    return weights.group_scales[g] * (codes.row(row)[i] - zero);
  }

  // The arithmetic law (docs/numerics.md), straight from the signed codes. fma: of the scale of a
  // group, which comes last if all groups share a token's.
  float Expected(int64_t t, int64_t row) const {
    const bool levels = weights.format.second_level;
    const int64_t weight_groups = weights.format.scales(k),
                  act_groups = input.activations.groups(k);
    const int64_t groups = std::max(weight_groups, act_groups), length = k / groups;
    const bool last = groups > 1 && act_groups == 1;
    float y = 0, weight_sum = 0;
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t wg = row * weight_groups + g * weight_groups / groups;
      const int64_t ag = t * act_groups + g * act_groups / groups;
      const int64_t zero = levels || weights.zeros.empty() ? 0 : weights.zeros[wg];
      int64_t products[2] = {}, column_sum = 0;
      for (int64_t i = g * length; i < (g + 1) * length; ++i) {
        const int64_t wide = levels ? LevelCode(row, i) : codes.row(row)[i] - zero;
        for (int64_t p = 0; p < planes; ++p) products[p] += wide * act_codes.row(t * planes + p)[i];
        column_sum += wide;
      }
      float value = static_cast<float>(static_cast<int32_t>(products[0]));
      if (planes == 2) value = 256 * value + static_cast<float>(static_cast<int32_t>(products[1]));
      const float scale = last ? weights.scales[wg] : act_scales[ag] * weights.scales[wg];
      weight_sum = std::fma(weights.scales[wg], static_cast<float>(column_sum), weight_sum);
      if (!last && !act_zero_offsets.empty()) {
        value = value + act_zero_offsets[ag] * static_cast<float>(column_sum);
      }
      y = groups == 1 ? scale * value : std::fma(scale, value, y);
    }
    if (last) {
      y = act_scales[t] *
          (act_zero_offsets.empty() ? y : std::fma(act_zero_offsets[t], weight_sum, y));
    }
    return bias.empty() ? y : y + bias[row];
  }
};

std::string Describe(const ProductCase& c) {
  return fmt::format("M {} N {} K {}, weights {}, activations {}", c.m, c.n, c.k,
                     FormatText(c.weights.format), FormatText(c.input.activations));
}

// bits: 2 to 8, 9 to 11 for a lattice of 2 to 4, and 12 for floats of 4.
FormatSpec RandomFormat(Rng& rng, int64_t bits, int64_t width) {
  if (bits == 12) {
    return {.bits = 4, .group = width % 32 == 0 ? 32 : 0, .codebook = Codebook::kE2m1};
  }
  if (bits > 8 && bits < 16)
    return {.bits = static_cast<int>(bits) - 7, .codebook = Codebook::kE8p};
  FormatSpec format{.bits = static_cast<int>(bits), .symmetric = rng.Below(2) == 0};
  if (!format.quantized()) return {};
  const int64_t group = Pick(rng, {0, 0, 32, 64, 128, 544});
  if (group != 0 && width % group == 0) format.group = group;
  format.second_level = format.group != 0 && bits <= 4 && rng.Below(2) == 0;
  return format;
}

TEST_P(ProductTest, ProductIsTheFixedExpression) {
  int checked = 0;
  for (uint64_t trial = 0; trial < 900; ++trial) {
    Rng rng(5, trial);
    const int64_t m = Pick(rng, {1, 2, 3, 16, 17, 33, 100}),
                  n = Pick(rng, {1, 15, 16, 17, 48, 100});
    const int64_t k = Pick(rng, {32, 64, 88, 96, 160, 512, 1088, 1376});
    const FormatSpec w = RandomFormat(rng, 2 + static_cast<int64_t>(trial % 11), k);
    FormatSpec a = RandomFormat(rng, Pick(rng, {4, 6, 8, 16}), k);
    a.second_level = false;
    if (w.second_level) a.group = 0;
    if (k / a.groups(k) % (k / w.scales(k)) != 0 && k / w.scales(k) % (k / a.groups(k)) != 0)
      continue;
    const ProductCase c(rng, m, n, k, w, a);
    const IntPanels panels = Packed(c.linear);
    if (!kernel().Runs(panels, m)) continue;
    SCOPED_TRACE(Describe(c));
    ++checked;
    // Rows start at every alignment and the gaps between them must stay as they are.
    const int64_t stride = n + static_cast<int64_t>(rng.Below(4)), shift = trial % 3;
    const bool accumulate = rng.Below(2) == 0;
    std::vector<float> y(static_cast<size_t>(shift + m * stride), 12345.75f);
    GemmInt(DetectedIsa(), c.Acts(0, m), panels, kernel(), y.data() + shift, stride, accumulate);
    for (int64_t i = 0; i < m * stride; ++i) {
      const int64_t row = i % stride;
      float expected = 12345.75f;
      if (row < n)
        expected =
            accumulate ? expected + c.Expected(i / stride, row) : c.Expected(i / stride, row);
      ASSERT_EQ(std::bit_cast<int32_t>(y[shift + i]), std::bit_cast<int32_t>(expected))
          << y[shift + i] << " instead of " << expected << ", m " << i / stride << " n " << row;
    }
  }
  EXPECT_GE(checked, 15);
}

// Large enough for several tasks per thread and more than one block of tokens.
TEST_P(ProductTest, BatchAndThreadsDoNotMatter) {
  Rng rng(23);
  const bool codewords = kernel().form == Form::kCodewords, floats = kernel().form == Form::kFloats;
  const FormatSpec format = {.bits = codewords || kernel().bits == 8 ? kernel().bits : 4,
                             .group = codewords ? 0 : 128,
                             .second_level = kernel().form == Form::kLevels,
                             .codebook = codewords ? Codebook::kE8p
                                         : floats  ? Codebook::kE2m1
                                                   : Codebook::kNone};
  for (const FormatSpec& inputs : {FormatSpec{.bits = 8, .symmetric = false}, FormatSpec{}}) {
    const int64_t max = inputs.bits == 16 ? kernel().max_tokens / 2 : kernel().max_tokens;
    const int64_t tokens = max != 0 ? max : 300;
    const ProductCase c(rng, tokens, 100, 1152, format, inputs);
    const IntPanels panels = Packed(c.linear);
    const auto run = [&](int64_t first, int64_t count, int threads) {
      SetThreads(threads);
      std::vector<float> y(static_cast<size_t>(count * c.n), NAN);
      GemmInt(DetectedIsa(), c.Acts(first, count), panels, kernel(), y.data(), c.n, false);
      SetThreads(0);
      return y;
    };
    const std::vector<float> whole = run(0, tokens, 1);
    EXPECT_EQ(whole, run(0, tokens, 2));
    for (const int64_t t : {int64_t{0}, tokens / 2, tokens - 1}) {
      const auto first = whole.begin() + t * c.n;
      EXPECT_EQ(std::vector<float>(first, first + c.n), run(t, 1, 1)) << "token " << t;
    }
  }
}

TEST(PackPanelsTest, RefusesGroupsThatDoNotNest) {
  Rng rng(2);
  const ProductCase apart(rng, 1, 4, 192, {.bits = 4, .group = 64}, {.bits = 8, .group = 96});
  const ProductCase odd(rng, 1, 4, 36, {.bits = 4, .group = 12}, {.bits = 8});
  for (const ProductCase* c : {&apart, &odd}) {
    try {
      Packed(c->linear);
      FAIL() << Describe(*c);
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("one must divide the other"));
    }
  }
}

TEST(PackPanelsTest, UsesTilesInPlace) {
  Rng rng(4);
  for (const int bits : {3, 4, 8, 9}) {
    const FormatSpec format = bits == 9 ? FormatSpec{.bits = 2, .codebook = Codebook::kE8p}
                                        : FormatSpec{.bits = bits, .symmetric = false, .group = 32};
    ProductCase c(rng, 1, 40, 96, format, {.bits = 8, .symmetric = false});
    const IntPanels own = Packed(c.linear);
    const TileOrder order(c.linear.weights);
    const std::vector<uint8_t> tiles(own.codes, own.codes + order.bytes());
    c.linear.weights.tiles = {DType::kU8, order.shape(),
                              reinterpret_cast<const std::byte*>(tiles.data())};
    const IntPanels borrowed = Packed(c.linear);
    EXPECT_EQ(borrowed.codes, tiles.data());
    EXPECT_EQ(borrowed.memory, nullptr);
    EXPECT_EQ(borrowed.half_scales, own.half_scales);
    EXPECT_EQ(borrowed.offsets, own.offsets);
    EXPECT_EQ(borrowed.column_sums, own.column_sums);
  }
}

// Sums of bytes times signed bytes; 2^24 is the first integer after which floats skip some.
TEST(PackPanelsTest, FloatsHoldSumsOfShortGroups) {
  Rng rng(6);
  const auto exact = [&rng](int bits, int64_t group, int64_t cols) {
    return Packed(ProductCase(rng, 1, 1, cols, {.bits = bits, .group = group}, {.bits = 8}).linear)
        .exact();
  };
  EXPECT_TRUE(exact(8, 512, 1024));
  EXPECT_FALSE(exact(8, 544, 1088));
  EXPECT_TRUE(exact(4, 544, 1088));
  EXPECT_FALSE(exact(4, 0, 1024)) << "rows have no such sums";
}

TEST(PackPanelsTest, RefusesSumsBeyondInt32) {
  Rng rng(3);
  const ProductCase c(rng, 1, 1, 65800, {.bits = 8}, {.bits = 8});
  EXPECT_THROW(Packed(c.linear), Error);
}

}  // namespace
}  // namespace nibble::cpu
