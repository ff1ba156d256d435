// SPDX-License-Identifier: Apache-2.0
// Prompt products in groups (gemm_sm90_tile.cuh). Sums of a piece of 32, 64 or 128 inputs leave the
// tensor cores as integers and are added in fp32, times the piece's scales. Tiles of 128 tokens
// take 128 registers a thread, tiles of 256 would need 256. While one math warpgroup adds, the
// tensor cores work for the other.
//
// Adding takes as many issue slots as the tensor cores take clocks, so two ways to convert a sum
// share the work: half are converted by the unit that is slow but needs one slot, the others as
// SumScale does, with two.
#pragma once

#include <cuda_fp16.h>

#include "backends/cuda/gemm/gemm_sm90_split.cuh"
#include "backends/cuda/gemm/gemm_sm90_tail.cuh"
#include "backends/cuda/gemm/sum_scale.cuh"

namespace nibble::cuda::sm90 {

// The scales for a thread's two outputs in a piece.
struct PieceScales {
  SumScale weights[2];
  float centred[2] = {0, 0};            // sums of weights, where tokens have zero offsets
  const float* tokens = nullptr;        // scales of the tile's tokens
  const float* zero_offsets = nullptr;  // or null
};

// y += sums * scales of tokens without groups.
__device__ __forceinline__ void AddPiece(const int32_t (&sums)[64], const SumScale (&weights)[2],
                                         float (&y)[64]) {
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    const SumScale& w = weights[i / 2 % 2];
    y[i] = i % 2 == 0 ? fmaf(__int2float_rn(sums[i]), w.scale, y[i]) : y[i] + w.Times(sums[i]);
  }
}

// AddPiece for tokens with groups. kZeroOffsets is a constant: behind a branch, loads of the next
// tokens' scales would wait for the sums of the tokens before.
template <bool kZeroOffsets>
__device__ __forceinline__ void AddPiece(const int32_t (&sums)[64], const PieceScales& piece,
                                         float (&y)[64]) {
#pragma unroll
  for (int i = 0; i < 64; i += 4) {
    const int token = 2 * i + 2 * (threadIdx.x % 4);
    float terms[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) terms[j] = piece.weights[j / 2].Times(sums[i + j]);
    if constexpr (kZeroOffsets) {
      const float2 zero_offset = *reinterpret_cast<const float2*>(piece.zero_offsets + token);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        terms[j] = fmaf(j % 2 == 0 ? zero_offset.x : zero_offset.y, piece.centred[j / 2], terms[j]);
      }
    }
    const float2 a = *reinterpret_cast<const float2*>(piece.tokens + token);
#pragma unroll
    for (int j = 0; j < 4; ++j) y[i + j] = fmaf(terms[j], j % 2 == 0 ? a.x : a.y, y[i + j]);
  }
}

// Sums of a thread's weights over a piece, as the codes of two outputs are.
template <int kSteps>
__device__ __forceinline__ void SumWeights(const Fragments& a, int piece, PieceScales& scales) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 2 * kSteps; ++i) {
      sum = __dp4a(static_cast<int>(a[4 * kSteps * piece + 2 * i + h]), 0x01010101, sum);
    }
    sum += __shfl_xor_sync(0xFFFFFFFF, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFF, sum, 2);
    scales.centred[h] = scales.weights[h].Times(sum);
  }
}

// A math warpgroup at work on a tile; a piece has kSteps times 32 inputs. kPlain: weights have
// scales and need only be moved, tokens have no zero offsets. This keeps the code of a step short
// and in one place; without that a sixth of the stalls was for instructions.
template <typename S, int kSteps, bool kPlain>
struct GroupMath {
  static constexpr int kPieces = 4 / kSteps;
  struct Step {
    Fragments a;
    uint32_t scales[kPieces];  // two of fp16
    int stage;
  };

  const GemmArguments& g;
  Shared<S>& s;
  Stages<S> stages{g, s};
  float y[64];

