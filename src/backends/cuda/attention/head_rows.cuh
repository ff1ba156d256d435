// SPDX-License-Identifier: Apache-2.0
// One head of one token in the registers of a warp: RoPE and the rotation. Each lane holds
// kElements consecutive elements; lanes behind head_dim hold zeros. Every sum has the order of
// operations of transforms/hadamard.cc, so it has the same bits.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>

#include "backends/cuda/attention/rope_append.h"
#include "backends/cuda/ptx/ptx.h"

namespace nibble::cuda {

__device__ __forceinline__ int Lane() {
  return threadIdx.x % 32;
}

__device__ __forceinline__ float ToFloat(float x) {
  return x;
}
__device__ __forceinline__ float ToFloat(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ void FromFloat(float x, float& y) {
  y = x;
}
__device__ __forceinline__ void FromFloat(float x, __nv_bfloat16& y) {
  y = __float2bfloat16_rn(x);
}

// `kElements` neighbours with as few accesses as possible.
template <int kElements, typename Real>
struct alignas(std::min<size_t>(16, kElements * sizeof(Real))) Neighbours {
  Real x[kElements];
};

template <int kElements, typename Real>
__device__ __forceinline__ void Load(const Real* from, float (&x)[kElements]) {
  const auto words = *reinterpret_cast<const Neighbours<kElements, Real>*>(from);
#pragma unroll
  for (int i = 0; i < kElements; ++i) x[i] = ToFloat(words.x[i]);
}

template <int kElements, typename Real>
__device__ __forceinline__ void Store(const float (&x)[kElements], Real* to) {
  Neighbours<kElements, Real> words;
#pragma unroll
  for (int i = 0; i < kElements; ++i) FromFloat(x[i], words.x[i]);
  *reinterpret_cast<Neighbours<kElements, Real>*>(to) = words;
}

// The factor of a head's RMS norm, given each lane's own sum of squares. `lanes` share the head.
// Sums are in fp64 and thus the same in any order.
__device__ __forceinline__ float NormFactor(double squares, int lanes, int head_dim, float eps) {
  for (int distance = 1; distance < lanes; distance *= 2) {
    squares += __shfl_xor_sync(~0u, squares, distance);
  }
  return static_cast<float>(1 / sqrt(squares / head_dim + double{eps}));
}

template <int kElements>
__device__ __forceinline__ double SumOfSquares(const float (&x)[kElements]) {
  double squares = 0;
#pragma unroll
  for (const float value : x) squares += double{value} * value;
  return squares;
}

// x[i] times factor times weight[i].
template <int kElements>
__device__ __forceinline__ void Scale(float factor, const float* weight, float (&x)[kElements]) {
#pragma unroll
  for (int i = 0; i < kElements; ++i) x[i] = __fmul_rn(__fmul_rn(x[i], factor), weight[i]);
}

template <int kElements>
__device__ __forceinline__ void Subtract(const float* center, float (&x)[kElements]) {
#pragma unroll
  for (int i = 0; i < kElements; ++i) x[i] = __fsub_rn(x[i], center[i]);
}

// Cosine and sine of a lane's elements. Element i turns with i + angles (i < angles).
template <int kElements>
struct Angles {
  float cos[kElements], sin[kElements];

  __device__ void Load(const RopeAppendArguments& a, int64_t position) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const int element = Lane() * kElements + i;
      const int pair = element < a.angles ? element : element - a.angles;
      const bool turns = element < 2 * a.angles;
      cos[i] = turns ? a.cos[position * a.angles + pair] : 1.0f;
      sin[i] = turns ? a.sin[position * a.angles + pair] : 0.0f;
    }
  }
};

// x is a lane's share of `head`, which lies in shared memory.
template <int kElements, typename Real>
__device__ __forceinline__ void Turn(const Real* head, int angles, const Angles<kElements>& turn,
                                     float (&x)[kElements]) {
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    const int element = Lane() * kElements + i;
    if (element >= 2 * angles) continue;
    const bool lower = element < angles;
    const float partner = ToFloat(head[lower ? element + angles : element - angles]);
    const float a = __fmul_rn(x[i], turn.cos[i]), b = __fmul_rn(partner, turn.sin[i]);
    x[i] = lower ? __fsub_rn(a, b) : __fadd_rn(a, b);
  }
}

// Sums and differences at distances stride, 2 stride, .. below order * stride.
template <int kElements>
__device__ __forceinline__ void Sylvester(int order, int stride, float (&x)[kElements]) {
#pragma unroll
  for (int distance = 1; distance < 32 * kElements; distance *= 2) {
    if (distance < stride || distance >= order * stride) continue;
    if (distance < kElements) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        if ((i & distance) != 0) continue;
        const float a = x[i], b = x[i + distance];
        x[i] = a + b;
        x[i + distance] = a - b;
      }
    } else {
      const bool lower = (Lane() & (distance / kElements)) == 0;
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        const float other = __shfl_xor_sync(~0u, x[i], distance / kElements);
        x[i] = other + (lower ? x[i] : -x[i]);
      }
    }
  }
}

// y[f] = sum over i of +-x[i] along the factor's axis, in ascending order, through `row`.
template <int kElements>
__device__ __forceinline__ void Dense(const HeadRotation& rotation,
                                      const HeadRotation::Factor& factor, int head_dim, float* row,
                                      float (&x)[kElements]) {
  __syncwarp();
  Store(x, row + Lane() * kElements);
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    const int element = Lane() * kElements + i;
    if (element >= head_dim) continue;
    const int f = element / factor.stride % factor.order;
    const float* column = row + element - f * factor.stride;
    const uint64_t negative = rotation.negative[factor.signs + f];
    float sum = 0;
    for (int j = 0; j < factor.order; ++j) {
      const float value = column[j * factor.stride];
      sum += (negative >> j & 1) != 0 ? -value : value;
    }
    x[i] = sum;
  }
}

template <int kElements>
__device__ __forceinline__ void Rotate(const HeadRotation& rotation, int head_dim, float* row,
                                       float (&x)[kElements]) {
  if (rotation.count == 0) return;
  for (int i = 0; i < rotation.count; ++i) {
    const HeadRotation::Factor& factor = rotation.factors[i];
    if (factor.signs < 0) {
      Sylvester(factor.order, factor.stride, x);
    } else {
      Dense(rotation, factor, head_dim, row, x);
    }
  }
#pragma unroll
  for (float& v : x) v *= rotation.scale;
}

}  // namespace nibble::cuda
