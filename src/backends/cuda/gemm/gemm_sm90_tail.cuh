// SPDX-License-Identifier: Apache-2.0
// The math warpgroups' side of a tail (LoadTail): when the sums of the other columns have become
// results, its products are added to these.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backends/cuda/gemm/gemm_sm90_rows.cuh"

namespace nibble::cuda::sm90 {

// The law for a warpgroup's sums of 128 tokens from `first` on.
template <typename S, typename Sum>
__device__ __forceinline__ void ApplyTileScales(const Shared<S>& s, const Sum (&sums)[64],
                                                int first, float (&y)[64]) {
  const int thread = threadIdx.x;
  const OutputParameters* p = s.rest.parameters.outputs + thread / 32 * 16 + thread % 32 / 4;
  const OutputParameters outputs[] = {p[0], p[8]};
  ApplyProductScales<false, false>(sums, s.rest.parameters, first, outputs, y);
}

template <Epilogue kEpilogue, typename S>
__device__ __forceinline__ void StoreResults(const GemmArguments& g, Shared<S>& s, int warpgroup,
                                             const float (&y)[64], int first_column) {
  Store<kEpilogue>(g, s, warpgroup, reinterpret_cast<const Result(&)[64]>(y), first_column);
}

// The fragments of 64 codes, from a's register kFirst on; returns their stage.
template <int kFirst, typename S>
__device__ __forceinline__ int NextCodes(Stages<S>& stages, Fragments& a) {
  const int stage = stages.Wait();
  const uint4* words = reinterpret_cast<const uint4*>(stages.Block(stage)) + threadIdx.x % 128;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint4 word = words[i * 128];
    a[kFirst + 4 * i] = word.x, a[kFirst + 4 * i + 1] = word.y;
    a[kFirst + 4 * i + 2] = word.z, a[kFirst + 4 * i + 3] = word.w;
  }
  return stage;
}

// y += (scale of the token * scale of the output) * sum, 128 codes after 128.
template <typename S>
__device__ __forceinline__ void AddCodes(const Tiles& tiles, Shared<S>& s, Stages<S>& stages,
                                         float (&y)[64]) {
  const float* const outputs =
      s.rest.tail_output_scales + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
  const float scales[] = {outputs[0], outputs[8]};
#pragma unroll 1
  for (int step = 0; step < tiles.tail_steps; step += 2) {
    int32_t sums[64];
    Fragments a;
    const int even = NextCodes<0>(stages, a), odd = NextCodes<8>(stages, a);
    MultiplyPiece<4, 0>(sums, a, SwizzledTile(s.x[even]));
    MultiplyEnd(sums, a, a);
    stages.Release(even), stages.Release(odd);
#pragma unroll
    for (int i = 0; i < 64; i += 4) {
      const int token = 2 * i + 2 * (threadIdx.x % 4);
      const float2 of = *reinterpret_cast<const float2*>(s.rest.tail_scales + token);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float scale = __fmul_rn(j % 2 == 0 ? of.x : of.y, scales[j / 2]);
        y[i + j] = __fadd_rn(y[i + j], __fmul_rn(scale, __int2float_rn(sums[i + j])));
      }
    }
  }
}

// Two fp16 numbers rounded to bf16 or, if `lacking`, the difference to that, rounded too.
__device__ __forceinline__ uint32_t Bf16OfF16(uint32_t pair, bool lacking) {
  const float2 v = __half22float2(reinterpret_cast<const __half2&>(pair));
  const uint32_t rounded = PackBf16(v.x, v.y);
  if (!lacking) return rounded;
  const float2 r = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(rounded));
  return PackBf16(v.x - r.x, v.y - r.y);
}

// The fragments of 32 numbers of 16 bits, in a's first eight registers; returns their stage.
template <typename S>
__device__ __forceinline__ int NextPairs(const GemmArguments& g, const Tiles& tiles,
                                         Stages<S>& stages, int step, Fragments& a) {
  const int stage = stages.Wait(), thread = threadIdx.x % 128, lane = thread % 32;
  const uint8_t* const block = stages.Block(stage) + 4 * (lane % 4);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int row = thread / 32 * 16 + lane / 4 + i % 2 * 8, unit = i / 2 ^ row / 2 % 4;
    a[i] = *reinterpret_cast<const uint32_t*>(block + 64 * row + 16 * unit);
  }
  if (g.tail.w_type == WeightType::kFloat16) {
    const bool lacking = step >= tiles.tail_chunks;
#pragma unroll
    for (int i = 0; i < 8; ++i) a[i] = Bf16OfF16(a[i], lacking);
  }
  return stage;
}

// Prompt products of operands with one scale a row (gemm_sm90_rows.cuh), and a tail of 16 bits.
template <Epilogue kEpilogue, typename S>
struct TailedRowProduct {
  using Shape = S;
  static constexpr int kHalfBytes = kHalfTokens * kInputs;

  static __device__ void Multiply(const GemmArguments& g, const Tiles& tiles, Shared<S>& s) {
    Stages<S> stages = {g, s};
    uint32_t parity = 0;  // of the parameters
    int tile = tiles.first();
    for (; tile < tiles.whole; tile += tiles.stride(), parity ^= 1) {
      MultiplyTile<2>(g, tiles, s, stages, parity);
    }
    for (; tile < tiles.Count(); tile += tiles.stride(), parity ^= 1) {
      MultiplyTile<1>(g, tiles, s, stages, parity);
    }
  }

 private:
  // A tile of kHalves times 128 tokens.
  template <int kHalves>
  static __device__ __forceinline__ void MultiplyTile(const GemmArguments& g, const Tiles& tiles,
                                                      Shared<S>& s, Stages<S>& stages,
                                                      uint32_t parity) {
    const auto half = [&](int stage, int i) { return SwizzledTile(s.x[stage] + i * kHalfBytes); };
    Fragments even, odd = {};
    int32_t sums[kHalves][64];
    SumTile(tiles, s, stages, even, odd, sums);
    BarrierWait(&s.rest.parameters_full, parity);
#pragma unroll
    for (int i = 0; i < kHalves; ++i) {
      ApplyTileScales(s, sums[i], i * kHalfTokens, reinterpret_cast<float(&)[64]>(sums[i]));
    }
    const auto add = [&](Fragments& a, Fragments& previous, int stage) {
      if constexpr (kHalves == 2) {
        MultiplyPairs(sums, a, previous, half(stage, 0), half(stage, 1));
      } else {
        MultiplyPairs(sums[0], a, previous, half(stage, 0));
      }
    };
    int step = 0, even_stage, odd_stage = 0;
    do {
      even_stage = NextPairs(g, tiles, stages, step, even);
      add(even, odd, even_stage);
      if (step > 0) stages.Release(odd_stage);
      odd_stage = NextPairs(g, tiles, stages, step + 1, odd);
      add(odd, even, odd_stage);
      stages.Release(even_stage);
      step += 2;
    } while (step < tiles.tail_steps);
#pragma unroll
    for (int i = 0; i < kHalves; ++i) MultiplyEnd(sums[i], even, odd);
    stages.Release(odd_stage);
#pragma unroll
    for (int i = 0; i < kHalves; ++i) {
      StoreResults<kEpilogue>(g, s, stages.warpgroup, reinterpret_cast<const float(&)[64]>(sums[i]),
                              i * kHalfTokens);
    }
    if (threadIdx.x % 32 == 0) BarrierArrive(&s.rest.parameters_empty);
  }
};

}  // namespace nibble::cuda::sm90
