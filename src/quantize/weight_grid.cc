// SPDX-License-Identifier: Apache-2.0
#include "quantize/weight_grid.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/half.h"
#include "formats/packed_linear.h"

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
  grid.low = -(1 << (format.bits - 1));
  grid.high = -grid.low - 1;
  const float range = format.symmetric ? std::max(-lo, hi) / static_cast<float>(grid.high)
                                       : (hi - lo) / static_cast<float>(grid.high - grid.low);
  grid.scale = std::max(range * p, kSmallestScale);
  if (!format.row_scales()) grid.scale = F32FromF16(F16FromF32(grid.scale));
  grid.zero = ZeroOf(lo * p, grid, format);
  if (row_scale > 0) Snap(lo * p, row_scale, format, grid);
  return grid;
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

// Half to even, for |x| < 2^22; plain operations, so that loops become vector code.
float RoundToEven(float x) {
  constexpr float kUlpIsOne = 0x1.8p23f;
  return (x + kUlpIsOne) - kUlpIsOne;
}

// |x|^2.4 to 1e-6: with a = x^2 that is a^2 z^4 for z = a^(-1/5), which Newton's steps
// z <- z (6 - a z^5) / 5 reach from a guess: a -0.2 times as large exponent, 4 % off.
float Power24(float x) {
  const float a = std::max(x * x, 1e-30f);
  const float guess = 1.278e9f - 0.2f * static_cast<float>(std::bit_cast<int32_t>(a));
  float z = std::bit_cast<float>(static_cast<int32_t>(guess));
  for (int i = 0; i < 3; ++i) z *= 1.2f - 0.2f * a * ((z * z) * (z * z) * z);
  return (a * a) * ((z * z) * (z * z));
}

// Sum of |error|^2.4, given up (any value >= limit) once it reaches limit. The order of additions
// is that of 64 sums side by side, whatever the machine's vectors. Nearly all time of rounding on a
// GPU is spent here.
__attribute__((target_clones("avx512f", "avx2", "default"))) float ClipError(
    std::span<const float> values, const WeightGrid& grid, float limit) {
  constexpr size_t kLanes = 64;
  const float inverse = 1.0f / grid.scale, scale = grid.scale;
  const float low = static_cast<float>(grid.low - grid.zero);
  const float high = static_cast<float>(grid.high - grid.zero);
  float sums[kLanes] = {}, total = 0;
  while (!values.empty() && total < limit) {
    const float* const x = values.data();
    const size_t count = std::min(kLanes, values.size());
    for (size_t i = 0; i < count; ++i) {
      const float step = std::min(std::max(RoundToEven(x[i] * inverse), low), high);
      sums[i] += Power24(step * scale - x[i]);
    }
    values = values.subspan(count);
    total = 0;
    for (size_t i = 0; i < kLanes / 4; ++i) {
      total += (sums[i] + sums[i + kLanes / 4]) + (sums[i + kLanes / 2] + sums[i + 3 * kLanes / 4]);
    }
  }
  return total;
}

}  // namespace

int WeightGrid::Code(double value) const {
  const double code = std::nearbyint(value / static_cast<double>(scale)) + zero;
  return static_cast<int>(std::clamp(code, static_cast<double>(low), static_cast<double>(high)));
}

WeightGrid FindGrid(std::span<const double> values, const FormatSpec& format, float row_scale) {
  std::vector<float> narrow(values.begin(), values.end());
  const auto [lo, hi] = RangeOf(narrow);
  if (format.clip > 0) return GridOf(lo, hi, static_cast<float>(format.clip), format, row_scale);
  WeightGrid best = GridOf(lo, hi, 1, format, row_scale);
  float best_error = std::numeric_limits<float>::infinity();
  for (int i = 0; i < 80; ++i) {
    const WeightGrid grid = GridOf(lo, hi, 1 - static_cast<float>(i) / 100, format, row_scale);
    const float error = ClipError(narrow, grid, best_error);
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
