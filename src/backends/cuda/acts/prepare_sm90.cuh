// SPDX-License-Identifier: Apache-2.0
// Loading of a row into shared memory as X, for prepare_sm90.cu.
#pragma once

#include <cuda_fp16.h>

#include <bit>
#include <cstdint>
#include <type_traits>

#include "backends/cuda/acts/gate.cuh"
#include "backends/cuda/acts/hadamard.cuh"
#include "backends/cuda/acts/prepare_acts.h"
#include "backends/cuda/acts/quantize_row.cuh"
#include "backends/cuda/ptx/ptx_sm90.h"
#include "backends/cuda/ptx/wgmma_half.h"

namespace nibble::cuda {

// kSteps: steps of 16 rows of X. A block has kBlockGroups x kTileGroups warpgroups, which share
// kBlocks and the tiles of 64 rows. Or a row is spread over a cluster of kRanks blocks of one
// warpgroup: the one of rank r makes block r % kBlocks, tile r / kBlocks, and loads its share of
// rows for all.
template <int kSteps_, int kBlocks_, int kColumns_, int kBlockGroups, int kTileGroups,
          int kRanks_ = 1>
struct Shape {
  static constexpr int kSteps = kSteps_, kBlocks = kBlocks_, kColumns = kColumns_;
  static constexpr int kRanks = kRanks_, kGroups = kBlockGroups * kTileGroups;
  static constexpr bool kSpread = kRanks > 1;
  static constexpr int kThreads = 128 * kGroups, kRows = 16 * kSteps;
  static_assert(kThreads <= 32 * Scratch::kWarps);
  static constexpr int kPadded = PaddedColumns(kColumns), kWidth = OperandWidth(kColumns);
  static constexpr int kParts = kPadded / kWidth;  // of an operand
  static constexpr bool kPads = kColumns < kPadded;
  static constexpr int kBlocksLog2 = std::countr_zero(uint32_t{kBlocks});
  static constexpr int kRanksLog2 = std::countr_zero(uint32_t{kRanks});
  static constexpr int kAllTiles = (kSteps + 3) / 4;                    // of H_order
  static constexpr int kTiles = kSpread ? 1 : kAllTiles / kTileGroups;  // of a warpgroup
  static constexpr int kOwn = kSpread ? 1 : kBlocks / kBlockGroups;     // blocks of one
  static constexpr int kHeld = kSpread ? 1 : kBlocks;                   // blocks of X
  static constexpr int kLoaders = kThreads * kRanks;
  static constexpr int kRounds = (kRows * kPadded / 8 + kLoaders - 1) / kLoaders;  // of loads
  static constexpr int kValues = kPadded / 2;  // of a thread in a tile
  // A thread keeps kValues sums of D, kValues * kTiles * kOwn of Y, operands and addresses. More
  // than 64 columns leave room for one block of several warpgroups.
  static constexpr int kMinBlocks = kPadded > 64       ? (kGroups > 1 ? 1 : 2)
                                    : kTileGroups > 1  ? 2 / kBlockGroups
                                    : kTiles* kOwn > 2 ? (kGroups > 1 ? 1 : 3)
                                                       : 4 / kGroups;

  // Neighbouring columns of a thread (TileHadamard::matrix).
  static constexpr int kNeighbours = kPadded == 64 ? 16 : 8;
  // True if the inputs of norms are served.
  static constexpr bool kNorms = kColumns == 64 && (kBlocks == 1 || (kBlocks == 2 && kSteps == 4));
  // True if a group of 128 columns lies in one warp: its two blocks, or two rows of the only one.
  static constexpr bool kHasGroups = kColumns == 64 && (kBlocks == 1 || kOwn % 2 == 0);

  static __device__ int Rank() { return kSpread ? static_cast<int>(blockIdx.x) % kRanks : 0; }
  static __device__ int Group() { return static_cast<int>(threadIdx.x) / 128; }
  // This warpgroup's first tile, which may be one too many, and its first block.
  static __device__ int Tile() { return kSpread ? Rank() / kBlocks : Group() % kTileGroups; }
  static __device__ int Block() {
    return kSpread ? Rank() % kBlocks : Group() / kTileGroups * kOwn;
  }

  // With one dense factor, or all strides behind the last one, the row is contiguous and places are
  // constants from a thread's first one on: else addresses fill the registers.
  static constexpr bool kContiguous = kPadded == 64;
  static constexpr int kRowStride = kBlocks * kColumns;  // then

