// SPDX-License-Identifier: Apache-2.0
// The weights of decode linears (gemm_decode.cu), which stream through shared memory.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "backends/cuda/gemm/gemm_decode.h"
#include "backends/cuda/gemm/lattice_codewords.cuh"
#include "backends/cuda/gemm/level_steps.cuh"

namespace nibble::cuda::decode {

inline constexpr int kMaxRows = 128;  // outputs of a block

// Products of one input in one launch. Their outputs lie one behind the other, each product's from
// a multiple of kMaxRows on, so that a block's outputs are of one product.
struct Products {
  GemmArguments parts[kMaxJoined];
  int starts[kMaxJoined];  // the first output of each; INT_MAX: there is no such product
  int rows;                // outputs of all

  struct Place {
    const GemmArguments& product;
    int row;
  };
  __device__ __forceinline__ Place Find(int output) const {
    const int i = (output >= starts[1] ? 1 : 0) + (output >= starts[2] ? 1 : 0);
    return {parts[i], output - starts[i]};
  }
  // The arguments that all products have in common: input, columns, types and terms.
  __host__ __device__ const GemmArguments& common() const { return parts[0]; }
};

// A stage has the codes of a warp's 16 outputs x 128 inputs and then, for each lane by itself, the
// scales and zeros (BlockScales) of its two outputs. fine: for 2 or 4 pieces of a block, not one.
__host__ __device__ constexpr int ScaleBytes(bool fine) {  // of a lane
  return fine ? 16 : 4;
}
__host__ __device__ constexpr int ZeroBytes(bool fine) {
  return fine ? 8 : 4;
}
constexpr int StageBytes(WeightKind kind, bool fine) {
  const bool scales = kind == WeightKind::kLevels || HasGroups(kind);
  const bool zeros = kind == WeightKind::kNibbleGroups;
  return CodeBytes(kind) / 4 + (scales ? 32 * ScaleBytes(fine) : 0) +
         (zeros ? 32 * ZeroBytes(fine) : 0);
}

// The format of operands: kind and pieces of the weights, and whether tokens have groups. experts:
// a product of a mixture, for group blockIdx.z.
template <WeightKind kind, bool fine, bool x_groups, bool experts = false>
struct Format {
  static constexpr WeightKind kKind = kind;
  static constexpr bool kExperts = experts;
  static constexpr bool kFine = fine, kTokenScales = x_groups;
  static constexpr bool kLevels = kind == WeightKind::kLevels, kGroups = HasGroups(kind);
  static constexpr int kCodewordBits = CodewordBits(kind);
  static constexpr bool kSparse = IsSparse(kind);
  // Behind the words of a stage, 8 bytes of each lane: the last bits of codewords, or places.
  static constexpr bool kRest = kCodewordBits == 3 || kSparse;
};

template <typename F, int tiles, int row_warps, int min_blocks, int ring_bytes, int warps = 8,
          int table_columns = 32>
struct Shape : F {
  static constexpr int kBits = CodeBits(F::kKind);
  static constexpr int kTiles = tiles;           // of 8 tokens
  static constexpr int kRowWarps = row_warps;    // of 16 outputs
  static constexpr int kMinBlocks = min_blocks;  // per multiprocessor
  static constexpr int kWarps = warps, kThreads = 32 * warps;
  static constexpr int kSplits = kWarps / row_warps;
  static constexpr int kRows = 16 * row_warps;
  static constexpr int kWords =  // of 16 bytes, per thread, in 16 x 128 weights
      StoredCodeBytes(F::kKind) / 2048;
  static constexpr int kScalesAt = kWords * 512;  // in a stage; or of the rest
  static constexpr int kZerosAt = kScalesAt + 32 * ScaleBytes(F::kFine);
  static constexpr int kStageBytes = StageBytes(F::kKind, F::kFine);
  static constexpr int kStages = ring_bytes / kStageBytes;
  static constexpr int kBurst = tiles <= 2 ? 2 : 1;    // stages multiplied at once
  static constexpr int kTableColumns = table_columns;  // of codewords
  // Steps of 32 inputs whose sums are added up as integers: all, or those of the smallest piece.
  static constexpr int kPieceSteps = F::kFine ? 1 : 4;
  using Sum = std::conditional_t<F::kGroups, float, int32_t>;
};

template <typename S>
using CodewordsOf = Codewords<S::kCodewordBits, S::kTableColumns>;

__device__ inline int FloorLog2(int power) {
  return 31 - __clz(power);
}

// The blocks of 128 inputs [begin, end) of one of 2^ranks_log2 blocks of a cluster.
struct Slice {
  int begin, end;

