// SPDX-License-Identifier: Apache-2.0
// A codebook of 2^16 words for 8 normally distributed numbers, 2 bits each, that K-means finds
// (Lloyd, Least squares quantization in PCM, 1982). QuIP# (Tseng et al. 2024) compares its lattice
// with one.
//
// The distribution does not change with signs, and neither does this codebook: a word is one of 256
// magnitudes with any signs, and K-means runs over magnitudes.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace nibble {

class KmeansCode {
 public:
  static constexpr int64_t kWeights = 8;
  using Codeword = std::array<int8_t, kWeights>;  // in units
  static constexpr float kUnit = 1.0f / 32;

  // The code of the codeword nearest to x, numbers of deviation 1: the magnitudes in bits 8 to 15,
  // signs below. Entries that are not finite give any code. The first call trains, in a second.
  static uint32_t Encode(std::span<const float, kWeights> x);
  static Codeword Decode(uint32_t code);
};

}  // namespace nibble
