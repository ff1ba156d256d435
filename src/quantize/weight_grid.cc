// SPDX-License-Identifier: Apache-2.0
#include "quantize/weight_grid.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/half.h"

namespace nibble {
namespace {

constexpr float kSmallestScale = 1e-7f;  // a group of zeros; still a number above 0 as fp16

// Grid of the range [lo * p, hi * p]; lo <= 0 <= hi.
WeightGrid GridOf(float lo, float hi, float p, const FormatSpec& format) {
  WeightGrid grid;
  grid.low = -(1 << (format.bits - 1));
  grid.high = -grid.low - 1;
  const float range = format.symmetric ? std::max(-lo, hi) / static_cast<float>(grid.high)
                                       : (hi - lo) / static_cast<float>(grid.high - grid.low);
  grid.scale = std::max(range * p, kSmallestScale);
  if (format.group != 0) grid.scale = F32FromF16(F16FromF32(grid.scale));
  // Asymmetric: lo * p falls on the lowest code.
  const float steps_below = format.symmetric ? 0 : std::nearbyintf(-lo * p / grid.scale);
  grid.zero = format.symmetric ? 0 : grid.low + static_cast<int>(steps_below);
  grid.zero = std::clamp(grid.zero, grid.low, grid.high);
  return grid;
}

// Sum of |error|^2.4, given up (any value >= limit) once it reaches limit.
float ClipError(std::span<const float> values, const WeightGrid& grid, float limit) {
  const float inverse = 1.0f / grid.scale, zero = static_cast<float>(grid.zero);
  const float low = static_cast<float>(grid.low), high = static_cast<float>(grid.high);
  float sum = 0;
  for (size_t begin = 0; begin < values.size() && sum < limit; begin += 64) {
    const size_t end = std::min(begin + 64, values.size());
    for (size_t i = begin; i < end; ++i) {
      const float code = std::min(std::max(std::nearbyintf(values[i] * inverse) + zero, low), high);
      sum += std::pow(std::fabs((code - zero) * grid.scale - values[i]), 2.4f);
    }
  }
  return sum;
}

}  // namespace

int WeightGrid::Code(double value) const {
  const double code = std::nearbyint(value / static_cast<double>(scale)) + zero;
  return static_cast<int>(std::clamp(code, static_cast<double>(low), static_cast<double>(high)));
}

WeightGrid FindGrid(std::span<const double> values, const FormatSpec& format) {
  std::vector<float> narrow(values.size());
  float lo = 0, hi = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    narrow[i] = static_cast<float>(values[i]);
    lo = std::min(lo, narrow[i]);
    hi = std::max(hi, narrow[i]);
  }
  if (format.clip > 0) return GridOf(lo, hi, static_cast<float>(format.clip), format);
  WeightGrid best = GridOf(lo, hi, 1, format);
  float best_error = std::numeric_limits<float>::infinity();
  for (int i = 0; i < 80; ++i) {
    const WeightGrid grid = GridOf(lo, hi, 1 - static_cast<float>(i) / 100, format);
    const float error = ClipError(narrow, grid, best_error);
    if (error < best_error) {
      best = grid;
      best_error = error;
    }
  }
  return best;
}

}  // namespace nibble
