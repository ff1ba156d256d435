// SPDX-License-Identifier: Apache-2.0
// Tests which row of the kernel table runs, and its int32 sums against plain loops, bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backends/cpu/acts/activations.h"
#include "backends/cpu/gemm/gemm_int.h"
#include "backends/cpu/gemm/gram.h"
#include "backends/cpu/gemm/kernels_testing.h"
#include "formats/packed_weights_testing.h"
#include "tensor/e2m1.h"

namespace nibble::cpu {
namespace {

constexpr int32_t kPoison = 0x5A5A5A5A;

INSTANTIATE_TEST_SUITE_P(Rows, KernelTest, ::testing::ValuesIn(RowsOfIntegers()), KernelTestName);

// Unsigned weights [32 outputs, k] and signed activations [rows, stride] of one tile.
struct SumCase {
  int64_t rows, k, stride;
  std::vector<uint8_t> weights;
  std::vector<int8_t> acts;

  SumCase(Rng& rng, int64_t m, int64_t inputs, int64_t max_weight, bool extreme)
      : rows(m), k(inputs), stride(inputs + Pick(rng, {0, 64, 192})) {
    for (int64_t i = 0; i < kTileOutputs * k; ++i) {
      weights.push_back(static_cast<uint8_t>(extreme ? max_weight : Code(rng, 0, max_weight)));
    }
    for (int64_t i = 0; i < rows * stride; ++i) {
      acts.push_back(static_cast<int8_t>(extreme ? -128 : Code(rng, -128, 127)));
    }
  }
  int64_t Sum(int64_t m, int64_t n, int64_t first, int64_t last) const {
    int64_t sum = 0;
    for (int64_t i = first; i < last; ++i)
      sum += int64_t{weights[n * k + i]} * acts[m * stride + i];
    return sum;
  }
  // [2 panels][k/4][16][4]
  std::vector<uint8_t> BytePanels() const {
    std::vector<uint8_t> panels;
    for (int64_t p = 0; p < 2; ++p) {
      for (int64_t i = 0; i < k * kPanel; ++i) {
        panels.push_back(weights[(p * kPanel + i / 4 % 16) * k + i / 64 * 4 + i % 4]);
      }
    }
    return panels;
  }
  // [2 panels][k/8][16][4], two inputs four apart in a byte
  std::vector<uint8_t> NibblePanels() const {
    std::vector<uint8_t> panels;
    for (int64_t p = 0; p < 2; ++p) {
      for (int64_t i = 0; i < k / 8 * 64; ++i) {
        const uint8_t* first = &weights[(p * kPanel + i / 4 % 16) * k + i / 64 * 8 + i % 4];
        panels.push_back(static_cast<uint8_t>(first[0] | first[4] << 4));
      }
    }
    return panels;
  }
};

// Nibbles of floats become their bytes.
void MakeFloats(SumCase& c) {
  for (uint8_t& nibble : c.weights) nibble = static_cast<uint8_t>(12 + kE2m1Codes[nibble ^ 8]);
}

// Steps of 32 inputs, one of which may be cut short, and the weights that they stand for.
std::vector<uint16_t> RandomSteps(Rng& rng, SumCase& c) {
  const int64_t groups = (c.k + 31) / 32;
  std::vector<uint16_t> steps(static_cast<size_t>(2 * groups * kPanel));
  for (int64_t n = 0; n < kTileOutputs; ++n) {
    for (int64_t g = 0; g < groups; ++g) {
      const int zero = static_cast<int>(Code(rng, -8, 7));
      const int scale = static_cast<int>(Code(rng, 1, LargestGroupScale(zero)));
      const uint16_t step = LevelStep(scale, zero);
      steps[static_cast<size_t>((n / kPanel * groups + g) * kPanel + n % kPanel)] = step;
      for (int64_t i = g * 32; i < std::min((g + 1) * 32, c.k); ++i) {
        uint8_t& code = c.weights[static_cast<size_t>(n * c.k + i)];
        code = static_cast<uint8_t>(code * (step & 255) + (step >> 8));
      }
    }
  }
  return steps;
}

void CheckGemm(const Kernel& kernel, SumCase c) {
  if (kernel.tiles && c.rows > 32) return;  // more than a call's block
  if (kernel.form == Form::kFloats) MakeFloats(c);
  const std::vector<uint8_t> panels = c.BytePanels();
  std::vector<int8_t> tiles(static_cast<size_t>((c.rows + 15) / 16 * 16 * c.stride));
  for (int64_t t = 0; kernel.tiles && t < c.rows; ++t) {
    StoreTileRow(c.acts.data() + t * c.stride, t, c.stride, tiles.data());
  }
  Rng rng(32);
  const auto steps = kernel.form == Form::kLevels ? RandomSteps(rng, c) : std::vector<uint16_t>();
  // In two calls, as the blocking over K does, and a guard row behind the result.
  const int64_t half = c.k / 2 / kernel.k_step * kernel.k_step;
  const int64_t written = kernel.tiles ? (c.rows + 15) / 16 * 16 : c.rows;
  std::vector<int32_t> sums(static_cast<size_t>((written + 1) * kTileOutputs), kPoison);
  // Lines of nibbles to unpack meanwhile; the two calls do half each.
  const std::vector<uint8_t> nibbles(panels.begin(), panels.begin() + 2 * c.k / 8 * 64);
  alignas(64) uint8_t bytes[2 * 16 * 1408];
  GemmTile tile{.a = kernel.tiles ? tiles.data() : c.acts.data(),
                .a_stride = kernel.tiles ? 16 * c.stride : c.stride,
                .rows = c.rows,
                .b = panels.data(),
                .b_stride = c.k * kPanel,
                .k = half > 0 ? half : c.k,
                .c = sums.data(),
                .accumulate = false,
                .ahead = {.nibbles = nibbles.data(),
                          .nibble_stride = c.k / 8 * 64,
                          .bytes = bytes,
                          .byte_stride = 16 * c.k,
                          .lines = c.k / 8},
                .steps = {steps.data(), static_cast<int64_t>(steps.size()) / 2, 32, 0}};
  if (kernel.tiles) amx_begin();
  kernel.gemm(tile);
  if (half > 0) {
    tile.a += kernel.tiles ? half * 16 : half;
    tile.b += half * kPanel;
    tile.k = c.k - half;
    tile.accumulate = true;
    tile.steps.first = half;
    kernel.gemm(tile);
  }
  if (kernel.tiles) amx_end();
  for (int64_t i = 0; kernel.tiles && i < 2 * 16 * c.k; ++i) {
    const uint8_t pair = nibbles[i / 128 * 64 + i % 64];
    ASSERT_EQ(bytes[i], i % 128 < 64 ? pair & 15 : pair >> 4) << i;
  }
  for (int64_t i = 0; i < c.rows * kTileOutputs; ++i) {
    ASSERT_EQ(sums[i], c.Sum(i / kTileOutputs, i % kTileOutputs, 0, c.k))
        << "m " << i / kTileOutputs << " n " << i % kTileOutputs;
  }
  for (int64_t n = 0; n < kTileOutputs; ++n) ASSERT_EQ(sums[written * kTileOutputs + n], kPoison);
}

// Panels of random codes of a lattice, and the weights that they stand for.
std::vector<uint8_t> RandomCodewords(Rng& rng, int bits, SumCase& c) {
  const LatticeCode lattice(bits);
  std::vector<uint8_t> panels(static_cast<size_t>(kTileOutputs * c.k / 8 * bits));
  for (uint8_t& byte : panels) byte = static_cast<uint8_t>(rng.Below(256));
  for (int64_t n = 0; n < kTileOutputs; ++n) {
    for (int64_t k = 0; k < c.k; k += 8) {
      // [panel][k / 32][byte][16 outputs][4 codes]
      const int64_t block = n / kPanel * c.k / 32 + k / 32, at = n % kPanel * 4 + k % 32 / 8;
      uint32_t code = 0;
      for (int byte = 0; byte < bits; ++byte) {
        code |= uint32_t{panels[(block * bits + byte) * 64 + at]} << 8 * byte;
      }
      const LatticeCode::Codeword codeword = lattice.Decode(code);
      for (int64_t i = 0; i < 8; ++i) {
        c.weights[n * c.k + k + i] = static_cast<uint8_t>(codeword[i] + lattice.offset());
      }
    }
  }
  return panels;
}

void CheckGemv(const Kernel& kernel, SumCase c, int64_t groups) {
  Rng rng(31);
  const std::vector<uint8_t> panels = kernel.form == Form::kCodewords
                                          ? RandomCodewords(rng, kernel.bits, c)
                                      : kernel.bits == 4 ? c.NibblePanels()
                                                         : c.BytePanels();
  if (kernel.form == Form::kFloats) MakeFloats(c);
  const auto steps = kernel.form == Form::kLevels ? RandomSteps(rng, c) : std::vector<uint16_t>();
  const int64_t k = c.k / groups, count = groups * c.rows * kTileOutputs;
  std::vector<int32_t> sums(static_cast<size_t>(count + kTileOutputs), kPoison);
  kernel.gemv({.a = c.acts.data(),
               .a_stride = c.stride,
               .rows = c.rows,
               .b = panels.data(),
               .b_stride = static_cast<int64_t>(panels.size()) / 2,
               .groups = groups,
               .k = k,
               .c = sums.data(),
               .steps = {steps.data(), static_cast<int64_t>(steps.size()) / 2, 32, 0},
               .words = &LatticeCode::Words()});
  for (int64_t i = 0; i < count; ++i) {
    const int64_t g = i / kTileOutputs / c.rows, m = i / kTileOutputs % c.rows;
    ASSERT_EQ(sums[i], c.Sum(m, i % kTileOutputs, g * k, (g + 1) * k))
        << "group " << g << " m " << m << " n " << i % kTileOutputs;
  }
  for (int64_t n = 0; n < kTileOutputs; ++n) ASSERT_EQ(sums[count + n], kPoison);
}

TEST_P(KernelTest, SumsAreExact) {
  Rng rng(17, GetParam());
  for (const int64_t rows : {1, 2, 3, 4, 5, 7, 8, 11, 12, 13, 16, 17, 31, 32, 33, 49, 64, 100}) {
    if (kernel().max_tokens != 0 && rows > kernel().max_tokens) continue;
    for (const int64_t k : {8, 24, 32, 40, 64, 96, 160, 192, 512, 1408}) {
      if (k % kernel().k_step != 0) continue;
      for (const bool extreme : {false, true}) {
        SCOPED_TRACE(fmt::format("rows {} k {} extreme {}", rows, k, extreme));
        const SumCase c(rng, rows, k, kernel().bits == 4 ? 15 : 255, extreme);
        if (kernel().gemm != nullptr) {
          CheckGemm(kernel(), c);
        } else {
          CheckGemv(kernel(), c, 1);
          if (k % 32 == 0 && kernel().form != Form::kLevels) CheckGemv(kernel(), c, k / 32);
        }
        if (HasFatalFailure()) return;
      }
    }
  }
}

std::string ChosenKernel(Isa isa, const FormatSpec& weights, int64_t tokens, int input_bits = 8) {
  const IntPanels panels = PanelLayout(weights, 16, 128, {.bits = input_bits});
  return std::string(ChooseKernel(isa, panels, tokens).name);
}

TEST(KernelTable, FirstMatchWins) {
  const FormatSpec levels = {.bits = 4, .group = 32, .second_level = true};
  const auto codewords = [](int bits) {
    return FormatSpec{.bits = bits, .codebook = Codebook::kE8p};
  };
  EXPECT_EQ(ChosenKernel(Isa::kAmx, {.bits = 4}, 1), "avx512_gemv_u4s8");
  EXPECT_EQ(ChosenKernel(Isa::kAmx, {.bits = 3}, 13), "amx_gemm_u8s8");
  EXPECT_EQ(ChosenKernel(Isa::kAmx, {.bits = 4, .group = 32}, 100), "avx512_gemm_u8s8");  // K: 64
  EXPECT_EQ(ChosenKernel(Isa::kAvx512, {.bits = 8}, 64), "avx512_gemv_u8s8");
  EXPECT_EQ(ChosenKernel(Isa::kAvx512, {.bits = 5}, 512), "avx512_gemm_u8s8");
  EXPECT_EQ(ChosenKernel(Isa::kAvxVnni, {.bits = 4}, 64), "avx_vnni_gemv_u4s8");
  EXPECT_EQ(ChosenKernel(Isa::kAvxVnni, {.bits = 4}, 65), "avx_vnni_gemm_u8s8");
  EXPECT_EQ(ChosenKernel(Isa::kAvxVnni, levels, 64), "avx_vnni_gemv_u4s8_levels");
  EXPECT_EQ(ChosenKernel(Isa::kAvxVnni, levels, 65), "avx_vnni_gemm_u8s8");
  EXPECT_EQ(ChosenKernel(Isa::kAvx2, {.bits = 2}, 65), "avx2_gemm_u4s8");
  EXPECT_EQ(ChosenKernel(Isa::kAvx2, {.bits = 6, .group = 64}, 65), "avx2_gemm_u8s8");
  EXPECT_EQ(ChosenKernel(Isa::kAmx, levels, 12), "avx512_gemv_u4s8_levels");
  EXPECT_EQ(ChosenKernel(Isa::kAmx, levels, 13), "amx_gemm_u8s8");
  EXPECT_EQ(ChosenKernel(Isa::kAvx2, levels, 64), "avx2_gemv_u4s8_levels");
  EXPECT_EQ(ChosenKernel(Isa::kAvx2, levels, 65), "avx2_gemm_u4s8_levels");
  EXPECT_EQ(ChosenKernel(Isa::kRef, {.bits = 4, .group = 8}, 1), "scalar_gemm_u8s8");
  EXPECT_EQ(ChosenKernel(Isa::kAvx512, {.bits = 4}, 32, 16), "avx512_gemv_u4s8");
  EXPECT_EQ(ChosenKernel(Isa::kAvx512, {.bits = 4}, 33, 16), "avx512_gemm_u8s8");
  const FormatSpec floats = {.bits = 4, .group = 32, .codebook = Codebook::kE2m1};
  EXPECT_EQ(ChosenKernel(Isa::kAmx, floats, 12), "avx512_gemv_f4s8");
  EXPECT_EQ(ChosenKernel(Isa::kAvx512, floats, 65), "avx512_gemm_u8s8");
  EXPECT_EQ(ChosenKernel(Isa::kAvx2, floats, 64), "avx2_gemv_f4s8");
  EXPECT_EQ(ChosenKernel(Isa::kAvx2, floats, 65), "avx2_gemm_f4s8");
  EXPECT_EQ(ChosenKernel(Isa::kAmx, codewords(2), 12), "avx512_gemv_p2s8");
  EXPECT_EQ(ChosenKernel(Isa::kAvx512Vbmi, codewords(4), 1), "avx512_gemv_p4s8");
  EXPECT_EQ(ChosenKernel(Isa::kAvx512, codewords(3), 4), "avx2_gemv_p3s8");
  EXPECT_EQ(ChosenKernel(Isa::kAvx512, codewords(3), 5), "avx512_gemm_u8s8");
  EXPECT_EQ(ChosenKernel(Isa::kAmx, codewords(2), 13), "amx_gemm_u8s8");
  EXPECT_EQ(ChosenKernel(Isa::kAvxVnni, {.bits = 8}, 64), "avx_vnni_gemv_u8s8");
  EXPECT_EQ(ChosenKernel(Isa::kAvxVnni, floats, 64), "avx_vnni_gemv_f4s8");
  EXPECT_EQ(ChosenKernel(Isa::kAvxVnni, floats, 65), "avx_vnni_gemm_u8s8");
  EXPECT_EQ(ChosenKernel(Isa::kAvxVnni, codewords(3), 4), "avx2_gemv_p3s8");
  EXPECT_EQ(ChosenKernel(Isa::kAvxVnni, codewords(3), 5), "avx_vnni_gemm_u8s8");
  // Processors with AVX-512 may lack AVX-VNNI.
  for (const Isa isa : {Isa::kAvx512, Isa::kAvx512Vbmi, Isa::kAmx}) {
    for (const FormatSpec& format : {FormatSpec{.bits = 4}, FormatSpec{.bits = 8}, levels, floats,
                                     codewords(2), codewords(3), codewords(4)}) {
      for (const int64_t tokens : {1, 12, 13, 64, 65}) {
        EXPECT_THAT(ChosenKernel(isa, format, tokens),
                    testing::Not(testing::StartsWith("avx_vnni")));
      }
    }
  }
}

}  // namespace
}  // namespace nibble::cpu