  __device__ static Slice Of(int64_t cols, int rank, int ranks_log2) {
    const int blocks = static_cast<int>(cols + 127) / 128;
    return {blocks * rank >> ranks_log2, blocks * (rank + 1) >> ranks_log2};
  }
  __device__ int bytes() const { return (end - begin) * 128; }
};

// One warp's weights: a ring of stages, each 16 outputs x 128 inputs. A thread reads back just what
// it copied itself, so the ring needs no barrier. (Registers instead of the ring would need a
// scoreboard per stage; the compiler takes one for all, so that each use waits for the newest
// request. Measured: half the bandwidth.)
template <typename S>
class WeightRing {
 public:
  // Requests the first stages. `first` is this warp's first block of 128 inputs.
  __device__ WeightRing(const Products& products, int row_warp, int first, int end, uint8_t* ring)
      : products_(products),
        row_warp_(row_warp),
        first_(first),
        end_(end),
        row_block_(blockIdx.y),
        slot_(SharedAddress(ring) + threadIdx.x % 32 * 16),
        ring_(slot_) {
    FindPiece();
#pragma unroll 1
    for (int i = 0; i < S::kStages; ++i) Request();
  }

  // Waits until the oldest `stages` stages have arrived.
  template <int stages>
  __device__ void Await() const {
    CopyAsyncWait<S::kStages - stages>();
  }
  // Word j of the i-th oldest stage.
  __device__ uint4 Word(int i, int j) const {
    return LoadShared16(Slot(i) + j * 512);
  }
  // The codes of the i-th oldest stage's codewords.
  __device__ CodewordCodes<S::kCodewordBits> Codewords(int i) const {
    CodewordCodes<S::kCodewordBits> codes = {Word(i, 0)};
    if constexpr (S::kCodewordBits == 4) codes.rest = Word(i, 1);
    if constexpr (S::kCodewordBits == 3) codes.rest = Rest(i);
    return codes;
  }
  // The places of the i-th oldest stage's sparse codes, or the last bits of its codewords.
  __device__ uint2 Rest(int i) const {
    return LoadShared8(Slot(i) + S::kScalesAt + Lane(8));
  }

  // The steps by which codes of inputs 32 step.. of the i-th oldest stage become bytes, where there
  // are zeros or a second level of scales.
  __device__ LevelSteps Steps(int i, int step) const {
    if constexpr (S::kLevels) return LevelSteps(LoadShared4(Scale(i, step)));
    const uint32_t zeros = Slot(i) + S::kZerosAt + Lane(ZeroBytes(S::kFine));
    const int piece = Piece(step);
    return LevelSteps::OfStarts(LoadShared4(zeros + piece / 2 * 4) >> 16 * (piece % 2) & 0xFFFF);
  }
  // The scales of the lane's two outputs for these inputs, where weights have groups.
  __device__ float2 Scales(int i, int step) const {
    if (blocks().pieces == 0) return {1, 1};
    const uint32_t pair = LoadShared4(Scale(i, step));
    return __half22float2(reinterpret_cast<const __half2&>(pair));
  }
  __device__ const BlockScales& blocks() const {
    return products_.common().w_block;
  }

