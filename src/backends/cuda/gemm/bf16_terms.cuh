// SPDX-License-Identifier: Apache-2.0
// What both kernels of gemm_halves.cu are made of: values as sums of bf16 for mma.m16n8k16.
//
// A lane's eight inputs of 32 are contiguous. The instruction numbers them otherwise, which does
// not matter, since both operands have the same order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "backends/cuda/gemm/gemm.h"
#include "backends/cuda/ptx/ptx.h"

namespace nibble::cuda {

inline constexpr int kStepInputs = 32;

// Eight values in four registers: `high` is rounded to bf16, `low` is the rest, rounded too.
struct Eight {
  uint32_t high[4] = {}, low[4] = {};

  __device__ Eight() {}
  __device__ explicit Eight(const float (&v)[8]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      high[i] = PackBf16(v[2 * i], v[2 * i + 1]);
      const float2 rounded = __bfloat1622float2(reinterpret_cast<__nv_bfloat162&>(high[i]));
      low[i] = PackBf16(v[2 * i] - rounded.x, v[2 * i + 1] - rounded.y);
    }
  }
};

__device__ Eight LoadEight(const float* p) {
  const float4 a = *reinterpret_cast<const float4*>(p),
               b = *(reinterpret_cast<const float4*>(p) + 1);
  return Eight({a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w});
}
__device__ Eight LoadEight(const __nv_bfloat16* p) {
  const uint4 words = *reinterpret_cast<const uint4*>(p);
  Eight e;
  e.high[0] = words.x, e.high[1] = words.y, e.high[2] = words.z, e.high[3] = words.w;
  return e;
}
__device__ Eight LoadEight(const __half* p) {
  const uint4 words = *reinterpret_cast<const uint4*>(p);
  float v[8];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = __half22float2(reinterpret_cast<const __half2*>(&words)[i]);
    v[2 * i] = pair.x, v[2 * i + 1] = pair.y;
  }
  return Eight(v);
}

// Sums from `column` on += 16 kRows outputs x 32 inputs x 8 kColumns tokens: of outputs lane / 4 in
// a[i][0] and 8 further in a[i][1]. Products of one sum are apart, since each waits for the one
// before.
template <typename W, int kRows, int kAll, int kColumns>
__device__ void MultiplyStep(float (&sums)[kRows][kAll][4], int column, const Eight (&a)[kRows][2],
                             const Eight (&x)[kColumns]) {
  const auto multiply = [&](auto of_a, auto of_x, int first) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const auto &top = a[i][0].*of_a, &bottom = a[i][1].*of_a, &inputs = x[j].*of_x;
        MmaBf16(sums[i][column + j], {top[first], bottom[first], top[first + 1], bottom[first + 1]},
                inputs[first], inputs[first + 1]);
      }
    }
  };
#pragma unroll
  for (int first = 0; first < 4; first += 2) {
    multiply(&Eight::high, &Eight::low, first);
    if constexpr (!std::is_same_v<W, __nv_bfloat16>) multiply(&Eight::low, &Eight::high, first);
    multiply(&Eight::high, &Eight::high, first);
  }
}

__device__ void StoreSum(float sum, bool accumulate, float* y) {
  if (accumulate) {
    atomicAdd(y, sum);  // without waiting to read y
  } else {
    *y = sum;
  }
}
__device__ void StoreSum(float sum, bool, __nv_bfloat16* y) {
  *y = __float2bfloat16_rn(sum);
}

// Stores the sums of a warp's 16 kRows outputs x 8 kColumns tokens, of which the lane's first are
// `output` and `token`.
template <typename Out, int kRows, int kColumns>
__device__ void StoreSums(const GemmArguments& g, const ProductTerms& product, int64_t output,
                          int64_t token, const float (&sums)[kRows][kColumns][4]) {
  const float* const bias = product.linear.bias;
  auto* const y = static_cast<Out*>(product.y);
  // The place in y of sum j for outputs i, or -1 outside of y.
  const auto place = [&](int i, int j) {
    const int64_t t = token + j / 4 * 8 + j % 2, n = output + 16 * i + j % 4 / 2 * 8;
    return t < g.tokens && n < product.rows ? t * product.y_stride + n : -1;
  };
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    float addends[4 * kColumns] = {};  // all read before anything is written
#pragma unroll
    for (int j = 0; j < 4 * kColumns; ++j) {
      const int64_t at = place(i, j);
      if (g.addend != nullptr && at >= 0) addends[j] = g.addend[at];
      if (bias != nullptr && at >= 0) addends[j] += bias[output + 16 * i + j % 4 / 2 * 8];
    }
#pragma unroll
    for (int j = 0; j < 4 * kColumns; ++j) {
      if (const int64_t at = place(i, j); at >= 0) {
        StoreSum(sums[i][j / 4][j % 4] + addends[j], g.accumulate, y + at);
      }
    }
  }
}

}  // namespace nibble::cuda
