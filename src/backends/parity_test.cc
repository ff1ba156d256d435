// SPDX-License-Identifier: Apache-2.0
// Activations, products and elementwise ops of the cpu backend against the reference backend, on
// every instruction set of this machine, over odd sizes. What comes from integers and from one
// fixed fp32 expression must agree bit for bit; the rest within bounds derived where they are used.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "backends/parity_testing.h"
#include "base/thread_pool.h"

namespace nibble {
namespace {

using ActsParityTest = ParityTest;
NIBBLE_EVERY_ISA(ActsParityTest);

// --- PrepareActs --------------------------------------------------------------------------------

std::vector<FormatSpec> ActivationFormats() {
  std::vector<FormatSpec> formats = {{.bits = 16}};
  for (const int bits : {4, 6, 8}) {
    for (const bool symmetric : {true, false}) {
      for (const int64_t group : {0, 32, 128}) {
        formats.push_back({.bits = bits,
                           .symmetric = symmetric,
                           .group = group,
                           .clip = group == 32 ? 1.0 : 0.9});
      }
    }
    formats.push_back({.bits = bits, .clip = 0.8, .signed_scale = true});
    formats.push_back({.bits = bits, .group = 32, .signed_scale = true});
  }
  return formats;
}

TEST_P(ActsParityTest, PreparedCodesAreBitEqual) {
  for (const FormatSpec& format : ActivationFormats()) {
    for (const int64_t width : {1, 7, 63, 64, 65, 100, 384}) {
      if (format.group != 0 && width % format.group != 0) continue;
      const InputSpec spec = {.width = width, .activation = format};
      for (const int64_t tokens : {17, 1, 6}) {
        const auto x = RandomRows(rng_, tokens, width);
        const Activations a = cpu_->PrepareActs({.x = x.data()}, tokens, spec);
        const Activations b = ref_->PrepareActs({.x = x.data()}, tokens, spec);
        ASSERT_EQ(a.tokens, tokens);
        ASSERT_EQ(a.width, width);
        ASSERT_EQ(a.format, format);
        if (!format.quantized()) {
          ASSERT_TRUE(std::equal(x.begin(), x.end(), a.values));
          continue;
        }
        ASSERT_EQ(a.stride, (width + 63) / 64 * 64);
        ASSERT_EQ(a.zetas == nullptr, format.symmetric);
        const int64_t groups = tokens * format.groups(width);
        ASSERT_TRUE(std::equal(a.codes, a.codes + tokens * a.stride, b.codes))
            << FormatText(format) << " width " << width;
        ASSERT_TRUE(std::equal(a.scales, a.scales + groups, b.scales));
        ASSERT_TRUE(std::equal(a.sums, a.sums + groups, b.sums));
        if (format.symmetric) continue;
        ASSERT_TRUE(std::equal(a.zetas, a.zetas + groups, b.zetas));
      }
    }
  }
}

// Both transforms round about log2(n) times, so a value moves by less than 2 (log2(n) + 2) ulp of
// the row's largest entry; a code changes only if that carries it over a rounding boundary. With at
// most 128 steps in that entry the share is below 2 * 128 * 2 * 13 * 2^-24 = 4e-4.
TEST_P(ActsParityTest, TransformedCodesDifferByOneAtRoundingBoundariesOnly) {
  for (const int64_t width : {64, 96, 448, 576, 896, 960, 1024, 1376, 13696}) {
    for (const int bits : {4, 8, 16}) {
      for (const bool symmetric : {true, false}) {
        const int64_t tokens = 13;
        InputSpec spec = {.width = width,
                          .transform = FullHadamard(width),
                          .activation = {.bits = bits, .symmetric = symmetric, .clip = 0.9}};
        if (width == 96) spec.transform = {.factors = FullHadamard(4).factors, .inner = 24};
        if (width == 576) spec.transform = {.factors = FlatFactors(9), .inner = 64};
        if (width == 896) spec.transform = {.factors = FlatFactors(14), .inner = 64};
        if (width == 960) spec.transform = {.factors = FlatFactors(15), .outer = 4, .inner = 16};
        if (!symmetric) spec.transform = Inverse(spec.transform);
        const auto x = RandomVector(rng_, tokens * width);
        const Activations a = cpu_->PrepareActs({.x = x.data()}, tokens, spec);
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
          // zeta = lo / a + h, both with the relative error above.
          if (symmetric) continue;
          ASSERT_NEAR(a.zetas[t], b.zetas[t], 128 * 128 * kUlp);
        }
        EXPECT_LE(flips, 3 + tokens * width / 2500) << "width " << width << " bits " << bits;
      }
    }
  }
}

// --- Gemm ---------------------------------------------------------------------------------------

struct Product {
  std::vector<float> cpu, ref;
};

// Both backends on the activations of the reference; rows lie 3 floats further apart than needed.
class GemmParityTest : public ParityTest {
 protected:
  Product Multiply(const TestLinear& linear, const std::vector<float>& x, int64_t tokens,
                   bool accumulate) {
    const int64_t rows = linear.packed.weights.rows, stride = rows + 3;
    const Activations acts = ref_->PrepareActs({.x = x.data()}, tokens, linear.packed.input);
    Product p;
    p.cpu.assign(static_cast<size_t>(tokens * stride), kPoison);
    if (accumulate) {
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t n = 0; n < rows; ++n)
          p.cpu[t * stride + n] = static_cast<float>(rng_.Normal());
      }
    }
    p.ref = p.cpu;
    Run(*cpu_, acts, linear, p.cpu.data(), stride, accumulate);
    Run(*ref_, acts, linear, p.ref.data(), stride, accumulate);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t n = rows; n < stride; ++n) EXPECT_EQ(p.cpu[t * stride + n], kPoison);
    }
    return p;
  }

  static void Run(Backend& backend, const Activations& acts, const TestLinear& linear, float* y,
                  int64_t stride, bool accumulate) {
    const LinearId id = backend.Upload(linear.packed);
    EXPECT_FALSE(backend.KernelName(id, acts.tokens).empty());
    backend.Gemm(acts, id, y, stride, accumulate);
    backend.Release(id);
  }

  void ExpectBitEqual(const FormatSpec& w, const FormatSpec& a, int64_t rows, int64_t cols,
                      int64_t tokens) {
    const InputSpec input = {.width = cols, .activation = a};
    const auto linear = RandomLinear(rng_, w, rows, input, rng_.Below(2) == 0);
    const auto x = RandomRows(rng_, tokens, cols);
    const Product p = Multiply(*linear, x, tokens, rng_.Below(2) == 0);
    for (size_t i = 0; i < p.cpu.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(p.cpu[i]), std::bit_cast<uint32_t>(p.ref[i]))
          << p.cpu[i] << " vs " << p.ref[i] << ": weights " << FormatText(w) << " acts "
          << FormatText(a) << " " << tokens << " x " << rows << " x " << cols << " at " << i;
    }
  }
};