  // Requests the next stage in place of the oldest one, which has been read.
  __device__ void Request() {
    if (next_ < end_) {
      const uint8_t* const block = piece_ + next_ * block_bytes();
#pragma unroll
      for (int j = 0; j < S::kWords; ++j) CopyAsync16(slot_ + j * 512, block + j * 2048);
      if constexpr (S::kLevels || S::kGroups) RequestScales(scales_ + next_ * block_bytes());
      if constexpr (S::kRest) {
        CopyAsync<8>(slot_ + S::kScalesAt + Lane(8), scales_ + next_ * block_bytes());
      }
      next_ += S::kSplits;
      if (next_ >= end_) {
        row_block_ += gridDim.y;
        FindPiece();
      }
    }
    CopyAsyncCommit();
    slot_ += S::kStageBytes;
    if (slot_ == ring_ + S::kStages * S::kStageBytes) slot_ = ring_;
  }

 private:
  // Bytes of a block in memory; a constant where it can be.
  __device__ int block_bytes() const {
    if constexpr (S::kFine || S::kGroups) return products_.common().block_bytes();
    return CodeBytes(S::kKind) + (S::kLevels ? 128 : 0);
  }
  __device__ uint32_t Slot(int i) const {
    const uint32_t slot = slot_ + i * S::kStageBytes, end = ring_ + S::kStages * S::kStageBytes;
    return slot >= end ? slot - S::kStages * S::kStageBytes : slot;
  }
  // The offset from a lane's place with 16 bytes per lane to its place with `bytes` per lane.
  static __device__ int Lane(int bytes) {
    return static_cast<int>(threadIdx.x % 32) * (bytes - 16);
  }
  __device__ int Piece(int step) const {
    return S::kFine ? step * blocks().pieces / 4 : 0;
  }
  __device__ uint32_t Scale(int i, int step) const {
    return Slot(i) + S::kScalesAt + Lane(ScaleBytes(S::kFine)) + Piece(step) * 4;
  }

  __device__ void RequestScales(const uint8_t* from) {
    const int pieces = S::kLevels && !S::kFine ? 1 : blocks().pieces;
    if (pieces == 0) return;
    const uint32_t scales = slot_ + S::kScalesAt + Lane(ScaleBytes(S::kFine));
    if constexpr (S::kFine) {
      pieces == 4 ? CopyAsync<16>(scales, from) : CopyAsync<8>(scales, from);
    } else {
      CopyAsync<4>(scales, from);
    }
    if (!S::kGroups || !blocks().zeros) return;
    const int pair = piece_of_ % 4 * 8 + threadIdx.x % 32 / 4;
    const uint8_t* const zeros = from + 128 * pieces + pair * (max(4, 2 * pieces) - 4 * pieces);
    const uint32_t to = slot_ + S::kZerosAt + Lane(ZeroBytes(S::kFine));
    S::kFine&& pieces == 4 ? CopyAsync<8>(to, zeros) : CopyAsync<4>(to, zeros);
  }

  // Finds the warp's 16 outputs of the next block of outputs.
  __device__ void FindPiece() {
    const auto [g, row] = products_.Find(row_block_ * S::kRows);
    const int pieces = static_cast<int>(g.rows + 63) / 64 * 4;
    const int64_t row_bytes = static_cast<int>(g.cols + 127) / 128 * block_bytes();
    // Pieces past the end repeat the last one; nobody stores their outputs.
    piece_of_ = min(row / 16 + row_warp_, pieces - 1);
    const uint8_t* const first = g.w + piece_of_ / 4 * row_bytes;
    piece_ = first + piece_of_ % 4 * 512 + threadIdx.x % 32 * 16;
    if constexpr (S::kLevels || S::kGroups) {
      const int pair = piece_of_ % 4 * 8 + threadIdx.x % 32 / 4;
      scales_ = first + CodeBytes(S::kKind) + pair * 4 * (S::kFine ? blocks().pieces : 1);
    }
    if constexpr (S::kRest) {
      scales_ = first + S::kWords * 2048 + piece_of_ % 4 * 256 + threadIdx.x % 32 * 8;
    }
    next_ = row_block_ * S::kRows < products_.rows ? first_ : end_;
  }

  const Products& products_;
  const int row_warp_, first_, end_;
  int row_block_, next_;
  int piece_of_;  // index of the warp's 16 outputs
  uint32_t slot_;
  const uint32_t ring_;
  const uint8_t *piece_, *scales_;  // scales_: data behind the words
};

}  // namespace nibble::cuda::decode
