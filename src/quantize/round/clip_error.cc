// SPDX-License-Identifier: Apache-2.0
// Nearly all time of rounding on a GPU is spent here.
#include "quantize/round/clip_error.h"

#include <algorithm>
#include <bit>

#include "base/target_clones.h"

namespace nibble {
namespace {

// Rounds half to even, for |x| < 2^22; plain operations, so that loops become vector code.
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

// The order of additions is that of 64 sums side by side, whatever the machine's vectors.
template <typename Power>
[[gnu::always_inline]] inline float SumOf(std::span<const float> values, const WeightGrid& grid,
                                          float limit, const Power& power) {
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
      sums[i] += power(step * scale - x[i]);
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

NIBBLE_TARGET_CLONES float ClipError(std::span<const float> values, const WeightGrid& grid,
                                     float limit) {
  return SumOf(values, grid, limit, Power24);
}

NIBBLE_TARGET_CLONES float SquaredClipError(std::span<const float> values, const WeightGrid& grid,
                                            float limit) {
  return SumOf(values, grid, limit, [](float x) { return x * x; });
}

}  // namespace nibble
