// SPDX-License-Identifier: Apache-2.0
// From the integer sums of a warpgroup, 64 outputs x 128 or 64 tokens in registers as wgmma.h
// leaves them, to y in global memory: the arithmetic law, then through shared memory to rows of 128
// (bfloat16) or 256 (float) contiguous bytes.
#pragma once

#include <cstddef>
#include <type_traits>

#include "backends/cuda/acts/gate.cuh"
#include "backends/cuda/gemm/gemm.h"
#include "backends/cuda/ptx/ptx_sm90.h"

namespace nibble::cuda {

inline constexpr int kTileTokens = kTileRows, kTileOutputs = 128;  // of a block

// True if y can be written 16 bytes at a time.
template <typename Out>
__host__ __device__ inline bool HasVectors(const ProductTerms& p) {
  const int64_t alignment =
      reinterpret_cast<uintptr_t>(p.y) | p.y_stride * sizeof(Out) | p.rows * sizeof(Out);
  return alignment % 16 == 0;
}

// An output's terms of the law. 4-bit weights are multiplied as 16 times their code; dividing
// `scale` and multiplying the others by 16, which is exact, makes up for it.
struct alignas(16) OutputParameters {
  float scale, offset, bias;
  int32_t zero;
};

// Everything about a tile except its sums, in shared memory.
struct TileParameters {
  alignas(16) float scales[kTileTokens], zero_offsets[kTileTokens];
  int32_t sums[kTileTokens];  // of columns of the product
  OutputParameters outputs[kTileOutputs];
  int token, output;  // the first of the tile
  // y of the tile's product: rows of `rows` outputs, `stride` from one to the next; vectors: they
  // can be written 16 bytes at a time.
  void* y;
  int stride, rows;
  bool vectors;
  int end;            // tokens from here on are not stored
  int split, splits;  // the block stores every splits-th chunk of tokens (gemm_sm90_split.cuh)
};

template <int kFactor>
__device__ OutputParameters LoadOutput(const GemmArguments& g, const ProductTerms& product,
                                       const float* scales, int n) {
  const LinearTerms& linear = product.linear;
  OutputParameters p = {};
  if (n >= product.rows) return p;
  const float zero = linear.zeros != nullptr ? linear.zeros[n] : 0.0f;
  const float sum = linear.sums != nullptr ? linear.sums[n] : 0.0f;
  p.scale = scales != nullptr ? scales[n] * (1.0f / kFactor) : 1.0f;
  p.offset = kFactor * (sum - static_cast<float>(g.cols) * zero);  // integers below 2^24
  p.zero = kFactor * static_cast<int32_t>(zero);
  p.bias = linear.bias != nullptr ? linear.bias[n] : 0.0f;
  return p;
}

// One warp calls this. Scales that the sums contain already are 1 here.
template <typename Out, int kFactor>
__device__ void LoadParameters(const GemmArguments& g, const ProductTerms& product, int token,
                               int output, TileParameters& p) {
  const LinearTerms& linear = product.linear;
  const int lane = threadIdx.x % 32, first = g.planes() ? token / 2 : token;
  for (int i = lane; i < kTileTokens; i += 32) {
    const int t = first + i;
    const bool exists = t < g.tokens && g.x_group == 0;
    p.scales[i] = exists ? g.x_scales[t] : 1.0f;
    p.zero_offsets[i] = exists && g.x_zero_offsets != nullptr ? g.x_zero_offsets[t] : 0.0f;
    const int column = token + i, last = g.planes() ? PlaneRow(g.tokens - 1) + 8 : g.tokens - 1;
    p.sums[i] = g.w_zeros != nullptr && column <= last ? g.x_sums[column] : 0;
  }
  for (int i = lane; i < kTileOutputs; i += 32) {
    const bool up = g.up_w != nullptr && i >= 64;
    p.outputs[i] = LoadOutput<kFactor>(g, product, up ? linear.up_scales : linear.scales,
                                       output + i - (up ? 64 : 0));
  }
  if (lane == 0) {
    p.token = first, p.output = output, p.end = static_cast<int>(g.tokens);
    p.y = product.y, p.stride = static_cast<int>(product.y_stride);
    p.rows = static_cast<int>(product.rows), p.vectors = HasVectors<Out>(product);
  }
}

__device__ __forceinline__ float Centered(int32_t sum, int32_t zero, int32_t q) {
  return __int2float_rn(sum - zero * q);
}
__device__ __forceinline__ float Centered(float sum, int32_t, int32_t) {
  return sum;
}

// The law for the sums of kCount / 2 tokens, from `first` on, and a thread's two outputs. kPlain:
// there are no zeros, offsets or bias; adding 0 would change no bits, only take time. With groups
// the sums are floats and have no zeros. kPlanes: twice as many sums (prepare_acts.h).
template <bool kPlain, bool kPlanes, typename Sum, int kCount>
__device__ __forceinline__ void ApplyProductScales(const Sum* sums, const TileParameters& tile,
                                                   int first, const OutputParameters (&outputs)[2],
                                                   float (&y)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += 2) {  // two tokens
    const int t = first + i / 4 * 8 + 2 * (threadIdx.x % 4);
    const OutputParameters& p = outputs[i / 2 % 2];
    const float2 scales = reinterpret_cast<const float2&>(tile.scales[t]);
    const float scale[] = {__fmul_rn(scales.x, p.scale), __fmul_rn(scales.y, p.scale)};
    if constexpr (kPlain && !kPlanes) {
      y[i] = __fmul_rn(scale[0], Centered(sums[i], 0, 0));
      y[i + 1] = __fmul_rn(scale[1], Centered(sums[i + 1], 0, 0));
      continue;
    }
    float value[2];
    if constexpr (kPlanes) {
      const Sum* const upper = sums + i + i / 4 * 4;
      const int column = t + first + i / 4 * 8;
      const int2 q = reinterpret_cast<const int2&>(tile.sums[column]);
      const int2 q_lower = reinterpret_cast<const int2&>(tile.sums[column + 8]);
      value[0] =
          fmaf(256.0f, Centered(upper[0], p.zero, q.x), Centered(upper[4], p.zero, q_lower.x));
      value[1] =
          fmaf(256.0f, Centered(upper[1], p.zero, q.y), Centered(upper[5], p.zero, q_lower.y));
    } else {
      const float2 zero_offsets = reinterpret_cast<const float2&>(tile.zero_offsets[t]);
      const int2 q = reinterpret_cast<const int2&>(tile.sums[t]);
      value[0] = __fadd_rn(Centered(sums[i], p.zero, q.x), __fmul_rn(zero_offsets.x, p.offset));
      value[1] = __fadd_rn(Centered(sums[i + 1], p.zero, q.y), __fmul_rn(zero_offsets.y, p.offset));
    }
    y[i] = __fadd_rn(__fmul_rn(scale[0], value[0]), p.bias);
    y[i + 1] = __fadd_rn(__fmul_rn(scale[1], value[1]), p.bias);
  }
}