  // The next 128 inputs.
  __device__ __forceinline__ void Next(Step& step) {
    step.stage = kPlain ? stages.template NextAs<Widening::kShift>(step.a) : stages.Next(step.a);
    const uint32_t* words = ScaleWords(stages.Block(step.stage) + CodeBytes(S::kKind), kPieces);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      constexpr uint32_t kOnes = 0x3C003C00;
      step.scales[i] = kPlain || g.w_block.pieces > 0 ? words[i] : kOnes;
    }
  }

  __device__ __forceinline__ PieceScales ScalesOf(const Step& step, int k, int piece) const {
    const int times = kPlain ? BlockScales{}.factor(S::kKind) : g.w_block.factor(S::kKind);
    const float factor = 1.0f / static_cast<float>(times);
    const float2 pair = __half22float2(reinterpret_cast<const __half2&>(step.scales[piece]));
    PieceScales scales = {.weights = {SumScale(pair.x * factor), SumScale(pair.y * factor)}};
    if constexpr (S::kTokenScales) {
      scales.tokens = s.scales[step.stage] + piece * S::kTokens;
      // Behind the last input weights repeat and zero offsets have no meaning.
      if (!kPlain && g.x_zero_offsets != nullptr && k * kInputs + piece * 32 * kSteps < g.cols) {
        scales.zero_offsets = scales.tokens + S::kPieces * S::kTokens;
        SumWeights<kSteps>(step.a, piece, scales);
      }
    }
    return scales;
  }

  // The k-th 128 inputs from piece kPiece on; while the products of the last piece run, `next`
  // fetches what follows.
  template <int kPiece = 0, typename Following>
  __device__ __forceinline__ void Multiply(Step& step, int k, int32_t (&sums)[64],
                                           const Following& next) {
    MultiplyPiece<kSteps, kPiece * 4 * kSteps>(
        sums, step.a, SwizzledTile(s.x[step.stage]) + kPiece * kSteps * 2);  // in 16 bytes
    const PieceScales scales = ScalesOf(step, k, kPiece);
    if constexpr (kPiece + 1 == kPieces) next();
    MultiplyEnd(sums, step.a, step.a);
    if constexpr (!S::kTokenScales) {
      AddPiece(sums, scales.weights, y);
    } else if (kPlain || scales.zero_offsets == nullptr) {
      AddPiece<false>(sums, scales, y);
    } else {
      AddPiece<true>(sums, scales, y);
    }
    if constexpr (kPiece + 1 < kPieces) {
      Multiply<kPiece + 1>(step, k, sums, next);
    } else {
      stages.Release(step.stage);
    }
  }
};

template <Epilogue kEpilogue, typename S, int kSteps>
struct GroupProduct {
  using Shape = S;

  static __device__ void Multiply(const GemmArguments& g, const Tiles& tiles, Shared<S>& s) {
    const bool plain = g.w_block.pieces > 0 && !g.w_block.zeros && !g.w_block.floats &&
                       (!S::kTokenScales || g.x_zero_offsets == nullptr);
    constexpr bool kBytes = S::kKind == WeightKind::kByteGroups && !S::kTokenScales;
    if constexpr (S::kTail != Tail::kNone || kBytes) {  // these are always plain
      MultiplyTiles<true>(g, tiles, s);
    } else {
      plain ? MultiplyTiles<true>(g, tiles, s) : MultiplyTiles<false>(g, tiles, s);
    }
  }

 private:
  template <bool kPlain>
  static __device__ void MultiplyTiles(const GemmArguments& g, const Tiles& tiles, Shared<S>& s) {
    using Math = GroupMath<S, kSteps, kPlain>;
    Math math = {g, s};
    uint32_t parity = 0;  // of the parameters
    for (int tile = tiles.first(); tile < tiles.Count(); tile += tiles.stride(), parity ^= 1) {
#pragma unroll
      for (float& v : math.y) v = 0;
      typename Math::Step even, odd;
      math.Next(even);
      int k = tiles.first_step();
      const int end = k + tiles.steps;
      do {
        int32_t sums[64];
        math.Multiply(even, k, sums, [&] { math.Next(odd); });
        k += 2;
        math.Multiply(odd, k - 1, sums, [&] {
          if (k < end) math.Next(even);
        });
      } while (k < end);
      if (tiles.splits > 1) AddSplits<kEpilogue>(tiles, s, math.y);
      BarrierWait(&s.rest.parameters_full, parity);
      if constexpr (S::kTail == Tail::kNone) {
        Store<kEpilogue>(g, s, math.stages.warpgroup, math.y, 0);
      } else {
        ApplyTileScales(s, math.y, 0, math.y);
        AddCodes(tiles, s, math.stages, math.y);
        StoreResults<kEpilogue>(g, s, math.stages.warpgroup, math.y, 0);
      }
      if (threadIdx.x % 32 == 0) BarrierArrive(&s.rest.parameters_empty);
    }
  }
};

}  // namespace nibble::cuda::sm90
