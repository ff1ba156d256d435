// SPDX-License-Identifier: Apache-2.0
// The kernel of gemm_sm80.cu and gemm_sm80_codewords.cu, and its launch.
//
// A block of eight warps computes one tile of y: 256 outputs x 128 tokens, or 128 x 64 where large
// tiles would leave much of the machine idle. Weights (operand A) and activations (operand B) pass
// through a ring of stages (gemm_sm80_tile.cuh) in 96 KiB of shared memory, which every GPU of
// compute capability 8 has.
//
// The larger a warp's tile, the less it reads from shared memory per product; 64 x 64 is what the
// registers hold, and with it shared memory keeps up with 4-bit tensor cores. In groups half of
// them hold sums of pieces (gemm_sm80_groups.cuh).
#pragma once

#include "backends/cuda/gemm/gemm_sm80.h"
#include "backends/cuda/gemm/gemm_sm80_codewords.cuh"
#include "backends/cuda/gemm/gemm_sm80_groups.cuh"
#include "backends/cuda/runtime/launch.h"

namespace nibble::cuda::sm80 {

inline constexpr int kBand = 8;  // token tiles that are walked through together, for the sake of L2

struct Tiles {
  int token_tiles, output_tiles;

  template <typename S>
  static Tiles Of(const GemmArguments& g) {
    return {static_cast<int>((g.x_rows() + S::kTokens - 1) / S::kTokens),
            static_cast<int>((g.rows + S::kOutputs - 1) / S::kOutputs)};
  }
  __host__ __device__ int count() const { return token_tiles * output_tiles; }

  template <typename S>
  __device__ Place PlaceOf(int tile) const {
    const int band = tile / (kBand * output_tiles) * kBand;
    const int height = min(token_tiles - band, kBand);
    const int in_band = tile - band * output_tiles;
    return {.token = (band + in_band % height) * S::kTokens,
            .output = in_band / height * S::kOutputs};
  }
};

// Stores four outputs of a token from n on: value(i) is the law's value of the i-th.
template <typename Y, typename Value>
__device__ __forceinline__ void StoreFour(const GemmArguments& g, int token, int n,
                                          const Value& value) {
  Y* const y = static_cast<Y*>(g.y) + token * g.y_stride + n;
  if (n + 4 > g.rows || reinterpret_cast<uintptr_t>(y) % (4 * sizeof(Y)) != 0) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (n + i < g.rows) StoreValue(g, y + i, value(i));
    }
    return;
  }
  struct alignas(4 * sizeof(Y)) Four {
    Y y[4];
  } four;
  if (g.accumulate) four = *reinterpret_cast<const Four*>(y);
#pragma unroll
  for (int i = 0; i < 4; ++i) StoreValue(g, four.y + i, value(i));
  *reinterpret_cast<Four*>(y) = four;
}

// Stores a warp's sums to y, 16 columns at a time through shared memory, where they become rows: of
// 16 tokens, or of the planes of eight.
template <typename Y, typename S>
__device__ __forceinline__ void Store(const GemmArguments& g, const Place& place,
                                      const Sums<S>& sums, Shared<S>& shared) {
  constexpr int kLanes = S::kWarpOutputs / 4;  // of a token
  const int lane = threadIdx.x % 32, column = lane % kLanes * 4;
  const int n = place.output + place.output_warp * S::kWarpOutputs + column;
  OutputTerms outputs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (n + i < g.rows) outputs[i].Fetch(g, n + i);
  }
  using Sum = typename S::Sum;
  Sum* const rows = shared.sums[threadIdx.x / 32];
