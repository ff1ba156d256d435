// SPDX-License-Identifier: Apache-2.0
// Activations and elementwise ops of the cpu backend against the reference backend, on every
// instruction set of this machine, over odd sizes. What comes from integers and from one fixed fp32
// expression must agree bit for bit; the rest within bounds derived where they are used.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "backends/parity_testing.h"

namespace nibble {
namespace {

using CpuActsParityTest = CpuParityTest;
NIBBLE_EVERY_ISA(CpuActsParityTest);

TEST_P(CpuActsParityTest, PreparedCodesAreBitEqual) {
  for (const FormatSpec& format : ActivationFormats()) {
    for (const int64_t width : {1, 7, 63, 64, 65, 100, 384}) {
      if (format.group != 0 && width % format.group != 0) continue;
      const InputSpec spec = {.width = width, .activations = format};
      for (const int64_t tokens : {17, 1, 6}) {
        const auto x = RandomRows(rng_, tokens, width);
        const Activations a = ours_->PrepareActs({.x = x.data()}, tokens, spec);
        const Activations b = ref_->PrepareActs({.x = x.data()}, tokens, spec);
        ASSERT_EQ(a.tokens, tokens);
        ASSERT_EQ(a.width, width);
        ASSERT_EQ(a.format, format);
        if (!format.quantized()) {
          ASSERT_TRUE(std::equal(x.begin(), x.end(), a.values));
          continue;
        }
        ASSERT_EQ(a.stride, (width + 63) / 64 * 64);
        ASSERT_EQ(a.zero_offsets == nullptr, format.symmetric);
        const int64_t groups = tokens * format.groups(width);
        ASSERT_TRUE(std::equal(a.codes, a.codes + tokens * a.stride, b.codes))
            << FormatText(format) << " width " << width;
        ASSERT_TRUE(std::equal(a.scales, a.scales + groups, b.scales));
        ASSERT_TRUE(std::equal(a.sums, a.sums + groups, b.sums));
        if (format.symmetric) continue;
        ASSERT_TRUE(std::equal(a.zero_offsets, a.zero_offsets + groups, b.zero_offsets));
      }
    }
  }
}

// Both transforms round about log2(n) times, so a value moves by less than 2 (log2(n) + 2) ulp of
// the row's largest entry; a code changes only if that carries it over a rounding boundary. With at
// most 128 steps in that entry the share is below 2 * 128 * 2 * 13 * 2^-24 = 4e-4.
TEST_P(CpuActsParityTest, TransformedCodesDifferByOneAtRoundingBoundariesOnly) {
  for (const int64_t width : {64, 96, 448, 576, 896, 960, 1024, 1376, 13696}) {
    for (const int bits : {4, 8, 16}) {
      for (const bool symmetric : {true, false}) {
        const int64_t tokens = 13;
        InputSpec spec = {.width = width,
                          .transform = FullHadamard(width),
                          .activations = {.bits = bits, .symmetric = symmetric, .clip = 0.9}};
        if (width == 96) spec.transform = {.factors = FullHadamard(4).factors, .inner = 24};
        if (width == 576) spec.transform = {.factors = FlatFactors(9), .inner = 64};
        if (width == 896) spec.transform = {.factors = FlatFactors(14), .inner = 64};
        if (width == 960) spec.transform = {.factors = FlatFactors(15), .outer = 4, .inner = 16};
        if (!symmetric) spec.transform = Inverse(spec.transform);
        const auto x = RandomVector(rng_, tokens * width);
        const Activations a = ours_->PrepareActs({.x = x.data()}, tokens, spec);
        const Activations b = ref_->PrepareActs({.x = x.data()}, tokens, spec);
        int64_t flips = 0;
        for (int64_t t = 0; t < tokens; ++t) {
          if (bits == 16) {
            // Entries of a normal row stay below 6 in size.
            for (int64_t i = t * width; i < (t + 1) * width; ++i) {
              ASSERT_NEAR(a.values[i], b.values[i], 2 * 13 * 6 * kUlp);
            }
            continue;
          }
          ASSERT_NEAR(a.scales[t], b.scales[t], 64 * kUlp * b.scales[t]);
          int32_t sum = 0;
          for (int64_t i = t * a.stride; i < t * a.stride + width; ++i) {
            ASSERT_LE(std::abs(a.codes[i] - b.codes[i]), 1);
            flips += a.codes[i] != b.codes[i];
            sum += a.codes[i];
          }
          for (int64_t i = t * a.stride + width; i < (t + 1) * a.stride; ++i) {
            ASSERT_EQ(a.codes[i], 0);
          }
          ASSERT_EQ(a.sums[t], sum);
          // z = lo / a + h, both with the relative error above.
          if (symmetric) continue;
          ASSERT_NEAR(a.zero_offsets[t], b.zero_offsets[t], 128 * 128 * kUlp);
        }
        EXPECT_LE(flips, 3 + tokens * width / 2500) << "width " << width << " bits " << bits;
      }
    }
  }
}

// Rows are rounded where the reference rounds them. Sums in another order move a result over a
// boundary between two values of 11 bits, which lie 2^-10 of it apart: of results near 1, with the
// bound of 2 * 13 kUlp of the largest entry, at most 1 % of them.
TEST_P(CpuActsParityTest, TransformsOf16BitsRoundAtTheSamePlaces) {
  for (const int64_t width : {64, 96, 1376, 4096, 13696}) {
    const int64_t tokens = 13;
    InputSpec spec = {.width = width, .transform = FullHadamard(width), .transform_bits = 16};
    if (width == 96) spec.transform = {.factors = FlatFactors(6), .inner = 16};
    auto x = RandomVector(rng_, tokens * width);
    x[0] = 0x1p90f;  // beyond fp16
    const float* ours = ours_->PrepareActs({.x = x.data()}, tokens, spec).values;
    const float* exact = ref_->PrepareActs({.x = x.data()}, tokens, spec).values;
    int64_t differ = 0;
    for (int64_t i = width; i < tokens * width; ++i) {
      ASSERT_NEAR(ours[i], exact[i], 0x1p-10 * std::fabs(exact[i]) + 2 * 13 * 6 * kUlp) << width;
      differ += ours[i] != exact[i] ? 1 : 0;
    }
    EXPECT_LE(differ, 3 + tokens * width / 50) << width;
    for (int64_t i = 0; i < width; ++i) ASSERT_TRUE(std::isfinite(ours[i])) << width;
  }
  // Adding to these bits must not make a number of them.
  std::vector<float> x(64, std::bit_cast<float>(0x7FFFFFFF));
  const InputSpec spec = {.width = 64, .transform = FullHadamard(64), .transform_bits = 16};
  EXPECT_TRUE(std::isnan(ours_->PrepareActs({.x = x.data()}, 1, spec).values[32]));
}

using ElementwiseParityTest = CpuParityTest;
NIBBLE_EVERY_ISA(ElementwiseParityTest);

TEST_P(ElementwiseParityTest, EmbeddingsAreExact) {
  const int64_t vocab = 50, hidden = 37;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBf16}) {
    std::vector<uint16_t> bits(static_cast<size_t>(2 * vocab * hidden));
    for (uint16_t& b : bits)
      b = static_cast<uint16_t>(rng_.Next()) & 0xBBFF;  // finite in each type
    const PackedWeights table = {
        .rows = vocab,
        .cols = hidden,
        .values = {dtype, {vocab, hidden}, reinterpret_cast<std::byte*>(bits.data())}};
    std::vector<int32_t> ids = {0, 49, 7, 7};
    for (int i = 0; i < 100; ++i) ids.push_back(static_cast<int32_t>(rng_.Below(vocab)));
    std::vector<float> cpu(ids.size() * hidden, kPoison), ref = cpu;
    ours_->Embed(table, ids, 0.75f, cpu.data());
    ref_->Embed(table, ids, 0.75f, ref.data());
    ASSERT_EQ(cpu, ref) << DTypeName(dtype);
  }
}

