// SPDX-License-Identifier: Apache-2.0
// The operands of decode linears (gemm_decode.cu): weights that stream through shared memory, and
// the activations of a block, which stay there.
#pragma once

#include <cstdint>

#include "backends/cuda/gemm/gemm_decode.h"
#include "backends/cuda/gemm/level_steps.cuh"

namespace nibble::cuda::decode {

inline constexpr int kWarps = 8;
inline constexpr int kThreads = 32 * kWarps;
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
  // What all have in common: input, columns, types and terms.
  __host__ __device__ const GemmArguments& common() const { return parts[0]; }
};

// Of a warp's 16 outputs x 128 inputs.
constexpr int StageBytes(WeightKind kind) {
  return WeightBlockBytes(kind) / 4 + (kind == WeightKind::kLevels ? 96 : 0);
}

template <WeightKind kind, int tiles, int row_warps, int min_blocks, int ring_bytes>
struct Shape {
  static constexpr WeightKind kKind = kind;
  static constexpr bool kLevels = kind == WeightKind::kLevels;
  static constexpr int kBits = CodeBits(kind);
  static constexpr int kTiles = tiles;           // of 8 tokens
  static constexpr int kRowWarps = row_warps;    // of 16 outputs
  static constexpr int kMinBlocks = min_blocks;  // per multiprocessor
  static constexpr int kSplits = kWarps / row_warps;
  static constexpr int kRows = 16 * row_warps;
  static constexpr int kBlockBytes = WeightBlockBytes(kind);
  static constexpr int kWords = kBits / 2;  // of 16 bytes, per thread, in 16 x 128 weights
  static constexpr int kStageBytes = StageBytes(kind);
  static constexpr int kStages = ring_bytes / kStageBytes;
  static constexpr int kBurst = tiles <= 2 ? 2 : 1;  // stages multiplied at once
};

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
        ring_(slot_),
        steps_at_(S::kWords * 512 - threadIdx.x % 32 * 12) {
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
    uint32_t slot = slot_ + i * S::kStageBytes;
    if (slot >= ring_ + S::kStages * S::kStageBytes) slot -= S::kStages * S::kStageBytes;
    return LoadShared16(slot + j * 512);
  }

  // The steps of the i-th oldest stage.
  __device__ LevelSteps Steps(int i) const {
    uint32_t slot = slot_ + i * S::kStageBytes;
    if (slot >= ring_ + S::kStages * S::kStageBytes) slot -= S::kStages * S::kStageBytes;
    return LevelSteps(LoadShared4(slot + steps_at_));
  }

  // Requests the next stage in place of the oldest one, which has been read.
  __device__ void Request() {
    if (next_ < end_) {
#pragma unroll
      for (int j = 0; j < S::kWords; ++j) {
        CopyAsync16(slot_ + j * 512, piece_ + next_ * S::kBlockBytes + j * 2048);
      }
      if constexpr (S::kLevels) CopyAsync<4>(slot_ + steps_at_, steps_ + next_ * S::kBlockBytes);
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
  // The warp's 16 outputs of the next block of outputs.
  __device__ void FindPiece() {
    const auto [g, row] = products_.Find(row_block_ * S::kRows);
    const int pieces = static_cast<int>(g.rows + 63) / 64 * 4;
    const int64_t row_bytes = static_cast<int>(g.cols + 127) / 128 * S::kBlockBytes;
    // Pieces past the end repeat the last one; nobody stores their outputs.
    const int piece = min(row / 16 + row_warp_, pieces - 1);
    piece_ = g.w + piece / 4 * row_bytes + piece % 4 * 512 + threadIdx.x % 32 * 16;
    if constexpr (S::kLevels) {
      steps_ = g.w + piece / 4 * row_bytes + 4096 + piece % 4 * 32 + threadIdx.x % 32 / 4 * 4;
    }
    next_ = row_block_ * S::kRows < products_.rows ? first_ : end_;
  }

  const Products& products_;
  const int row_warp_, first_, end_;
  int row_block_, next_;
  uint32_t slot_;
  const uint32_t ring_;
  const uint32_t steps_at_;
  const uint8_t *piece_, *steps_;
};

// Operand A for inputs 32 step.. of a stage, from the word that holds it.
template <WeightKind kind>
__device__ inline void Fragment(const uint4& word, const LevelSteps& steps, int step,
                                uint32_t (&a)[4]) {
  if constexpr (kind == WeightKind::kBytes) {
    a[0] = word.x, a[1] = word.y, a[2] = word.z, a[3] = word.w;
  } else if constexpr (kind == WeightKind::kLevels) {
    steps.Widen(step % 2 == 0 ? word.x : word.z, a[0], a[1]);
    steps.Widen(step % 2 == 0 ? word.y : word.w, a[2], a[3]);
  } else {
    constexpr uint32_t kHigh = 0xF0F0F0F0;
    const uint32_t first = step % 2 == 0 ? word.x : word.z;
    const uint32_t second = step % 2 == 0 ? word.y : word.w;
    a[0] = first << 4 & kHigh, a[1] = first & kHigh;
    a[2] = second << 4 & kHigh, a[3] = second & kHigh;
  }
}

// What describes the tokens, in shared memory.
template <typename S>
struct TokenParameters {
  float scales[8 * S::kTiles], zetas[8 * S::kTiles];
  int32_t sums[8 * S::kTiles];
};

// All tokens' codes of a block's inputs: [tokens][pitch].
template <typename S>
struct Activations {
  uint32_t memory;
  int pitch;  // an odd number of 16-byte units: ldmatrix has no bank conflicts

  __host__ __device__ static int Pitch(int inputs) { return inputs + 16; }
  // Tokens past the end have memory of their own (nobody stores their sums), except where that
  // would be most of it: in a lone tile they repeat the last one.
  __host__ __device__ static int Rows(int64_t tokens) {
    return S::kTiles == 1 ? static_cast<int>(tokens) : 8 * S::kTiles;
  }

  // Fetches them through registers: waiting for an asynchronous copy would be waiting for all
  // weights requested before it.
  __device__ Activations(const GemmArguments& g, const Slice& slice, uint32_t shared,
                         TokenParameters<S>& parameters)
      : memory(shared), pitch(Pitch(slice.bytes())) {
    const int t = static_cast<int>(threadIdx.x);
    float scale = 0, zeta = 0;
    int32_t sum = 0;
    if (t < g.tokens) {
      scale = g.x_scales[t];
      if (g.x_zetas != nullptr) zeta = g.x_zetas[t];
      if (g.w_zeros != nullptr) sum = g.x_sums[t];
    }
    constexpr int kBatch = S::kTiles == 1 ? 4 : 8;  // loads under way at once
    const int8_t* const x = g.x + slice.begin * 128;
    const unsigned units = slice.bytes() / 16, count = units * static_cast<unsigned>(g.tokens);
    for (unsigned base = threadIdx.x; base < count; base += kBatch * kThreads) {
      uint4 v[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const unsigned i = base + j * kThreads, token = i / units, at = i % units * 16;
        if (i < count) v[j] = *reinterpret_cast<const uint4*>(x + token * g.stride + at);
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const unsigned i = base + j * kThreads, token = i / units, at = i % units * 16;
        if (i < count) StoreShared16(memory + token * pitch + at, v[j]);
      }
    }
    if (t < g.tokens) {
      parameters.scales[t] = scale;
      parameters.zetas[t] = zeta;
      parameters.sums[t] = sum;
    }
    __syncthreads();
  }

  // This lane's address for LoadMatrices at the first block. Lanes 0 to 15 address the halves of
  // one operand B, the others those of the next: of the next tile, or step if the tile is alone.
  __device__ uint32_t LaneAddress(int64_t tokens) const {
    const int lane = threadIdx.x % 32, token = lane % 8, half = lane / 8 % 2, next = lane / 16;
    if constexpr (S::kTiles == 1) {
      return memory + min(token, static_cast<int>(tokens) - 1) * pitch + next * 32 + half * 16;
    }
    return memory + (token + 8 * next) * pitch + half * 16;
  }
};

// Sums of one warp: operand D of mma.m16n8k32. With few tiles there are several, so that a product
// need not wait for the one before.
template <typename S>
struct Sums {
  static constexpr int kChains = S::kTiles == 1 ? 4 : S::kTiles == 2 ? 2 : 1;
  int32_t d[kChains][S::kTiles][4];

  // Tokens 2 q, 2 q + 1 of the tile for row g + 8 half.
  __device__ int2 Pair(int tile, int half) const {
    int2 v = {0, 0};
#pragma unroll
    for (int i = 0; i < kChains; ++i) v.x += d[i][tile][2 * half], v.y += d[i][tile][2 * half + 1];
    return v;
  }
};

// The ring's `stages` oldest stages; `lane_address` is that of the first one's activations.
template <int stages, typename S>
__device__ void Multiply(WeightRing<S>& ring, uint32_t lane_address, int pitch, Sums<S>& sums) {
  ring.template Await<stages>();
#pragma unroll
  for (int stage = 0; stage < stages; ++stage) {
    const uint32_t x = lane_address + stage * S::kSplits * 128;
    uint4 word;
    LevelSteps steps;
    if constexpr (S::kLevels) steps = ring.Steps(stage);
    uint32_t a[4], b[4];
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      if (S::kBits == 8 || step % 2 == 0) word = ring.Word(stage, step * S::kBits / 8);
      Fragment<S::kKind>(word, steps, step, a);
      auto& d = sums.d[(2 * stage + step % 2) % Sums<S>::kChains];
      if constexpr (S::kTiles == 1) {
        if (step % 2 == 0) LoadMatrices(x + step * 32, b);
        MmaS8(d[0], a, b[step % 2 * 2], b[step % 2 * 2 + 1]);
      } else {
#pragma unroll
        for (int tile = 0; tile < S::kTiles; tile += 2) {
          LoadMatrices(x + tile * 8 * pitch + step * 32, b);
          MmaS8(d[tile], a, b[0], b[1]);
          MmaS8(d[tile + 1], a, b[2], b[3]);
        }
      }
    }
  }
#pragma unroll
  for (int stage = 0; stage < stages; ++stage) ring.Request();
}

}  // namespace nibble::cuda::decode