  struct Shared {
    __half x[kHeld][kParts][kRows][kWidth];  // operands B (wgmma_half.h)
    __half matrix[kParts][kPadded][kWidth];
    uint4 ring[kRounds][kBlocks][2][kThreads];  // gate and up
    Scratch scratch;
    int2 largest[kRanks];  // from the peers
    uint64_t largest_barrier;
  };
};

// What a thread loads in one round: 8 columns of each block in a row of X. Eight threads take 128
// bytes of shared memory.
template <typename S>
struct Piece {
  static constexpr int kStep = S::kLoaders / 8, kEights = S::kWidth / 8, kRows = 8 / kEights;
  static constexpr bool kSamePart = kStep % S::kParts == 0;
  static constexpr int kNext = kSamePart ? kStep / S::kParts * kRows : 0;  // rows between rounds
  int row, part, eight;
  int place;  // in the row of X

  __device__ explicit Piece(int round) {
    const unsigned thread = S::Rank() * S::kThreads + threadIdx.x;
    const unsigned lines = thread / 8 + (kSamePart ? 0 : round * kStep);
    const unsigned start = lines / S::kParts * kRows + thread / kEights % kRows;
    const unsigned of_part = thread % kEights;
    row = static_cast<int>(start) + kNext * round;
    part = static_cast<int>(lines % S::kParts);
    eight = kEights * part + static_cast<int>(of_part);
    place = static_cast<int>(OperandPlace(S::kWidth, kNext % 8 == 0 ? start : row, of_part));
  }
  // The first element of a contiguous row.
  __device__ int start() const { return row * S::kRowStride + eight * 8; }
  __device__ bool exists(const TileHadamard& tile) const {
    return row < tile.order && (!S::kPads || 8 * eight < S::kColumns);
  }
};

// fp32 inputs are those of norms.
template <typename X>
constexpr bool kNormed = std::is_same_v<X, float>;

template <typename S>
__device__ void FillMatrix(const TileHadamard& tile, typename S::Shared& shared) {
  auto* const to = reinterpret_cast<uint4*>(shared.matrix);
  for (unsigned i = threadIdx.x; i < sizeof(shared.matrix) / 16; i += S::kThreads) {
    StoreShared16(to + i, __ldg(tile.matrix + i));
  }
  FenceForBulkCopies();  // needed for tensor cores, too
}

// A row of gate and up, or of x alone; or of fp32 x in front of a norm, as two halves of each
// eight. None past the last token. Of a contiguous one, from this thread's first piece on.
template <typename S, typename X>
struct Inputs {
  const X *first, *second;  // the second may be null
  bool exist;

  __device__ Inputs(const PrepareArguments& a, int64_t token) : exist(token < a.tokens) {
    const int64_t at = a.RowAt(token) + (S::kContiguous ? Piece<S>(0).start() : 0);
    first = static_cast<const X*>(a.x) + at;
    if constexpr (kNormed<X>) {
      second = first + 4;
    } else {
      second = a.up == nullptr ? nullptr : static_cast<const X*>(a.up) + at;
    }
  }
};

// Asks for this thread's part of the inputs in one round.
template <typename S, typename X>
__device__ void Request(const TileHadamard& tile, typename S::Shared& shared,
                        const Inputs<S, X>& row, int round) {
  const Piece<S> piece(round);
  if (row.exist && piece.exists(tile)) {
#pragma unroll
    for (int b = 0; b < S::kBlocks; ++b) {
      const int at = S::kContiguous ? round * Piece<S>::kNext * S::kRowStride + b * S::kColumns
                                    : tile.At(piece.row, b, piece.eight);
      CopyAsync16(&shared.ring[round][b][0][threadIdx.x], row.first + at);
      if (row.second != nullptr) {
        CopyAsync16(&shared.ring[round][b][1][threadIdx.x], row.second + at);
      }
    }
  }
  CopyAsyncCommit();
}

// v = 8 columns of the GLU output of gate x and up, or of x if there is no up.
__device__ inline void Gated(const GateSpec& gating, const void* x, const void* ups,
                             float (&v)[8]) {
  UnpackBf16(LoadShared16(x), v);
  if (ups == nullptr) return;
  float up[8];
  UnpackBf16(LoadShared16(ups), up);
  SigmoidGateTimes(gating, v, up);
}

// v = 8 columns of x times the norm's weights, if it has any. Returns the sum of squares of x.
__device__ inline float Weighted(const float* weights, const void* first, const void* second,
                                 float (&v)[8]) {
  float squares = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint4 words = LoadShared16(half == 0 ? first : second);
    const uint32_t four[] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& x = v[4 * half + i] = __uint_as_float(four[i]);
      squares = fmaf(x, x, squares);
      if (weights != nullptr) x *= __ldg(weights + 4 * half + i);
    }
  }
  return squares;
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

