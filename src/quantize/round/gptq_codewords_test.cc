// SPDX-License-Identifier: Apache-2.0
// Weights that become codewords of a lattice.
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "formats/lattice_codes.h"
#include "quantize/round/gptq_testing.h"
#include "quantize/round/weight_code.h"

namespace nibble {
namespace {

// Block LDLQ (Tseng et al. 2024, section 4.1) from what it means: eight weights are rounded once
// they and all behind them have made up for the errors in front as well as they can, which is a
// least-squares problem for every block.
// With one weight a codeword the blocks are columns, and what is left is LDLQ.
class BlockLdlq : public testing::TestWithParam<Codebook> {};
TEST_P(BlockLdlq, RoundsWhatMakesUpForTheErrorsInFront) {
  constexpr int64_t kWidth = 64;
  const Matrix<double> w = RandomMatrix(5, kWidth, 23);
  const Matrix<float> x = CorrelatedInputs(kWidth, 700, 24);
  const FormatSpec format = {.bits = GetParam() == Codebook::kE8 ? 1 : 2, .codebook = GetParam()};
  const WeightCode code(format);
  const int64_t block = code.weights(), blocks = kWidth / block;
  const Rounded rounded = RoundGptq(w, x, format, {.damp = 0.01});
  const Matrix<float> decoded = Decode(rounded.weights);  // of some codebooks in fp16
  Matrix<double> h = HessianOf(x);
  double mean = 0;
  for (int64_t i = 0; i < kWidth; ++i) mean += At(h, i, i) / kWidth;
  for (int64_t i = 0; i < kWidth; ++i) At(h, i, i) += 0.01 * mean;
  // The change is E_f H_fr (H_rr)^-1, E = W - Q of the columns f in front, r being all others.
  for (int64_t n = 0; n < w.rows; ++n) {
    const double scale = FindGrid(w.row(n), format).scale;
    std::vector<double> units;
    for (const float value : decoded.row(n)) units.push_back(std::nearbyint(value / scale));
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t first = b * block, rest = kWidth - first;
      // Solve H_rr z = H_rf E_f^T by elimination.
      Matrix<double> a(rest, rest + 1);
      for (int64_t i = 0; i < rest; ++i) {
        for (int64_t j = 0; j < rest; ++j) At(a, i, j) = At(h, first + i, first + j);
        for (int64_t j = 0; j < first; ++j) {
          const auto k = static_cast<size_t>(j);
          At(a, i, rest) += At(h, first + i, j) * (w.row(n)[k] - scale * units[k]);
        }
      }
      Eliminate(a);
      std::vector<double> target;
      for (int64_t i = 0; i < block; ++i) {
        target.push_back(w.row(n)[static_cast<size_t>(first + i)] + At(a, i, rest));
      }
      const WeightCode::Codeword codeword = code.Decode(code.Encode(target, scale));
      for (int64_t i = 0; i < block; ++i) {
        EXPECT_EQ(units[static_cast<size_t>(first + i)], codeword[static_cast<size_t>(i)])
            << n << ", " << b << ", " << i;
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Codebooks, BlockLdlq,
                         testing::Values(Codebook::kE8p, Codebook::kHalfInteger, Codebook::kKmeans,
                                         Codebook::kE8));

// Each codeword is the best one near where its weights would be best beside all others.
TEST(Lattice, SweepsEndWhereNoCodewordMoves) {
  constexpr int64_t kWidth = 136, kBlock = LatticeCode::kWeights;  // more than one block of columns
  const Matrix<double> w = RandomMatrix(6, kWidth, 25);
  const Matrix<float> x = CorrelatedInputs(kWidth, 1024, 26);
  Matrix<double> h = HessianOf(x);
  for (const int bits : {2, 3, 4}) {
    SCOPED_TRACE(bits);
    const FormatSpec format = {.bits = bits, .codebook = Codebook::kE8p};
    const auto round = [&](int sweeps) {
      return RoundGptq(w, x, format, {.damp = 1e-6, .sweeps = sweeps});
    };
    const double first = round(0).relative_error, once = round(1).relative_error;
    const Rounded rounded = round(30);
    EXPECT_LT(once, first);
    EXPECT_LE(rounded.relative_error, once);
    const Matrix<float> decoded = Decode(rounded.weights);
    const LatticeCode lattice(bits);
    for (int64_t n = 0; n < w.rows; ++n) {
      const double scale = ToF32(rounded.weights.scales).data[static_cast<size_t>(n)];
      std::vector<double> error;
      for (size_t k = 0; k < kWidth; ++k) error.push_back(decoded.row(n)[k] - w.row(n)[k]);
      for (int64_t b = 0; b < kWidth; b += kBlock) {
        Matrix<double> a(kBlock, kBlock + 1);  // H_bb and the gradients of the block
        for (int64_t i = 0; i < kBlock; ++i) {
          for (int64_t j = 0; j < kBlock; ++j) At(a, i, j) = At(h, b + i, b + j);
          for (int64_t j = 0; j < kWidth; ++j) {
            At(a, i, kBlock) += At(h, b + i, j) * error[static_cast<size_t>(j)];
          }
        }
        Matrix<double> solved = a;
        Eliminate(solved);
        std::array<float, kBlock> target;
        for (int64_t i = 0; i < kBlock; ++i) {
          const double best = decoded.row(n)[static_cast<size_t>(b + i)] - At(solved, i, kBlock);
          target[static_cast<size_t>(i)] = static_cast<float>(best / scale * lattice.unit());
        }
        const LatticeCode::Codeword codeword = lattice.Decode(lattice.Encode(target));
        double change = 0, size = 0;
        std::array<double, kBlock> moved;
        for (size_t i = 0; i < moved.size(); ++i) {
          const auto now = std::nearbyint(decoded.row(n)[static_cast<size_t>(b) + i] / scale);
          moved[i] = scale * (codeword[i] - now);  // exactly 0 where nothing moves
        }
        for (int64_t i = 0; i < kBlock; ++i) {
          const double move = moved[static_cast<size_t>(i)];
          change += move * At(a, i, kBlock);
          for (int64_t j = 0; j < kBlock; ++j) {
            const double share = move * moved[static_cast<size_t>(j)] * At(a, i, j) / 2;
            change += share;
            size += std::fabs(share);
          }
        }
        EXPECT_GE(change, -1e-4 * size) << n << ", " << b;
      }
    }
  }
}

}  // namespace
}  // namespace nibble
