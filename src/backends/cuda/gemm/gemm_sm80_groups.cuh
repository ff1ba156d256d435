// SPDX-License-Identifier: Apache-2.0
// Products in groups on compute capability 8: the sums of a piece of 32, 64 or 128 inputs leave the
// tensor cores as integers and are added in fp32, times the scales of the piece (gemm.h). Scales
// and zeros of weights lie behind their codes in a stage, those of tokens in L1.
#pragma once

#include <cuda_fp16.h>

#include "backends/cuda/gemm/gemm_sm80_tile.cuh"
#include "backends/cuda/gemm/sum_scale.cuh"

namespace nibble::cuda::sm80 {

template <typename S>
class GroupMath {
 public:
  __device__ GroupMath(const GemmArguments& arguments, const Place& place)
      : g_(arguments),
        place_(place),
        tile_(place.output_warp * S::kOutputTiles),
        factor_(kNibbles ? 1.0f : 1.0f / static_cast<float>(g_.w_block.factor(kKind))) {}

  // y += the products of inputs 128 k and on, which are in `stage`.
  __device__ __forceinline__ void AddStage(const Stage<S>& stage, int k, Sums<S>& y) const {
    if constexpr (kNibbles) {
      AddNibbles(stage, k, y);
    } else {
      AddBytes(stage, k, y);
    }
  }

 private:
  static constexpr bool kNibbles = S::kCodes == Codes::kS4S4;  // on both sides
  static constexpr WeightKind kKind =
      S::kWeightBits == 4 ? WeightKind::kNibbleGroups : WeightKind::kByteGroups;

  __device__ __forceinline__ void AddNibbles(const Stage<S>& stage, int k, Sums<S>& y) const {
    const Operands<S> operands(stage, place_);
    IntegerSums<S> sums = {};
    int code_sums[S::kOutputTiles][2] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      MultiplyNibbles(operands, half, sums);
      const int piece = half * 64 / g_.piece;
      if ((half + 1) * 64 % g_.piece != 0) continue;
      if (k * kInputs + piece * g_.piece < g_.cols) AddPiece(stage, k, piece, sums, code_sums, y);
    }
  }

  __device__ __forceinline__ void AddBytes(const Stage<S>& stage, int k, Sums<S>& y) const {
    const Operands<S> operands(stage, place_);
    IntegerSums<S> sums = {};
    int code_sums[S::kOutputTiles][2] = {};
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const int piece = step * 32 / g_.piece;
      uint32_t a[S::kOutputTiles][4];
#pragma unroll
      for (int i = 0; i < S::kOutputTiles; ++i) {
        Load(stage, operands, step, piece, i, a[i]);
        if (g_.x_zero_offsets == nullptr || g_.x_group == 0) continue;
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          code_sums[i][r % 2] = __dp4a(static_cast<int>(a[i][r]), 0x01010101, code_sums[i][r % 2]);
        }
      }
      MultiplyStep(operands, step, a, sums);
      if ((step + 1) * 32 % g_.piece != 0) continue;
      // Behind the last input sums are 0, and zero offsets have no meaning.
      if (k * kInputs + piece * g_.piece < g_.cols) AddPiece(stage, k, piece, sums, code_sums, y);
    }
  }

  // The address `at` bytes behind the codes of the block with the warp's outputs. Pair(i) is the
  // index of the lane's two outputs in output tile i.
  __device__ const uint8_t* Behind(const Stage<S>& stage, int at) const {
    return stage.w + tile_ / 4 * S::kStageBlock + S::kBlockBytes + at;
  }
  __device__ int Pair(int i) const {
    return (tile_ % 4 + i) * 8 + threadIdx.x % 32 / 4;
  }

  __device__ float2 Scales(const Stage<S>& stage, int piece, int i) const {
    const int pieces = g_.w_block.pieces;
    if (pieces == 0) return {factor_, factor_};
    const int at = Pair(i) * 4 * pieces + 4 * piece;
    const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(Behind(stage, at)));
    return {pair.x * factor_, pair.y * factor_};
  }

  // Operand A of 32 inputs.
  __device__ __forceinline__ void Load(const Stage<S>& stage, const Operands<S>& operands, int step,
                                       int piece, int i, uint32_t (&a)[4]) const {
    const uint4 word = operands.WordOf(step, i);
    WithWidening<kKind>(g_.w_block, [&]<Widening widening>() {
      LevelSteps steps;
      if constexpr (widening == Widening::kSteps) {
        const int pieces = g_.w_block.pieces;
        const int at = 128 * pieces + Pair(i) * max(4, 2 * pieces) + 2 * piece;
        steps = LevelSteps::OfStarts(*reinterpret_cast<const uint16_t*>(Behind(stage, at)));
      }
      Fragment<S::kWeightBits, widening>(word, steps, step, a);
    });
  }

  // y += sums times the scales of a piece; sums and code_sums are 0 afterwards.
  __device__ __forceinline__ void AddPiece(const Stage<S>& stage, int k, int piece,
                                           IntegerSums<S>& sums,
                                           int (&code_sums)[S::kOutputTiles][2], Sums<S>& y) const {
    const bool token_scales = g_.x_group != 0,
               zero_offsets = token_scales && g_.x_zero_offsets != nullptr;
    const int64_t group = token_scales ? (k * kInputs + piece * g_.piece) / g_.x_group : 0;
    const int64_t column = place_.token + place_.token_warp * S::kWarpTokens;
    const int64_t at = group * g_.x_pitch + column + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < S::kOutputTiles; ++i) {
      const float2 scales = Scales(stage, piece, i);
      const SumScale weights[] = {SumScale(scales.x), SumScale(scales.y)};
      float centred[2] = {};
#pragma unroll
      for (int h = 0; zero_offsets && h < 2; ++h) {
        int& sum = code_sums[i][h];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        centred[h] = weights[h].Times(sum);
        sum = 0;
      }
#pragma unroll
      for (int j = 0; j < S::kTokenTiles; ++j) {
        float2 scale = {1, 1}, zero_offset = {};
        if (token_scales) scale = *reinterpret_cast<const float2*>(g_.x_scales + at + 8 * j);
        if (zero_offsets)
          zero_offset = *reinterpret_cast<const float2*>(g_.x_zero_offsets + at + 8 * j);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float term = weights[e / 2].Times(sums[i][j][e]);
          if (zero_offsets)
            term = fmaf(e % 2 == 0 ? zero_offset.x : zero_offset.y, centred[e / 2], term);
          y[i][j][e] = fmaf(term, e % 2 == 0 ? scale.x : scale.y, y[i][j][e]);
          sums[i][j][e] = 0;
        }
      }
    }
  }

  const GemmArguments& g_;
  const Place& place_;
  const int tile_;  // the warp's first 16 outputs of the block's
  const float factor_;
};

}  // namespace nibble::cuda::sm80
