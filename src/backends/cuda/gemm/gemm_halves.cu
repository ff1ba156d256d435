// SPDX-License-Identifier: Apache-2.0
// Warps compute 16 or 32 outputs of some tokens each, weights as operand A and inputs as operand B,
// both straight from global memory or L1: with few tokens rows are read once, and products of
// outliers have too few columns for more than that to pay.
//
// A lane's eight inputs of 32 are contiguous. The instruction numbers them otherwise, which does
// not matter, since both operands have the same order.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "backends/cuda/gemm/gemm_halves.h"
#include "backends/cuda/ptx/ptx.h"
#include "backends/cuda/runtime/launch.h"

namespace nibble::cuda {
namespace {

constexpr int kFewWarps = 4, kManyWarps = 16, kInputs = 32;  // of a block; per step

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

// d += 16 outputs x 16 inputs x 8 tokens, half 0 or 1 of 32 inputs.
__device__ void MultiplyStep(float (&d)[4], const uint32_t (&top)[4], const uint32_t (&bottom)[4],
                             const uint32_t (&x)[4], int half) {
  const int first = 2 * half;
  MmaBf16(d, {top[first], bottom[first], top[first + 1], bottom[first + 1]}, x[first],
          x[first + 1]);
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

// Adds up the sums of all warps in those of the first warp.
template <int kWarps, int kCount>
__device__ void AddWarps(float (&sums)[kCount][4]) {
  __shared__ float parts[kWarps - 1][kCount * 4][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int i = 0; i < 4 * kCount; ++i) {
    if (warp > 0) parts[warp - 1][i][lane] = sums[i / 4][i % 4];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 4 * kCount; ++i) {
    for (int w = 0; warp == 0 && w < kWarps - 1; ++w) sums[i / 4][i % 4] += parts[w][i][lane];
  }
}

// grid [outputs, tokens, products]. A warp: 16 kRows outputs x 8 kColumns tokens. For few tokens
// the warps of a block have the same outputs and tokens and divide the inputs, so that more warps
// are at work.
template <typename W, int kRows, int kColumns, typename Out, int kWarps>
__global__ void __launch_bounds__(32 * kWarps)
    gemm_halves(const __grid_constant__ GemmArguments g) {
  AllowNextGrid();
  WaitForPreviousGrid();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  constexpr bool kShare = kRows == 1;
  const ProductTerms product = g.product(static_cast<int>(blockIdx.z));
  const float* const bias = product.linear.bias;
  const int64_t tile = kShare ? blockIdx.x : int64_t{blockIdx.x} * kWarps + warp;
  const int64_t output = tile * 16 * kRows + lane / 4;
  const int64_t token = int64_t{blockIdx.y} * 8 * kColumns;
  if (output - lane / 4 >= product.rows) return;
  const auto* const w = static_cast<const W*>(static_cast<const void*>(product.linear.w));
  float sums[kRows][kColumns][4] = {};
#pragma unroll 2
  for (int64_t step = kShare ? warp : 0; step * kInputs < g.cols; step += kShare ? kWarps : 1) {
    const int64_t k = step * kInputs + lane % 4 * 8;
    const auto load = [&](const auto* rows, int64_t row, int64_t end) {
      return row < end && k < g.cols ? LoadEight(rows + row * g.cols + k) : Eight();
    };
    Eight a[kRows][2];
#pragma unroll
    for (int i = 0; i < 2 * kRows; ++i) a[i / 2][i % 2] = load(w, output + 8 * i, product.rows);
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const Eight x = load(g.values, token + 8 * j + lane / 4, g.tokens);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          MultiplyStep(sums[i][j], a[i][0].high, a[i][1].high, x.low, half);
          if constexpr (!std::is_same_v<W, __nv_bfloat16>) {
            MultiplyStep(sums[i][j], a[i][0].low, a[i][1].low, x.high, half);
          }
          MultiplyStep(sums[i][j], a[i][0].high, a[i][1].high, x.high, half);
        }
      }
    }
  }
  if constexpr (kShare) {
    AddWarps<kWarps>(sums[0]);
    if (warp > 0) return;
  }
  auto* const y = static_cast<Out*>(product.y);
  // The place in y of a thread's sum j for its outputs i, or -1 outside of y.
  const auto place = [&](int i, int j) {
    const int64_t t = token + j / 4 * 8 + lane % 4 * 2 + j % 2;
    const int64_t n = output + 16 * i + j % 4 / 2 * 8;
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

template <typename W, int kRows, int kColumns, typename Out, int kWarps = kFewWarps>
void Launch(const GemmArguments& g, cudaStream_t stream) {
  const auto parts = [](int64_t size, int64_t part) {
    return static_cast<unsigned>((size + part - 1) / part);
  };
  int64_t rows = 0;  // of the largest product
  for (int i = 0; i <= g.joins; ++i) rows = std::max(rows, g.product(i).rows);
  LaunchDependent(gemm_halves<W, kRows, kColumns, Out, kWarps>,
                  {.grid = {parts(rows, 16 * kRows * (kRows == 1 ? 1 : kWarps)),
                            parts(g.tokens, 8 * kColumns), static_cast<unsigned>(g.joins + 1)},
                   .block = 32 * kWarps},
                  stream, g);
}

template <typename W>
void LaunchFor(const GemmArguments& g, cudaStream_t stream) {
  WithReal(g.y_type, [&]<typename Out>(Out) {
    const bool deep = g.cols >= 2 * kManyWarps * kInputs;
    g.tokens <= 8 && deep ? Launch<W, 1, 1, Out, kManyWarps>(g, stream)
    : g.tokens <= 8       ? Launch<W, 1, 1, Out>(g, stream)
    : g.tokens <= 32      ? Launch<W, 1, 4, Out>(g, stream)
                          : Launch<W, 2, 4, Out>(g, stream);
  });
}

}  // namespace

void GemmHalves(const GemmArguments& g, cudaStream_t stream) {
  CheckArguments(g);
  NIBBLE_CUDA_CHECK(g.w_kind == WeightKind::kHalves && g.cols % 8 == 0);
  switch (g.w_type) {
    case WeightType::kFloat32:
      return LaunchFor<float>(g, stream);
    case WeightType::kBfloat16:
      return LaunchFor<__nv_bfloat16>(g, stream);
    case WeightType::kFloat16:
      return LaunchFor<__half>(g, stream);
  }
}

}  // namespace nibble::cuda