NIBBLE_EVERY_ISA(GemmParityTest);

TEST_P(GemmParityTest, EveryPairOfFormatsIsBitEqual) {
  const int64_t tokens[] = {1, 2, 3, 4, 5, 17, 33};
  int64_t turn = 0;
  for (int bits = 2; bits <= 8; ++bits) {
    for (const bool symmetric : {true, false}) {
      for (const int64_t group : {0, 32, 64, 128}) {
        for (const FormatSpec& a : ActivationFormats()) {
          if (!a.quantized()) continue;
          const FormatSpec w = {.bits = bits, .symmetric = symmetric, .group = group};
          const bool grouped = group != 0 || a.group != 0;
          const int64_t cols = grouped ? 384 : 101;
          ExpectBitEqual(w, a, 1 + turn % 67, cols, tokens[turn % 7]);
          ++turn;
        }
      }
    }
  }
}

// Steps of the second level that do not end where chunks do, and K that is padded.
TEST_P(GemmParityTest, TwoLevelsOfScalesAreBitEqual) {
  int64_t turn = 0;
  for (int bits = 2; bits <= 4; ++bits) {
    for (const int64_t tokens : {1, 2, 4, 5, 12, 13, 33, 65, 130}) {
      for (const auto& [cols, group] : std::vector<std::pair<int64_t, int64_t>>{
               {32, 32}, {1376, 32}, {1120, 160}, {1152, 128}, {2048, 1024}, {736, 736}}) {
        const FormatSpec w = {
            .bits = bits, .symmetric = turn % 2 == 0, .group = group, .second_level = true};
        ExpectBitEqual(w, {.bits = turn % 3 == 0 ? 4 : 8, .symmetric = turn % 5 != 0},
                       1 + turn % 67, cols, tokens);
        ++turn;
      }
    }
  }
}

