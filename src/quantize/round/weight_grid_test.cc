// SPDX-License-Identifier: Apache-2.0
#include "quantize/round/weight_grid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/half.h"
#include "formats/lattice_codes.h"
#include "formats/packed_weights.h"
#include "quantize/round/gptq_testing.h"

namespace nibble {
namespace {

TEST(WeightGrid, SymmetricAndAsymmetricGridsCoverTheirRange) {
  const std::vector<double> w = {-3.0, -1.0, 0.5, 2.0, 6.0};
  const WeightGrid symmetric = FindGrid(w, {.bits = 4, .clip = 1});
  EXPECT_FLOAT_EQ(symmetric.scale, 6.0f / 7);
  EXPECT_EQ(symmetric.zero, 0);
  EXPECT_EQ(symmetric.Code(6.0), 7);
  EXPECT_EQ(symmetric.Code(-100.0), -8);
  const WeightGrid asymmetric = FindGrid(w, {.bits = 4, .symmetric = false, .clip = 1});
  EXPECT_FLOAT_EQ(asymmetric.scale, 9.0f / 15);
  EXPECT_EQ(asymmetric.Code(-3.0), -8);
  EXPECT_EQ(asymmetric.Code(6.0), 7);
  EXPECT_EQ(asymmetric.Value(asymmetric.Code(0.0)), 0.0);
}

TEST(WeightGrid, SearchFindsTheBestOfAllClips) {
  const Matrix<double> w = RandomMatrix(1, 256, 3);
  for (const auto& [symmetric, squared] :
       {std::pair(true, false), {false, false}, {true, true}, {false, true}}) {
    const double power = squared ? 2 : 2.4;
    const auto error = [&](const WeightGrid& grid) {
      double sum = 0;
      for (double v : w.data) sum += std::pow(std::fabs(grid.Value(grid.Code(v)) - v), power);
      return sum;
    };
    const FormatSpec searched = {
        .bits = 3, .symmetric = symmetric, .clip = 0, .squared_clips = squared};
    const double found = error(FindGrid(w.data, searched));
    double best = INFINITY;
    for (int i = 0; i < 80; ++i) {
      best = std::min(
          best,
          error(FindGrid(w.data, {.bits = 3, .symmetric = symmetric, .clip = 1 - i / 100.0})));
    }
    // The search sums 256 terms in fp32.
    EXPECT_NEAR(found, best, 256 * 6e-8 * best);
  }
}

TEST(WeightGrid, GroupScalesAreFp16AndZeroGroupsStayFinite) {
  const std::vector<double> w = {0.1234567, -0.7654321}, zeros(32);
  const WeightGrid grid = FindGrid(w, {.bits = 4, .group = 32, .clip = 1});
  EXPECT_EQ(grid.scale, F32FromF16(F16FromF32(grid.scale)));
  for (const bool symmetric : {true, false}) {
    const WeightGrid empty =
        FindGrid(zeros, {.bits = 4, .symmetric = symmetric, .group = 32, .clip = 0});
    EXPECT_GT(empty.scale, 0.0f);
    EXPECT_EQ(empty.Value(empty.Code(0.0)), 0.0);
  }
}

// The largest group of a row gets the scale it would have by itself, each other one the nearest
// multiple; no code leaves 8 bits, whatever comes after the row scale was found.
TEST(WeightGrid, ScalesOfASecondLevelAreMultiples) {
  const Matrix<double> w = RandomMatrix(20, 256, 4);
  for (const bool symmetric : {true, false}) {
    const FormatSpec format = {
        .bits = 4, .symmetric = symmetric, .group = 64, .clip = 1, .second_level = true};
    FormatSpec plain = {.bits = 4, .symmetric = symmetric, .clip = 1};
    for (int64_t n = 0; n < w.rows; ++n) {
      const float row_scale = FindRowScale(w.row(n), format);
      float nearest = 1;
      for (size_t k = 0; k < 256; k += 64) {
        const auto values = w.row(n).subspan(k, 64);
        const WeightGrid grid = FindGrid(values, format, row_scale), own = FindGrid(values, plain);
        EXPECT_EQ(grid.scale, row_scale * static_cast<float>(grid.group_scale));
        EXPECT_LE(grid.group_scale, LargestGroupScale(grid.zero));
        EXPECT_NEAR(grid.scale, own.scale, (symmetric ? 0.5001 : 1.001) * row_scale);
        nearest = std::min(nearest, std::fabs(grid.scale / own.scale - 1));
        std::vector<double> larger(values.begin(), values.end());
        for (double& value : larger) value *= 3;
        const WeightGrid late = FindGrid(larger, format, row_scale);
        EXPECT_LE(late.group_scale, LargestGroupScale(late.zero));
      }
      EXPECT_LT(nearest, 0.04) << n;
    }
  }
  const std::vector<double> zeros(64);
  const FormatSpec format = {.bits = 4, .group = 32, .clip = 0, .second_level = true};
  EXPECT_GT(FindRowScale(zeros, format), 0);
  EXPECT_EQ(FindGrid(std::span(zeros).first(32), format, FindRowScale(zeros, format)).Code(0), 0);
}

// A larger scale loses more of normal numbers, and so does a smaller one; zeros keep one.
TEST(WeightGrid, LatticesHaveTheScaleThatLosesLeast) {
  Matrix<double> w = RandomMatrix(1, 32768, 5);
  for (double& value : w.data) value *= 0.03;
  for (int bits = 2; bits <= 4; ++bits) {
    const FormatSpec format = {.bits = bits, .codebook = Codebook::kE8p};
    const LatticeCode lattice(bits);
    const auto error = [&](double scale) {
      double sum = 0;
      for (size_t k = 0; k < w.data.size(); k += LatticeCode::kWeights) {
        std::array<float, LatticeCode::kWeights> x;
        for (size_t i = 0; i < x.size(); ++i) {
          x[i] = static_cast<float>(w.data[k + i] * lattice.unit() / scale);
        }
        const LatticeCode::Codeword codeword = lattice.Decode(lattice.Encode(x));
        for (size_t i = 0; i < x.size(); ++i)
          sum += std::pow(w.data[k + i] - scale * codeword[i], 2);
      }
      return sum;
    };
    const double scale = FindGrid(w.data, format).scale;
    EXPECT_LT(error(scale), error(0.9 * scale)) << bits;
    EXPECT_LT(error(scale), error(1.1 * scale)) << bits;
    EXPECT_GT(FindGrid(std::vector<double>(8), format).scale, 0);
  }
}

}  // namespace
}  // namespace nibble
