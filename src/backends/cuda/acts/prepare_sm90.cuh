// SPDX-License-Identifier: Apache-2.0
// Loading of a row into shared memory as X, for prepare_sm90.cu.
#pragma once

#include <cuda_fp16.h>

#include <bit>
#include <cstdint>

#include "backends/cuda/acts/gate.cuh"
#include "backends/cuda/acts/hadamard.cuh"
#include "backends/cuda/acts/prepare_acts.h"
#include "backends/cuda/acts/quantize_row.cuh"
#include "backends/cuda/ptx/ptx_sm90.h"

namespace nibble::cuda {

// kSteps: steps of 16 rows of X. kGroups: warpgroups of a block, which share kBlocks. Or a row is
// spread over a cluster of kRanks blocks of one warpgroup: the one of rank r makes block r %
// kBlocks, tile r / kBlocks of 64 rows, and loads its share of rows for all.
template <int kSteps_, int kBlocks_, int kGroups, int kRanks_ = 1>
struct Shape {
  static constexpr int kSteps = kSteps_, kBlocks = kBlocks_, kRanks = kRanks_;
  static constexpr bool kSpread = kRanks > 1;
  static constexpr int kThreads = 128 * kGroups, kRows = 16 * kSteps;
  static constexpr int kBlocksLog2 = std::countr_zero(uint32_t{kBlocks});
  static constexpr int kRanksLog2 = std::countr_zero(uint32_t{kRanks});
  static constexpr int kAllTiles = (kSteps + 3) / 4;            // of 64 rows of H_order
  static constexpr int kTiles = kSpread ? 1 : kAllTiles;        // of a warpgroup
  static constexpr int kOwn = kSpread ? 1 : kBlocks / kGroups;  // blocks of a warpgroup
  static constexpr int kLoaders = kThreads * kRanks;
  static constexpr int kRounds = (kRows * 8 + kLoaders - 1) / kLoaders;  // of loads
  // A thread keeps 32 sums of D, 32 * kTiles * kOwn of Y, operands and addresses.
  static constexpr int kMinBlocks = kTiles * kOwn > 2 ? (kGroups > 1 ? 1 : 3) : 4 / kGroups;

  // True if a group of 128 columns lies in one warp: its two blocks, or two rows of the only one.
  static constexpr bool kHasGroups = kBlocks == 1 || kOwn % 2 == 0;

  static __device__ int Rank() { return kSpread ? static_cast<int>(blockIdx.x) % kRanks : 0; }
  // The row of X of which a thread loads 8 columns of each block.
  static __device__ int Row(int round) {
    return round * (kLoaders / 8) + Rank() * (kThreads / 8) + static_cast<int>(threadIdx.x / 8);
  }

  struct Shared {
    __half x[kGroups * kOwn][kRows][64];  // swizzled, as H_64 (RowsOf64)
    __half sylvester[64][64];
    uint4 ring[kRounds][kBlocks][2][kThreads];  // gate and up
    Scratch scratch;
    int2 largest[kRanks];  // from the peers
    uint64_t largest_barrier;
  };
};

// Place of 8 columns in a row of 64 (RowsOf64).
__device__ inline unsigned Swizzled(unsigned row, unsigned eight) {
  return (eight ^ (row % 8)) * 8;
}

// H_64 with its columns in the order in which a thread's results are neighbours: operand column
// 8 j + 2 q + e is column 16 q + 2 j + e.
template <typename S>
__device__ void FillSylvester(typename S::Shared& shared) {
  for (unsigned i = threadIdx.x; i < 64 * 8; i += S::kThreads) {
    const unsigned row = i / 8, eight = i % 8;
    uint32_t pairs[4];
#pragma unroll
    for (unsigned q = 0; q < 4; ++q) {
      const unsigned column = 16 * q + 2 * eight;
      const unsigned low = __popc(row & column) % 2, high = __popc(row & (column + 1)) % 2;
      pairs[q] = 0x3C003C00 | low << 15 | high << 31;
    }
    StoreShared16(&shared.sylvester[row][Swizzled(row, eight)],
                  {pairs[0], pairs[1], pairs[2], pairs[3]});
  }
  FenceForBulkCopies();  // needed for tensor cores, too
}

// This thread's first piece of a row of gate and up, or of x alone; none past the last token.
struct Pieces {
  const __nv_bfloat16 *gate, *up;  // up may be null
  int rows;                        // of X