// Rows of the kernel table, their tails and their blocks: K around the chunk, N around the panels.
TEST_P(GemmParityTest, OddSizesAreBitEqual) {
  for (const int bits : {4, 8}) {
    for (const int64_t tokens : {1, 2, 4, 5, 16, 31, 32, 64, 65, 257, 300}) {
      for (const int64_t cols : {1, 31, 512, 513, 1100}) {
        const FormatSpec a = {.bits = bits, .symmetric = tokens % 2 == 0, .clip = 0.9};
        ExpectBitEqual({.bits = bits, .symmetric = cols % 2 == 0}, a, tokens < 6 ? 131 : 47, cols,
                       tokens);
      }
    }
  }
  for (const int64_t group : {32, 64, 128}) {
    ExpectBitEqual({.bits = 4, .group = group}, {.bits = 8}, 65, 1152, 300);
    ExpectBitEqual({.bits = 4, .group = group}, {.bits = 4, .group = group}, 65, 4608, 3);
  }
}

TEST_P(GemmParityTest, SparseCodesAreBitEqual) {
  for (const bool symmetric : {true, false}) {
    for (const int64_t group : {0, 64}) {
      for (const int64_t tokens : {1, 5, 33}) {
        const FormatSpec a = {.bits = 4, .symmetric = symmetric, .group = group};
        for (const int bits : {3, 4, 8}) {
          const FormatSpec w = {
              .bits = bits, .symmetric = symmetric, .group = group, .sparse = true};
          ExpectBitEqual(w, a, 61, group == 0 ? 328 : 384, tokens);
        }
        const FormatSpec w = {
            .bits = 4, .symmetric = symmetric, .group = 64, .second_level = true, .sparse = true};
        ExpectBitEqual(w, {.bits = 8}, 61, 384, tokens);
      }
    }
  }
}

// All codes at the ends of their ranges: the largest sums, where saturating instructions would
// show.
TEST_P(GemmParityTest, ExtremeCodesAreBitEqual) {
  const int64_t cols = 2048, rows = 48;
  for (const int bits : {4, 8}) {
    for (const int byte : {0x00, 0x88, 0x77, 0x80, 0x7F, 0xFF}) {
      const InputSpec input = {.width = cols, .activation = {.bits = 8, .clip = 0.9}};
      auto linear = RandomLinear(rng_, {.bits = bits}, rows, input, false);
      std::fill(linear->quantized.codes.begin(), linear->quantized.codes.end(),
                static_cast<uint8_t>(byte));
      for (const int64_t tokens : {1, 6}) {
        for (const float sign : {1.0f, -1.0f}) {  // clipped: codes 127 and -128
          const std::vector<float> x(static_cast<size_t>(tokens * cols), sign);
          const Product p = Multiply(*linear, x, tokens, false);
          ASSERT_EQ(p.cpu, p.ref) << bits << " bits, byte " << byte;
        }
      }
    }
  }
}

// Products in fp32: each backend rounds one chain of K products and sums, so it is off by at most
// (K + 4) ulp of sum |x w|, decoding included.
TEST_P(GemmParityTest, FloatLinearsAgreeWithinTheirRounding) {
  const FormatSpec dense = {.bits = 16}, four = {.bits = 4, .group = 32};
  const FormatSpec asymmetric = {.bits = 8, .symmetric = false};
  const std::pair<FormatSpec, FormatSpec> pairs[] = {
      {dense, dense}, {four, dense}, {asymmetric, dense}, {dense, asymmetric}, {dense, four}};
  for (const auto& [w, a] : pairs) {
    for (const int64_t tokens : {1, 3, 7, 33, 130}) {
      const int64_t cols = 352, rows = 1 + static_cast<int64_t>(rng_.Below(100));
      const InputSpec input = {.width = cols, .activation = a};
      const auto linear = RandomLinear(rng_, w, rows, input, tokens % 2 == 0);
      const auto x = RandomRows(rng_, tokens, cols);
      const bool accumulate = tokens % 3 == 0;
      const Product p = Multiply(*linear, x, tokens, accumulate);
      const Matrix<float> weights = Decode(linear->packed.weights);
      const Activations acts = ref_->PrepareActs({.x = x.data()}, tokens, input);
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t n = 0; n < rows; ++n) {
          double size = std::fabs(p.ref[t * (rows + 3) + n]) + 5;  // bias and old output
          for (int64_t k = 0; k < cols; ++k) {
            size += std::fabs(double{acts.values[t * cols + k]} * weights.row(n)[k]);
          }
          const size_t i = static_cast<size_t>(t * (rows + 3) + n);
          ASSERT_NEAR(p.cpu[i], p.ref[i], 2 * (cols + 4) * kUlp * size)
              << FormatText(w) << " x " << FormatText(a);
        }
      }
    }
  }
}

