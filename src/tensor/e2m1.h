// SPDX-License-Identifier: Apache-2.0
// Floats of 4 bits: a sign, two bits of exponent and one of mantissa (E2M1 of the OCP Microscaling
// formats, 2023). Twice such a number is an integer, and these integers are what is called code
// (formats/packed_weights.h); a scale is half of what it would be beside the numbers themselves.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace nibble {

inline constexpr int kE2m1Top = 12;
// The codes of all patterns of four bits, the highest of which is the sign. -0 is 0.
inline constexpr std::array<int8_t, 16> kE2m1Codes = {0, 1,  2,  3,  4,  6,  8,  12,
                                                      0, -1, -2, -3, -4, -6, -8, -12};

// The nearest code; of two that are equally near, the one with the even mantissa.
inline int NearestE2m1(double value) {
  const double size = std::min(std::fabs(value), double{kE2m1Top});
  const double step = size <= 4 ? 1 : size <= 8 ? 2 : 4;
  return static_cast<int>(std::copysign(step * std::nearbyint(size / step), value));
}

// The four bits of a code.
inline int E2m1Bits(int code) {
  const auto at =
      std::find(kE2m1Codes.begin(), kE2m1Codes.begin() + 8, std::abs(code)) - kE2m1Codes.begin();
  return static_cast<int>(at) | (code < 0 ? 8 : 0);
}

}  // namespace nibble