// What the threads of a row know together.
struct RowFacts {
  float largest, squares;  // squares: of a norm's inputs
};

// Loads this thread's pieces of the source op's results and applies H_blocks; requests the pieces
// of row `next`. Returns the largest magnitude before H_blocks.
template <typename S, typename X>
__device__ RowFacts LoadPieces(const PrepareArguments& a, typename S::Shared& shared, int64_t next,
                               float (&v)[S::kRounds][8][S::kBlocks]) {
  const TileHadamard& tile = a.hadamard.tile;
  const Inputs<S, X> inputs(a, next);
  RowFacts facts = {};
#pragma unroll
  for (int round = 0; round < S::kRounds; ++round) {
    CopyAsyncWait<S::kRounds - 1>();
    const Piece<S> piece(round);
    if (piece.exists(tile)) {
#pragma unroll
      for (int b = 0; b < S::kBlocks; ++b) {
        float eight[8];
        const auto& ring = shared.ring[round][b];
        if constexpr (kNormed<X>) {
          const float* const weights =
              a.norm == nullptr ? nullptr : a.norm + piece.start() + b * S::kColumns;
          facts.squares += Weighted(weights, &ring[0][threadIdx.x], &ring[1][threadIdx.x], eight);
        } else {
          Gated(a.gating, &ring[0][threadIdx.x], a.up == nullptr ? nullptr : &ring[1][threadIdx.x],
                eight);
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          facts.largest = fmaxf(facts.largest, fabsf(eight[i]));
          v[round][i][b] = eight[i];
        }
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) Butterflies<S::kBlocksLog2>(v[round][i]);
    }
    Request<S>(tile, shared, inputs, round);
  }
  return facts;
}

template <typename S, typename X>
__device__ RowFacts Join(typename S::Shared& shared, const RowFacts& own) {
  int largest = ReduceBlock(__float_as_int(own.largest), MaxOf(), shared.scratch.squares);
  int squares = 0;
  // The words of the last row's sums of codes, which all have read.
  if constexpr (kNormed<X>) {
    squares = ReduceBlock(__float_as_int(own.squares), FloatSumOf(), shared.scratch.codes);
  }
  float sum = __int_as_float(squares);
  if constexpr (S::kSpread) {
    if (const int peer = static_cast<int>(threadIdx.x); peer < S::kRanks) {
      SendPeer(PeerAddress(SharedAddress(&shared.largest[S::Rank()]), peer), {largest, squares},
               PeerAddress(SharedAddress(&shared.largest_barrier), peer));
    }
    BarrierWaitForPeers(&shared.largest_barrier, 0);
    sum = 0;
#pragma unroll
    for (int i = 0; i < S::kRanks; ++i) {
      largest = max(largest, shared.largest[i].x);
      sum += __int_as_float(shared.largest[i].y);
    }
  }
  return {__int_as_float(largest), sum};
}

// Stores 8 columns of X in the shared memory of the blocks that multiply them.
template <typename S>
__device__ void StorePiece(typename S::Shared& shared, const Piece<S>& piece, int b,
                           const uint4& values) {
  __half* const place = &shared.x[S::kSpread ? 0 : b][piece.part][piece.row][piece.place];
  if constexpr (S::kSpread) {
#pragma unroll
    for (int peer = b; peer < S::kAllTiles * S::kBlocks; peer += S::kBlocks) {
      SendPeer16(PeerAddress(SharedAddress(place), peer), values,
                 PeerAddress(shared.scratch.rows_barrier(), peer));
    }
  } else {
    StoreShared16(place, values);
  }
}

// Makes X of this row and requests row `next`. Returns the factor of the results.
template <typename S, typename X>
__device__ float LoadRow(const PrepareArguments& a, typename S::Shared& shared, int64_t next) {
  float v[S::kRounds][8][S::kBlocks] = {};
  const RowFacts facts = Join<S, X>(shared, LoadPieces<S, X>(a, shared, next, v));
  const float scale = RangeScale(facts.largest);  // of X
#pragma unroll
  for (int round = 0; round < S::kRounds; ++round) {
    const Piece<S> piece(round);
    if (piece.row >= S::kRows) break;
#pragma unroll
    for (int b = 0; b < S::kBlocks; ++b) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        words[i] = PackHalves(v[round][2 * i][b] * scale, v[round][2 * i + 1][b] * scale);
      }
      StorePiece<S>(shared, piece, b, {words[0], words[1], words[2], words[3]});
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
  const float factor = a.hadamard.scale / scale;
  if constexpr (!kNormed<X>) return factor;
  return factor / sqrtf(facts.squares / static_cast<float>(a.width) + a.eps);
}

}  // namespace nibble::cuda