// The promise of backend.h: same bits alone, in a batch, and with any number of threads.
TEST_P(GemmParityTest, RowsDependOnNothingElse) {
  const int64_t tokens = 37, cols = 352, rows = 90;
  for (const int w_bits : {3, 4, 8, 16}) {
    for (const int a_bits : {4, 8, 16}) {
      const InputSpec input = {.width = cols,
                               .transform = FullHadamard(cols),
                               .activation = {.bits = a_bits, .symmetric = a_bits != 4}};
      const auto linear = RandomLinear(rng_, {.bits = w_bits}, rows, input, true);
      const auto x = RandomVector(rng_, tokens * cols);
      const LinearId id = cpu_->Upload(linear->packed);
      std::vector<float> batch(static_cast<size_t>(tokens * rows), kPoison);
      SetThreads(3);
      cpu_->Gemm(cpu_->PrepareActs({.x = x.data()}, tokens, input), id, batch.data(), rows, false);
      SetThreads(1);
      for (int64_t t = 0; t < tokens;) {
        const int64_t count = std::min<int64_t>(1 + t % 6, tokens - t);
        std::vector<float> part(static_cast<size_t>(count * rows), kPoison);
        const Activations acts = cpu_->PrepareActs({.x = x.data() + t * cols}, count, input);
        cpu_->Gemm(acts, id, part.data(), rows, false);
        for (int64_t i = 0; i < count * rows; ++i) ASSERT_EQ(part[i], batch[t * rows + i]);
        t += count;
      }
      SetThreads(0);
      cpu_->Release(id);
    }
  }
}

// --- elementwise
// ----------------------------------------------------------------------------------

using ElementwiseParityTest = ParityTest;
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
    cpu_->Embed(table, ids, cpu.data());
    ref_->Embed(table, ids, ref.data());
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
      std::copy_n(cpu_->PrepareActs(source, tokens, plain).values, x.size(), cpu.begin());
      std::copy_n(ref_->PrepareActs(source, tokens, plain).values, x.size(), ref.begin());
      const double relative = (static_cast<double>(width) / 2 + 6) * kUlp;
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_NEAR(cpu[i], ref[i], relative * std::fabs(ref[i])) << width;
      }
    }
  }
}

// Two exponentials with up to 4 ulp each, a sum, a quotient and a product on either side. Below -87
// e^-gate leaves fp32 and results are subnormal or 0.
TEST_P(ElementwiseParityTest, SiluMulAgrees) {
  for (const int64_t count : {1, 7, 16, 333, 10000}) {
    auto gate = RandomVector(rng_, count, 4);
    const auto up = RandomVector(rng_, count);
    for (const float extreme : {-1000.0f, -104.0f, -89.0f, -88.0f, -80.0f, 0.0f, 88.0f, 1000.0f}) {
      gate[rng_.Below(static_cast<uint64_t>(count))] = extreme;
    }
    std::vector<float> cpu(gate.size(), kPoison), ref(gate.size(), kPoison);
    const ActsSource source = {.op = ActsSource::Op::kSiluMul, .gate = Raw(gate), .up = Raw(up)};
    const InputSpec plain = {.width = count};
    std::copy_n(cpu_->PrepareActs(source, 1, plain).values, gate.size(), cpu.begin());
    std::copy_n(ref_->PrepareActs(source, 1, plain).values, gate.size(), ref.begin());
    for (size_t i = 0; i < gate.size(); ++i) {
      ASSERT_NEAR(cpu[i], ref[i], 14 * kUlp * std::fabs(ref[i]) + 1e-35) << gate[i];
    }
  }
}

}  // namespace
}  // namespace nibble