// fp32 sums of squares of `width` positive terms are off by at most width ulp, the root halves
// that; three more roundings follow.
TEST_P(ElementwiseParityTest, RmsNormAgrees) {
  for (const int64_t width : {1, 7, 64, 100, 1000}) {
    for (const bool weighted : {true, false}) {
      const int64_t tokens = 9;
      const auto x = RandomRows(rng_, tokens, width), weight = RandomVector(rng_, width);
      std::vector<float> cpu(x.size(), kPoison), ref(x.size(), kPoison);
      const float* w = weighted ? weight.data() : nullptr;
      const ActsSource source = {
          .x = x.data(), .op = ActsSource::Op::kRmsNorm, .norm_weight = w, .norm_eps = 1e-5f};
      const InputSpec plain = {.width = width};
      std::copy_n(ours_->PrepareActs(source, tokens, plain).values, x.size(), cpu.begin());
      std::copy_n(ref_->PrepareActs(source, tokens, plain).values, x.size(), ref.begin());
      const double relative = (static_cast<double>(width) / 2 + 6) * kUlp;
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_NEAR(cpu[i], ref[i], relative * std::fabs(ref[i])) << width;
      }
    }
  }
}

// An exponential with up to 4 ulp, a sum, a quotient and a product. Its argument z, two more
// roundings in a cubic, moves it by z ulp each. Below -87 e^-z leaves fp32 and results are
// subnormal or 0. The share of normal numbers is off by 0.75e-7 and a few roundings of at most 1.
TEST_P(ElementwiseParityTest, GatedValuesAgree) {
  GateSpec gelu = kNormalGelu, relu = kRelu;
  gelu.alone = relu.alone = true;
  for (const auto& [gating, count] : {std::pair{kSilu, 1},
                                      {kSilu, 7},
                                      {kSilu, 333},
                                      {kSilu, 10000},
                                      {kGelu, 333},
                                      {kGelu, 16},
                                      {gelu, 333},
                                      {kNormalGelu, 9},
                                      {relu, 333},
                                      {kRelu, 7},
                                      {GateSpec{1.702f, 0, 7, 1}, 333}}) {
    auto gate = RandomVector(rng_, count, 4);
    const auto up = RandomVector(rng_, count);
    for (const float extreme : {-1000.0f, -104.0f, -89.0f, -88.0f, -80.0f, 0.0f, 88.0f, 1000.0f}) {
      gate[rng_.Below(static_cast<uint64_t>(count))] = extreme;
    }
    std::vector<float> cpu(gate.size(), kPoison), ref(gate.size(), kPoison);
    const ActsSource source = {
        .op = ActsSource::Op::kGated, .gate = Raw(gate), .up = Raw(up), .gating = gating};
    const InputSpec plain = {.width = count};
    std::copy_n(ours_->PrepareActs(source, 1, plain).values, gate.size(), cpu.begin());
    std::copy_n(ref_->PrepareActs(source, 1, plain).values, gate.size(), ref.begin());
    for (size_t i = 0; i < gate.size(); ++i) {
      const double z = gate[i] * (gating.linear + gating.cubic * double{gate[i]} * gate[i]);
      const double bound =
          14 + (gating.up_offset == 0 ? 0 : 1) + (gating.cubic == 0 ? 0 : 4 * std::fabs(z));
      const double normal = gating.opening == GateSpec::Opening::kNormal ? 0.75e-7 + 4 * kUlp : 0;
      const double factor = std::fabs(double{gate[i]} * (gating.alone ? 1 : up[i]));
      ASSERT_NEAR(cpu[i], ref[i], bound * kUlp * std::fabs(ref[i]) + normal * factor + 1e-35)
          << gate[i];
    }
  }
}

}  // namespace
}  // namespace nibble
