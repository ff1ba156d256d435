// SPDX-License-Identifier: Apache-2.0
// The fp32 half of the arithmetic law (gemm.h), output by output: from an exact sum to y.
#pragma once

#include <type_traits>

#include "backends/cuda/gemm/gemm.h"

namespace nibble::cuda {

// An output's terms of the law besides D; undefined where the arguments have no such array.
struct OutputTerms {
  float scale, bias, zero, sum;

  __device__ void Fetch(const GemmArguments& g, int n) {
    scale = g.w_scales == nullptr ? 1.0f : g.w_scales[n];
    if (g.bias != nullptr) bias = g.bias[n];
    if (g.w_zeros != nullptr) zero = g.w_zeros[n];
    if (g.x_zero_offsets != nullptr && g.x_group == 0) sum = g.w_sums[n];
  }
};

// The right side of the law for d = D. `tokens` has arrays scales, zero offsets and sums; zero
// offsets and sums are read only if the arguments have them.
template <typename Tokens>
__device__ __forceinline__ float LawValue(const GemmArguments& g, const OutputTerms& output,
                                          const Tokens& tokens, int t, int32_t d) {
  const int32_t pi = g.w_zeros == nullptr ? 0 : static_cast<int32_t>(output.zero);
  if (g.w_zeros != nullptr) d -= pi * tokens.sums[t];
  float v = __int2float_rn(d);
  if (g.x_zero_offsets != nullptr) {
    const int32_t p = static_cast<int32_t>(output.sum) - static_cast<int32_t>(g.cols) * pi;
    v = __fadd_rn(v, __fmul_rn(tokens.zero_offsets[t], __int2float_rn(p)));
  }
  v = __fmul_rn(__fmul_rn(tokens.scales[t], output.scale), v);
  return g.bias == nullptr ? v : __fadd_rn(v, output.bias);
}

// LawValue for a sum over groups, in which the scales of groups are already: those read here are
// then 1.
template <typename Tokens>
__device__ __forceinline__ float LawValue(const GemmArguments& g, const OutputTerms& output,
                                          const Tokens& tokens, int t, float sum) {
  float v = sum * output.scale;
  if (g.x_zero_offsets != nullptr && g.x_group == 0)
    v = fmaf(tokens.zero_offsets[t], output.sum, v);
  v *= tokens.scales[t];
  return g.bias == nullptr ? v : v + output.bias;
}

// LawValue for a token's two planes, `upper` and `lower`, whose sums of codes lie at q and q_lower.
template <typename Tokens, typename Sum>
__device__ __forceinline__ float LawOfPlanes(const GemmArguments& g, const OutputTerms& output,
                                             const Tokens& tokens, int t, int q, int q_lower,
                                             Sum upper, Sum lower) {
  if constexpr (std::is_same_v<Sum, int32_t>) {
    if (g.w_zeros != nullptr) {
      const auto pi = static_cast<int32_t>(output.zero);
      upper -= pi * tokens.sums[q], lower -= pi * tokens.sums[q_lower];
    }
  }
  float v = fmaf(256.0f, static_cast<float>(upper), static_cast<float>(lower));
  v = __fmul_rn(__fmul_rn(tokens.scales[t], output.scale), v);
  return g.bias == nullptr ? v : __fadd_rn(v, output.bias);
}

template <typename Y>
__device__ __forceinline__ void StoreValue(const GemmArguments& g, Y* y, float v) {
  if constexpr (sizeof(Y) == sizeof(float)) {
    *y = g.accumulate ? __fadd_rn(v, *y) : v;
  } else {
    *y = __float2bfloat16_rn(v);
  }
}

}  // namespace nibble::cuda
