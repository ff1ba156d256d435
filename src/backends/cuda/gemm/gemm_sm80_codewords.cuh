// SPDX-License-Identifier: Apache-2.0
// Products of gemm_sm80_tile.cuh with codewords of lattices (lattice_codewords.cuh).
#pragma once

#include "backends/cuda/gemm/gemm_sm80_tile.cuh"
#include "backends/cuda/gemm/lattice_codewords.cuh"

namespace nibble::cuda::sm80 {

inline constexpr int kTableColumns = 16;  // 32 would take 64 of 99 KB

// The codes of a warp's 16 outputs x 128 inputs in a stage.
template <typename S>
__device__ CodewordCodes<S::kCodewordBits> CodesOf(const Stage<S>& stage, int output_tile) {
  const int lane = threadIdx.x % 32;
  const SharedAddress block(stage.w + output_tile / 4 * S::kStageBlock);
  const uint32_t first = block + output_tile % 4 * 512 + lane * 16;
  CodewordCodes<S::kCodewordBits> codes = {LoadShared16(first)};
  if constexpr (S::kCodewordBits == 4) codes.rest = LoadShared16(first + 2048);
  if constexpr (S::kCodewordBits == 3) {
    codes.rest = LoadShared8(block + 2048 + output_tile % 4 * 256 + lane * 8);
  }
  return codes;
}

// Adds the products of a stage. A lane's code has weights for eight neighbouring inputs, which
// operand B takes as they lie.
template <typename S>
__device__ __forceinline__ void MultiplyCodewords(
    const Stage<S>& stage, const Place& place,
    const Codewords<S::kCodewordBits, kTableColumns>& codewords, IntegerSums<S>& sums) {
  const int lane = threadIdx.x % 32, quad = lane % 4;
  const uint32_t rows =
      SharedAddress(stage.x) + (place.token_warp * S::kWarpTokens + lane / 4) * kInputs;
  CodewordCodes<S::kCodewordBits> codes[S::kOutputTiles];
#pragma unroll
  for (int i = 0; i < S::kOutputTiles; ++i) {
    codes[i] = CodesOf<S>(stage, place.output_warp * S::kOutputTiles + i);
  }
#pragma unroll
  for (int step = 0; step < kInputs / 32; ++step) {
    uint32_t a[S::kOutputTiles][4];
#pragma unroll
    for (int i = 0; i < 2 * S::kOutputTiles; ++i) {
      const auto [word, rest] = codewords.Find(codes[i / 2], step, i % 2);
      a[i / 2][i % 2] = CodewordBytes<S::kCodewordBits, 1 << S::kShift>(word, rest, 0);
      a[i / 2][2 + i % 2] = CodewordBytes<S::kCodewordBits, 1 << S::kShift>(word, rest, 4);
    }
    const uint32_t at = ((2 * step + quad / 2) ^ lane / 4) * 16 + quad % 2 * 8;
#pragma unroll
    for (int j = 0; j < S::kTokenTiles; ++j) {
      const uint2 b = LoadShared8(rows + j * 8 * kInputs + at);
#pragma unroll
      for (int i = 0; i < S::kOutputTiles; ++i) MmaS8(sums[i][j], a[i], b.x, b.y);
    }
  }
}

}  // namespace nibble::cuda::sm80
