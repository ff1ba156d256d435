// SPDX-License-Identifier: Apache-2.0
// The integer sum of a piece times a scale in two instructions.
#pragma once

#include <cstdint>

namespace nibble::cuda {

// A scale of at most 22 significant bits: fp16 times a power of two. An SM of compute capability 9
// converts 16 integers a clock and adds 64, so instead of being converted a sum is added to the
// bits of the float 0x1.8p23.
//
// The result is the float 0x1.8p23 + sum for sums within +- 2^22, which 128 products of bytes are.
// 0x1.8p23 times the scale is exact, so the multiply-add rounds the product of sum and scale once.
struct SumScale {
  float scale = 0, offset = 0;

  SumScale() = default;
  __device__ explicit SumScale(float s) : scale(s), offset(s * -0x1.8p23f) {}

  __device__ __forceinline__ float Times(int32_t sum) const {
    return fmaf(__int_as_float(0x4B400000 + sum), scale, offset);
  }
};

}  // namespace nibble::cuda