// Sums to which the law has been applied.
struct Result {
  float value;
};
template <bool kPlain, bool kPlanes, int kCount>
__device__ __forceinline__ void ApplyProductScales(const Result* sums, const TileParameters&, int,
                                                   const OutputParameters (&)[2],
                                                   float (&y)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) y[i] = sums[i].value;
}

// Some tokens x 64 outputs on their way to global memory. Rows are skewed (float) or their 16-byte
// units permuted (bfloat16) so that writes by column and reads by row are free of bank conflicts.
template <typename Out>
struct Staging {
  static constexpr bool kFloat = std::is_same_v<Out, float>;
  static constexpr int kTokens = kFloat ? 32 : 64;
  static constexpr int kRowBytes = kFloat ? 272 : 128;
  static constexpr int kVector = 16 / sizeof(Out);  // outputs of a unit
  static constexpr int kUnits = 64 / kVector;       // of a row

  alignas(128) std::byte rows[kTokens * kRowBytes];

  __device__ uint4& Unit(int token, int unit) {
    const int place = kFloat ? unit : unit ^ (token % 8);
    return *reinterpret_cast<uint4*>(rows + token * kRowBytes + place * 16);
  }

  // Writes the values of a warp, its share of kTokens tokens; `v` as in wgmma.h.
  __device__ __forceinline__ void Write(int warp, int lane, const float (&v)[kTokens / 2]) {
    if constexpr (kFloat) {
#pragma unroll
      for (int i = 0; i < kTokens / 2; ++i) {
        const int token = i / 4 * 8 + 2 * (lane % 4) + i % 2;
        const int output = 16 * warp + lane / 4 + 8 * (i / 2 % 2);
        *reinterpret_cast<float*>(rows + token * kRowBytes + output * 4) = v[i];
      }
    } else {
#pragma unroll
      for (int i = 0; i < kTokens / 2; i += 8) {  // 16 tokens
        uint32_t pairs[4];
#pragma unroll
        for (int p = 0; p < 4; ++p) pairs[p] = PackBf16(v[i + 2 * p], v[i + 2 * p + 1]);
        StoreMatricesTransposed(&Unit(2 * i + lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2),
                                pairs);
      }
    }
  }
};

// A thread's sums in a chunk of the epilogue.
template <bool kPlanes, typename Out>
inline constexpr int kChunkSums = Staging<Out>::kTokens / 2 * (kPlanes ? 2 : 1);

// Stores a unit, or its first `count` values, to y.
template <typename Out>
__device__ __forceinline__ void StoreUnit(const uint4& unit, Out* y, bool accumulate) {
  if constexpr (std::is_same_v<Out, float>) {
    if (accumulate) return AddToGlobal(y, unit);
  }
  StoreGlobal(y, unit);
}
template <typename Out>
__device__ __forceinline__ void StoreValues(const uint4& unit, Out* y, int count, bool accumulate) {
  const Out* values = reinterpret_cast<const Out*>(&unit);
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    if constexpr (std::is_same_v<Out, float>) {
      y[i] = accumulate ? __fadd_rn(y[i], values[i]) : values[i];
    } else {
      y[i] = values[i];
    }
  }
}