#pragma unroll
  for (int chunk = 0; chunk < S::kTokenTiles; chunk += 2) {
    __syncwarp();  // the chunk before has been read
#pragma unroll
    for (int i = 0; i < S::kOutputTiles * 8; ++i) {
      const int tile = i / 8, half = i / 4 % 2, element = i % 4;
      const int row = half * 8 + lane % 4 * 2 + element % 2;
      rows[row * S::kPitch + tile * 16 + element / 2 * 8 + lane / 4] =
          sums[tile][chunk + half][element];
    }
    __syncwarp();
    const auto load = [](const Sum* p, Sum(&d)[4]) {
      *reinterpret_cast<uint4*>(d) = *reinterpret_cast<const uint4*>(p);
#pragma unroll
      for (Sum& sum : d) {
        if constexpr (!S::kGroups) sum >>= S::kShift;
      }
    };
    const int first = place.token_warp * S::kWarpTokens + chunk * 8;
    const int count = g.planes() ? kChunk / 2 : kChunk;
#pragma unroll 1
    for (int row = lane / kLanes; row < count; row += 32 / kLanes) {
      const int t = (g.planes() ? first / 2 : first) + row;  // in the block
      const int token = (g.planes() ? place.token / 2 : place.token) + t;
      if (token >= g.tokens || n >= g.rows) break;
      alignas(16) Sum d[4], lower[4];
      load(rows + row * S::kPitch + column, d);
      if (!g.planes()) {
        StoreFour<Y>(g, token, n,
                     [&](int i) { return LawValue(g, outputs[i], shared.tokens, t, d[i]); });
        continue;
      }
      load(rows + (row + kChunk / 2) * S::kPitch + column, lower);
      StoreFour<Y>(g, token, n, [&](int i) {
        return LawOfPlanes(g, outputs[i], shared.tokens, t, first + row, first + row + kChunk / 2,
                           d[i], lower[i]);
      });
    }
  }
}

template <typename S, typename Y>
__global__ void __launch_bounds__(kThreads, S::kMinBlocks)
    gemm_sm80(const __grid_constant__ GemmArguments g, const __grid_constant__ Tiles tiles) {
  extern __shared__ __align__(128) uint8_t memory[];
  Shared<S>& shared = *reinterpret_cast<Shared<S>*>(memory);
  AllowNextGrid();
  const Place place = tiles.PlaceOf<S>(blockIdx.x);
  const Codewords<S::kCodewordBits, kTableColumns> codewords(&shared + 1);
  codewords.Fill(g.words);
  WaitForPreviousGrid();
  Loader<S> loader(g, place, shared.stages);
#pragma unroll
  for (int i = 0; i < S::kStages - 1; ++i) loader.Request();
  if (const int t = threadIdx.x; t < S::kTokens) {
    const int token = (g.planes() ? place.token / 2 : place.token) + t;
    if (token < g.tokens) {
      const bool row = g.x_group == 0;
      shared.tokens.scales[t] = row ? g.x_scales[token] : 1.0f;
      if (row && g.x_zero_offsets != nullptr)
        shared.tokens.zero_offsets[t] = g.x_zero_offsets[token];
    }
    const int last = static_cast<int>(g.planes() ? PlaneRow(g.tokens - 1) + 8 : g.tokens - 1);
    if (g.w_zeros != nullptr) shared.tokens.sums[t] = g.x_sums[min(place.token + t, last)];
  }

  Sums<S> sums = {};
  [[maybe_unused]] const GroupMath<S> math(g, place);
  int stage = 0;
#pragma unroll 1
  for (int k = 0; k < loader.k_blocks(); ++k) {
    CopyAsyncWait<S::kStages - 2>();
    __syncthreads();  // all copies have arrived, and all have read the stage before
    if constexpr (S::kGroups) {
      loader.Request();
      math.AddStage(shared.stages[stage], k, sums);
    } else if constexpr (S::kCodewordBits != 0) {
      loader.Request();
      MultiplyCodewords(shared.stages[stage], place, codewords, sums);
    } else {
      const Operands<S> operands(shared.stages[stage], place, g.w_block.pieces);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (half == S::kRequestAt) loader.Request();
        if constexpr (S::kCodes == Codes::kS4S4) {
          MultiplyNibbles(operands, half, sums);
        } else {
          MultiplyBytes(operands, half, sums);
        }
      }
    }
    if (++stage == S::kStages) stage = 0;
  }
  __syncthreads();  // the stages have been read
  Store<Y>(g, place, sums, shared);
}

template <typename S, typename Y>
void Launch(const GemmArguments& g, cudaStream_t stream) {
  const Tiles tiles = Tiles::Of<S>(g);
  LaunchDependent(
      gemm_sm80<S, Y>,
      {.grid = static_cast<unsigned>(tiles.count()),
       .block = kThreads,
       .shared_bytes = sizeof(Shared<S>) + Codewords<S::kCodewordBits, kTableColumns>::kTableBytes},
      stream, g, tiles);
}

}  // namespace nibble::cuda::sm80