  template <typename S>
  static __device__ Pieces Of(const PrepareArguments& a, int64_t token) {
    const int64_t at = token * a.x_stride + S::Row(0) * (64 * S::kBlocks) + threadIdx.x % 8 * 8;
    return {static_cast<const __nv_bfloat16*>(a.x) + at,
            a.up == nullptr ? nullptr : static_cast<const __nv_bfloat16*>(a.up) + at,
            token < a.tokens ? a.hadamard.tile.order : 0};
  }
};

// Asks for this thread's part of gate and up in one round.
template <typename S>
__device__ void Request(typename S::Shared& shared, const Pieces& row, int round) {
  constexpr int kNext = S::kLoaders / 8 * 64 * S::kBlocks;  // elements between rounds
  if (S::Row(round) < row.rows) {
#pragma unroll
    for (int b = 0; b < S::kBlocks; ++b) {
      CopyAsync16(&shared.ring[round][b][0][threadIdx.x], row.gate + round * kNext + b * 64);
      if (row.up == nullptr) continue;
      CopyAsync16(&shared.ring[round][b][1][threadIdx.x], row.up + round * kNext + b * 64);
    }
  }
  CopyAsyncCommit();
}

// v = 8 columns of the GLU output of gate x and up, or of x if there is no up. Returns the largest
// magnitude, at least `largest`.
__device__ inline float Gated(const GateSpec& gating, const void* x, const void* ups, float (&v)[8],
                              float largest) {
  UnpackBf16(LoadShared16(x), v);
  if (ups != nullptr) {
    float up[8];
    UnpackBf16(LoadShared16(ups), up);
    SigmoidGateTimes(gating, v, up);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) largest = fmaxf(largest, fabsf(v[i]));
  return largest;
}

__device__ inline uint32_t PackHalves(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

// A power of 2 that brings values up to `largest` below 64: sums of 512 of them fit into fp16.
__device__ inline float RangeScale(float largest) {
  const uint32_t exponent = min(max(__float_as_uint(largest) >> 23, 6u), 254u);
  return __uint_as_float((127 + 127 + 5 - exponent) << 23);
}

// Loads this thread's pieces of x or of the GLU output and applies H_blocks; requests the pieces of
// row `next`. Returns the largest magnitude before H_blocks.
template <typename S>
__device__ float LoadPieces(const PrepareArguments& a, typename S::Shared& shared, int64_t next,
                            float (&v)[S::kRounds][8][S::kBlocks]) {
  const auto pieces = Pieces::Of<S>(a, next);
  float largest = 0;
#pragma unroll
  for (int round = 0; round < S::kRounds; ++round) {
    CopyAsyncWait<S::kRounds - 1>();
    if (S::Row(round) < a.hadamard.tile.order) {
#pragma unroll
      for (int b = 0; b < S::kBlocks; ++b) {
        float eight[8];
        const auto& ring = shared.ring[round][b];
        largest = Gated(a.gating, &ring[0][threadIdx.x],
                        a.up == nullptr ? nullptr : &ring[1][threadIdx.x], eight, largest);
#pragma unroll
        for (int i = 0; i < 8; ++i) v[round][i][b] = eight[i];
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) Butterflies<S::kBlocksLog2>(v[round][i]);
    }
    Request<S>(shared, pieces, round);
  }
  return largest;
}

// Returns the largest v of the row; none is negative.
template <typename S>
__device__ float JoinLargest(typename S::Shared& shared, float v) {
  int largest = ReduceBlock(__float_as_int(v), MaxOf(), shared.scratch.squares);
  if constexpr (S::kSpread) {
    if (const int peer = static_cast<int>(threadIdx.x); peer < S::kRanks) {
      SendPeer(PeerAddress(SharedAddress(&shared.largest[S::Rank()]), peer), {largest, 0},
               PeerAddress(SharedAddress(&shared.largest_barrier), peer));
    }
    BarrierWaitForPeers(&shared.largest_barrier, 0);
#pragma unroll
    for (int i = 0; i < S::kRanks; ++i) largest = max(largest, shared.largest[i].x);
  }
  return __int_as_float(largest);
}

// Stores 8 columns of X in the shared memory of the blocks that multiply them.
template <typename S>
__device__ void StorePiece(typename S::Shared& shared, int round, int b, const uint4& piece) {
  const int column = static_cast<int>(Swizzled(threadIdx.x / 8, threadIdx.x % 8));
  if constexpr (S::kSpread) {
    const SharedAddress place = &shared.x[0][S::Row(round)][column];
#pragma unroll
    for (int peer = b; peer < S::kAllTiles * S::kBlocks; peer += S::kBlocks) {
      SendPeer16(PeerAddress(place, peer), piece, PeerAddress(shared.scratch.rows_barrier(), peer));
    }
  } else {
    StoreShared16(&shared.x[b][S::Row(round)][column], piece);
  }
}

// Makes X of this row and requests row `next`. Returns the power of 2 that X was multiplied with.
template <typename S>
__device__ float LoadRow(const PrepareArguments& a, typename S::Shared& shared, int64_t next) {
  float v[S::kRounds][8][S::kBlocks] = {};
  const float scale = RangeScale(JoinLargest<S>(shared, LoadPieces<S>(a, shared, next, v)));
#pragma unroll
  for (int round = 0; round < S::kRounds; ++round) {
    if (S::Row(round) >= S::kRows) break;
#pragma unroll
    for (int b = 0; b < S::kBlocks; ++b) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        words[i] = PackHalves(v[round][2 * i][b] * scale, v[round][2 * i + 1][b] * scale);
      }
      StorePiece<S>(shared, round, b, {words[0], words[1], words[2], words[3]});
    }
  }
  if constexpr (S::kSpread) {
    if (S::Rank() < S::kAllTiles * S::kBlocks) {
      BarrierWaitForPeers(shared.scratch.rows_barrier(), 0);
    }
    FenceForBulkCopies();
  } else {
    FenceForBulkCopies();
    __syncthreads();
  }
  return scale;
}

}  // namespace nibble::cuda
