// SPDX-License-Identifier: Apache-2.0
// The integer sum of a piece times a scale in two instructions.
#pragma once

#include <cstdint>

namespace nibble::cuda {

// A scale of at most 22 significant bits: fp16 times a power of two. Converting an integer takes an
// SM of compute capability 9 four times as long as adding one (16 lanes a clock instead of 64).
// 1.5 * 2^23 plus a sum within +- 2^22, which 128 products of bytes are, is a float whose bits are
// those of 1.5 * 2^23 plus the sum as an integer; and 1.5 * 2^23 times such a scale is exact, so
// that the multiply-add rounds the product of sum and scale once.
struct SumScale {
  float scale = 0, offset = 0;

  SumScale() = default;
  __device__ explicit SumScale(float s) : scale(s), offset(s * -0x1.8p23f) {}

  __device__ __forceinline__ float Times(int32_t sum) const {
    return fmaf(__int_as_float(0x4B400000 + sum), scale, offset);
  }
};

}  // namespace nibble::cuda
