// SPDX-License-Identifier: Apache-2.0
#include "quantize/round/weight_grid.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/half.h"
#include "formats/packed_linear.h"
#include "quantize/round/clip_error.h"
#include "quantize/round/weight_code.h"
#include "tensor/e2m1.h"

namespace nibble {
namespace {

constexpr float kSmallestScale = 1e-7f;  // a group of zeros; still a number above 0 as fp16

// Asymmetric: lo falls on the lowest code.
int ZeroOf(float lo, const WeightGrid& grid, const FormatSpec& format) {
  if (format.symmetric) return 0;
  return std::clamp(grid.low + static_cast<int>(std::nearbyintf(-lo / grid.scale)), grid.low,
                    grid.high);
}

// Makes the scale a multiple of `row_scale`.
void Snap(float lo, float row_scale, const FormatSpec& format, WeightGrid& grid) {
  int steps = std::max(1, static_cast<int>(std::nearbyintf(
                              std::min(grid.scale / row_scale, static_cast<float>(UINT8_MAX)))));
  do {
    grid.group_scale = steps--;
    grid.scale = row_scale * static_cast<float>(grid.group_scale);
    grid.zero = ZeroOf(lo, grid, format);
  } while (grid.group_scale > LargestGroupScale(grid.zero));
}

// Grid of the range [lo * p, hi * p]; lo <= 0 <= hi.
WeightGrid GridOf(float lo, float hi, float p, const FormatSpec& format, float row_scale) {
  WeightGrid grid;
  grid.low = format.e2m1() ? -kE2m1Top : -(1 << (format.bits - 1));
  grid.high = format.e2m1() ? kE2m1Top : -grid.low - 1;
  grid.e2m1 = format.e2m1();
  const float range = format.symmetric ? std::max(-lo, hi) / static_cast<float>(grid.high)
                                       : (hi - lo) / static_cast<float>(grid.high - grid.low);
  grid.scale = std::max(range * p, kSmallestScale);
  if (!format.row_scales()) grid.scale = F32FromF16(F16FromF32(grid.scale));
  grid.zero = ZeroOf(lo * p, grid, format);
  if (row_scale > 0) Snap(lo * p, row_scale, format, grid);
  return grid;
}

// The scale of a unit for which the values' codewords lose least if they are normally distributed.
WeightGrid CodewordGrid(std::span<const double> values, const FormatSpec& format) {
  const WeightCode code(format);
  double squares = 0;
  for (const double value : values) squares += value * value;
  const double deviation = std::sqrt(squares / static_cast<double>(values.size()));
  const auto scale = static_cast<float>(deviation / code.deviation()) * code.unit();
  return {.scale = std::max(scale, kSmallestScale), .zero = 0, .low = -128, .high = 127};
}

struct Range {
  float lo = 0, hi = 0;
};
Range RangeOf(std::span<const float> values) {
  Range range;
  for (const float value : values) {
    range = {std::min(range.lo, value), std::max(range.hi, value)};
  }
  return range;
}

}  // namespace

int WeightGrid::Code(double value) const {
  if (e2m1) return NearestE2m1(value / static_cast<double>(scale));
  const double code = std::nearbyint(value / static_cast<double>(scale)) + zero;
  return static_cast<int>(std::clamp(code, static_cast<double>(low), static_cast<double>(high)));
}

WeightGrid FindGrid(std::span<const double> values, const FormatSpec& format, float row_scale) {
  if (format.codewords()) return CodewordGrid(values, format);
  std::vector<float> narrow(values.begin(), values.end());
  const auto [lo, hi] = RangeOf(narrow);
  if (format.clip > 0) return GridOf(lo, hi, static_cast<float>(format.clip), format, row_scale);
  const auto error_of = format.squared_clips ? SquaredClipError : ClipError;
  WeightGrid best = GridOf(lo, hi, 1, format, row_scale);
  float best_error = std::numeric_limits<float>::infinity();
  for (int i = 0; i < 80; ++i) {
    const WeightGrid grid = GridOf(lo, hi, 1 - static_cast<float>(i) / 100, format, row_scale);
    const float error = error_of(narrow, grid, best_error);
    if (error < best_error) {
      best = grid;
      best_error = error;
    }
  }
  return best;
}

float FindRowScale(std::span<const double> row, const FormatSpec& format) {
  const std::vector<float> narrow(row.begin(), row.end());
  const float p = format.clip > 0 ? static_cast<float>(format.clip) : 1.0f;
  const auto group = static_cast<size_t>(format.group);
  float scale = 0;
  for (size_t k = 0; k < narrow.size(); k += group) {
    const auto [lo, hi] = RangeOf(std::span(narrow).subspan(k, group));
    const WeightGrid grid = GridOf(lo, hi, p, format, 0);
    scale = std::max(scale, grid.scale / static_cast<float>(LargestGroupScale(grid.zero)));
  }
  return scale;
}

}  // namespace nibble