// Stores a warpgroup's sums of half a tile, columns from `first_column` and outputs from
// `first_output` on, to y. `barrier` is one of the warpgroup's threads.
template <bool kPlain, bool kPlanes, typename Sum, int kSums, typename Out>
__device__ __forceinline__ void StoreHalf(const GemmArguments& g, const Sum (&sums)[kSums],
                                          const TileParameters& tile, int first_column,
                                          int first_output, int barrier, Staging<Out>& staging) {
  using S = Staging<Out>;
  constexpr int kColumns = kPlanes ? 2 : 1;  // of a token
  const int first_token = first_column / kColumns;
  const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
  const OutputParameters* p = tile.outputs + first_output + 16 * warp + lane / 4;
  const OutputParameters outputs[] = {p[0], p[8]};
  const int row = thread / S::kUnits, unit = thread % S::kUnits;
  const int token = tile.token + first_token + row;
  const int n = tile.output + first_output + unit * S::kVector;
  const int count = min(int{S::kVector}, tile.rows - n), stride = tile.stride;
  Out* y = static_cast<Out*>(tile.y) + int64_t{token} * stride + n;
  const bool vectors = kPlain || tile.vectors;
#pragma unroll
  for (int chunk = 0; chunk < 2 * kSums / kColumns; chunk += S::kTokens) {
    if (tile.token + first_token + chunk >= tile.end) break;
    if (chunk / S::kTokens % tile.splits != tile.split) {
      y += S::kTokens * stride;
      continue;
    }
    float values[S::kTokens / 2];
    ApplyProductScales<kPlain, kPlanes>(sums + chunk / 2 * kColumns, tile, first_token + chunk,
                                        outputs, values);
    NamedSync(barrier, 128);  // the chunk before has been read
    staging.Write(warp, lane, values);
    NamedSync(barrier, 128);
    constexpr int kStep = 128 / S::kUnits;
    if (vectors) {
#pragma unroll
      for (int i = 0; i < S::kTokens; i += kStep, y += kStep * stride) {
        if (token + chunk + i < tile.end && count > 0) {
          StoreUnit(staging.Unit(i + row, unit), y, g.accumulate);
        }
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < S::kTokens; i += kStep, y += kStep * stride) {
        if (token + chunk + i < tile.end) {
          StoreValues(staging.Unit(i + row, unit), y, count, g.accumulate);
        }
      }
    }
  }
}

// StoreHalf for gate and up: warpgroup 0 has the sums of 64 outputs of gate, 1 those of up. Each
// stores half the tokens of both.
template <bool kPlanes, typename Sum, int kSums>
__device__ __forceinline__ void StoreGatedHalf(const GemmArguments& g, const Sum (&sums)[kSums],
                                               const TileParameters& tile, int first_column,
                                               int warpgroup,
                                               Staging<__nv_bfloat16> (&staging)[2]) {
  using S = Staging<__nv_bfloat16>;
  constexpr int kStep = 256 / S::kUnits, kBarrier = 3, kColumns = kPlanes ? 2 : 1;
  const int first_token = first_column / kColumns;
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const OutputParameters* p = tile.outputs + 64 * warpgroup + 16 * warp + lane / 4;
  const OutputParameters outputs[] = {p[0], p[8]};
  const int row = threadIdx.x / S::kUnits, unit = threadIdx.x % S::kUnits;
  const int token = tile.token + first_token + row, n = tile.output + unit * S::kVector;
  const int stride = tile.stride;
  auto* y = static_cast<__nv_bfloat16*>(tile.y) + int64_t{token} * stride + n;
#pragma unroll
  for (int chunk = 0; chunk < 2 * kSums / kColumns; chunk += S::kTokens) {
    if (tile.token + first_token + chunk >= tile.end) break;
    if (chunk / S::kTokens % tile.splits != tile.split) {
      y += S::kTokens * stride;
      continue;
    }
    float values[S::kTokens / 2];
    ApplyProductScales<true, kPlanes>(sums + chunk / 2 * kColumns, tile, first_token + chunk,
                                      outputs, values);
    NamedSync(kBarrier, 256);  // the chunk before has been read
    staging[warpgroup].Write(warp, lane, values);
    NamedSync(kBarrier, 256);
#pragma unroll
    for (int i = 0; i < S::kTokens; i += kStep, y += kStep * stride) {
      if (token + chunk + i >= tile.end || n >= tile.rows) continue;
      StoreGlobal(y, SigmoidGateTimes(g.gating, staging[0].Unit(i + row, unit),
                                      staging[1].Unit(i + row, unit)));
    }
  }
}

}  // namespace nibble::cuda
