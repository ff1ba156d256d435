// SPDX-License-Identifier: Apache-2.0
#include "quantize/walk/output_clips.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "tensor/random_testing.h"

namespace nibble {
namespace {

// |x (Q(w) - w)|^2 of a group's columns, by plain loops; w is clipped to p and compared with
// `exact`.
double GroupError(const Matrix<double>& x, std::span<const double> exact,
                  std::span<const double> clipped, int64_t first, FormatSpec format) {
  const WeightGrid grid = FindGrid(clipped, format);
  double sum = 0;
  for (int64_t t = 0; t < x.rows; ++t) {
    double y = 0;
    for (size_t k = 0; k < exact.size(); ++k) {
      const double rounded = grid.Value(grid.Code(clipped[k]));
      y += x.row(t)[static_cast<size_t>(first) + k] * (rounded - exact[k]);
    }
    sum += y * y;
  }
  return sum;
}

// Groups of 16 have their products summed up beforehand, rows of 64 are multiplied with 24 tokens.
TEST(OutputClips, AreTheBestOnesForEveryGroup) {
  Rng rng(1);
  const int64_t tail = 16;
  Matrix<double> w = RandomMatrix(12, 80, rng), x = RandomMatrix(24, 80, rng);
  for (int64_t n = 0; n < w.rows; ++n) w.row(n)[5] *= 6, w.row(n)[40] *= 4;  // worth a clip
  for (int64_t t = 0; t < x.rows; ++t) x.row(t)[5] *= 0.05, x.row(t)[79] *= 9;
  for (const bool symmetric : {false, true}) {
    for (const int64_t group : {16, 0}) {
      const FormatSpec format = {.bits = 4, .symmetric = symmetric, .group = group};
      Matrix<double> clipped = w;
      ClipByOutputs(x, format, tail, clipped);
      const int64_t width = group == 0 ? w.cols - tail : group;
      int cut = 0;
      for (int64_t n = 0; n < w.rows; ++n) {
        for (int64_t k = w.cols - tail; k < w.cols; ++k) {
          EXPECT_EQ(clipped.row(n)[static_cast<size_t>(k)], w.row(n)[static_cast<size_t>(k)]);
        }
        for (int64_t first = 0; first < w.cols - tail; first += width) {
          const auto at = static_cast<size_t>(first), size = static_cast<size_t>(width);
          const auto exact = w.row(n).subspan(at, size), found = clipped.row(n).subspan(at, size);
          cut += !std::ranges::equal(exact, found);
          double least = std::numeric_limits<double>::infinity();
          for (int i = 0; i < kTriedOutputClips; ++i) {
            std::vector<double> tried(exact.begin(), exact.end());
            double lo = std::ranges::min(exact) * (1 - i / 20.0);
            double hi = std::ranges::max(exact) * (1 - i / 20.0);
            if (symmetric) hi = std::max(-lo, hi), lo = -hi;
            for (double& value : tried) value = std::clamp(value, lo, hi);
            least = std::min(least, GroupError(x, exact, tried, first, format));
          }
          // A scale of 16 bits may be rounded to either side.
          EXPECT_NEAR(GroupError(x, exact, found, first, format) / least, 1, 0.02);
        }
      }
      EXPECT_GT(cut, 5);
    }
  }
}

}  // namespace
}  // namespace nibble
