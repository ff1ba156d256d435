// SPDX-License-Identifier: Apache-2.0
// Products of 16-bit weights with many tokens: tiles of weights and inputs pass through a ring of
// stages in shared memory, as they are, and become bf16 on their way into registers.
#pragma once

#include <algorithm>

#include "backends/cuda/gemm/bf16_terms.cuh"
#include "backends/cuda/runtime/launch.h"

namespace nibble::cuda {

inline constexpr int kMostBytes = 99 * 1024;  // of a block's shared memory, on 8.6 and 8.9

// A block's tile of outputs x tokens, of which each warp has 32 x warp_tokens; input_warps share a
// part and divide a stage's inputs.
template <typename W, int outputs, int tokens, int warp_tokens, int input_warps>
struct HalvesTile {
  static constexpr int kOutputs = outputs, kTokens = tokens, kWarpTokens = warp_tokens;
  static constexpr int kWarpOutputs = 32, kOutputWarps = outputs / kWarpOutputs;
  static constexpr int kParts = kOutputWarps * (tokens / warp_tokens), kInputWarps = input_warps;
  static constexpr int kThreads = 32 * kParts * input_warps;
  static constexpr int kInputs = kStepInputs * input_warps;  // of a stage

  // Bytes. Eight lanes read two rows at a time, 16 bytes each, which no bank has twice.
  template <typename T>
  static constexpr int kPitch = kInputs * sizeof(T) + (sizeof(T) == 4      ? 16
                                                       : kInputs % 64 == 0 ? 64
                                                                           : 0);
  static constexpr int kWeightBytes = outputs * kPitch<W>;
  static constexpr int kStageBytes = kWeightBytes + tokens * kPitch<float>;
  static constexpr int kStages = 3 * kStageBytes <= kMostBytes ? 3 : 2;
  // In the end the sums of all but the first input warp take the place of the stages.
  static constexpr int kSums = kWarpOutputs * warp_tokens / 32;  // of a lane
  static constexpr int kSharedBytes = kStages * kStageBytes;
  static_assert(kSharedBytes <= kMostBytes);
  static_assert((input_warps - 1) * kParts * kSums * 32 * int{sizeof(float)} <= kSharedBytes);
};

// Requests kRows rows of a stage's inputs from `k` on, zeros outside of [rows, cols].
template <typename Tile, int kRows, typename T>
__device__ void RequestRows(const T* from, int64_t first, int64_t rows, int64_t k, int64_t cols,
                            uint8_t* stage) {
  constexpr int kUnit = 16 / sizeof(T), kUnits = Tile::kInputs / kUnit;  // values; of a row
#pragma unroll
  for (int i = threadIdx.x; i < kRows * kUnits; i += Tile::kThreads) {
    const int64_t row = first + i / kUnits, at = k + i % kUnits * kUnit;
    const bool inside = row < rows && at < cols;
    CopyAsync16OrZero(stage + i / kUnits * Tile::template kPitch<T> + i % kUnits * 16,
                      inside ? from + row * cols + at : from, inside);
  }
}

// Adds up the sums of the warps that divided the inputs of a part, in the first of them.
template <typename Tile, int kRows, int kColumns>
__device__ void AddInputWarps(float (&sums)[kRows][kColumns][4], int part, int input_warp,
                              float* memory) {
  const int lane = threadIdx.x % 32;
  const auto place = [&](int warp, int i) {
    return memory + (((warp - 1) * Tile::kParts + part) * Tile::kSums + i) * 32 + lane;
  };
  float* const own = &sums[0][0][0];
  __syncthreads();  // the stages have been read
#pragma unroll
  for (int i = 0; i < Tile::kSums; ++i) {
    if (input_warp > 0) *place(input_warp, i) = own[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < Tile::kSums; ++i) {
    for (int warp = 1; input_warp == 0 && warp < Tile::kInputWarps; ++warp) {
      own[i] += *place(warp, i);
    }
  }
}

// grid [outputs, tokens, products]
template <typename W, typename Tile, typename Out>
__global__ void __launch_bounds__(Tile::kThreads)
    gemm_halves_tiles(const __grid_constant__ GemmArguments g) {
  extern __shared__ __align__(16) uint8_t shared[];
  constexpr int kRows = Tile::kWarpOutputs / 16, kColumns = Tile::kWarpTokens / 8;
  constexpr int kBatch = kColumns < 4 ? kColumns : 4;  // columns in registers
  AllowNextGrid();
  WaitForPreviousGrid();
  const ProductTerms product = g.product(static_cast<int>(blockIdx.z));
  const int64_t output = int64_t{blockIdx.x} * Tile::kOutputs;
  const int64_t token = int64_t{blockIdx.y} * Tile::kTokens;
  if (output >= product.rows) return;
  const auto* const w = static_cast<const W*>(static_cast<const void*>(product.linear.w));
  const int steps = static_cast<int>((g.cols + Tile::kInputs - 1) / Tile::kInputs);
  const auto stage_of = [&](int step) { return shared + step % Tile::kStages * Tile::kStageBytes; };
  const auto request = [&](int step) {
    if (step < steps) {
      const int64_t k = int64_t{step} * Tile::kInputs;
      uint8_t* const stage = stage_of(step);
      RequestRows<Tile, Tile::kOutputs>(w, output, product.rows, k, g.cols, stage);
      RequestRows<Tile, Tile::kTokens>(g.values, token, g.tokens, k, g.cols,
                                       stage + Tile::kWeightBytes);
    }
    CopyAsyncCommit();
  };
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int part = warp % Tile::kParts, input_warp = warp / Tile::kParts;
  const int warp_output = part % Tile::kOutputWarps * Tile::kWarpOutputs + lane / 4;
  const int warp_token = part / Tile::kOutputWarps * Tile::kWarpTokens;
  const auto load = [&]<typename T>(const uint8_t* rows, int row, T) {
    return LoadEight(reinterpret_cast<const T*>(rows + row * Tile::template kPitch<T>) +
                     input_warp * kStepInputs + lane % 4 * 8);
  };
  float sums[kRows][kColumns][4] = {};
  for (int step = 0; step < Tile::kStages - 1; ++step) request(step);
  for (int step = 0; step < steps; ++step) {
    CopyAsyncWait<Tile::kStages - 2>();
    __syncthreads();
    request(step + Tile::kStages - 1);
    const uint8_t *const stage = stage_of(step), *const inputs = stage + Tile::kWeightBytes;
    Eight a[kRows][2], x[kBatch];
#pragma unroll
    for (int i = 0; i < 2 * kRows; ++i) a[i / 2][i % 2] = load(stage, warp_output + 8 * i, W());
#pragma unroll
    for (int first = 0; first < kColumns; first += kBatch) {
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        x[j] = load(inputs, warp_token + 8 * (first + j) + lane / 4, float());
      }
      MultiplyStep<W>(sums, first, a, x);
    }
  }
  if constexpr (Tile::kInputWarps > 1) {
    AddInputWarps<Tile>(sums, part, input_warp, reinterpret_cast<float*>(shared));
    if (input_warp > 0) return;
  }
  StoreSums<Out>(g, product, output + warp_output, token + warp_token + lane % 4 * 2, sums);
}

// The blocks of tiles of so many outputs and tokens, for all products of a launch.
inline dim3 GridOf(const GemmArguments& g, int outputs, int tokens) {
  const auto parts = [](int64_t size, int64_t part) {
    return static_cast<unsigned>((size + part - 1) / part);
  };
  int64_t rows = 0;  // of the largest product
  for (int i = 0; i <= g.joins; ++i) rows = std::max(rows, g.product(i).rows);
  return {parts(rows, outputs), parts(g.tokens, tokens), static_cast<unsigned>(g.joins + 1)};
}

// Large tiles where they give all multiprocessors work, smaller ones else: of the fewest tokens
// that hold all, as each reads all inputs of its tokens.
template <typename W, typename Out>
void LaunchTiles(const GemmArguments& g, cudaStream_t stream) {
  static const auto multiprocessors = static_cast<unsigned>(Device::Current().multiprocessors);
  const auto fills = [&](int outputs, int tokens) {
    const dim3 grid = GridOf(g, outputs, tokens);
    return grid.x * grid.y * grid.z >= multiprocessors;
  };
  constexpr int kWide = sizeof(W) == 4 ? 2 : 1;
  const auto launch = [&]<typename Tile>(Tile) {
    LaunchDependent(gemm_halves_tiles<W, Tile, Out>,
                    {.grid = GridOf(g, Tile::kOutputs, Tile::kTokens),
                     .block = Tile::kThreads,
                     .shared_bytes = Tile::kSharedBytes},
                    stream, g);
  };
  if (g.tokens <= 16) {
    launch(HalvesTile<W, 32, 16, 16, 4>());
  } else if (g.tokens > 64 && fills(128, 128)) {
    launch(HalvesTile<W, 128, 128, 64, 1>());
  } else if (g.tokens > 64 || fills(128, 64)) {
    launch(HalvesTile<W, 128, 64, 64, 2 / kWide>());
  } else if (g.tokens <= 32) {
    launch(HalvesTile<W, 32, 32, 32, 4 / kWide>());
  } else {
    launch(HalvesTile<W, 32, 64, 64, 4 / kWide>());
  }
}

}  // namespace nibble::cuda
