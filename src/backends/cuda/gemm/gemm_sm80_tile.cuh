// SPDX-License-Identifier: Apache-2.0
// The tiles of gemm_sm80.cu in shared memory and in registers.
//
// A stage holds 128 inputs: weights in the order of weight_order.h, activations as rows of 128
// bytes, unit u of 16 bytes of row r at u ^ (r % 8), so that neither copies nor ldmatrix have bank
// conflicts.
//
// Products of two 4-bit codes want eight codes in a register. Their order along the inputs is free
// as long as both operands share it: a register of 4 bytes and the one 16 inputs further become its
// low and high nibbles, two instructions for eight codes on either side.
#pragma once

#include <type_traits>

#include "backends/cuda/gemm/gemm_scales.cuh"
#include "backends/cuda/gemm/level_steps.cuh"
#include "backends/cuda/ptx/ptx.h"

namespace nibble::cuda::sm80 {

inline constexpr int kInputs = 128;                      // of a stage
inline constexpr int kOutputWarps = 4, kTokenWarps = 2;  // of a block
inline constexpr int kWarps = kOutputWarps * kTokenWarps;
inline constexpr int kThreads = 32 * kWarps;
inline constexpr int kChunk = 16;  // tokens of a warp that are stored together

// Bits of weights and of activations; kL4S8: with two levels of scales; kP: codewords of 2 to 4
// bits.
enum class Codes { kS4S4, kS4S8, kS8S8, kL4S8, kP2S8, kP3S8, kP4S8 };
constexpr Codes CodewordCodesOf(WeightKind kind) {
  return static_cast<Codes>(static_cast<int>(Codes::kP2S8) + CodewordBits(kind) - 2);
}

template <Codes codes, int outputs, int tokens, int min_blocks, bool groups = false>
struct Shape {
  static constexpr Codes kCodes = codes;
  static constexpr bool kGroups = groups;
  using Sum = std::conditional_t<groups, float, int32_t>;
  static constexpr int kOutputs = outputs, kTokens = tokens;  // of a block
  static constexpr int kMinBlocks = min_blocks;               // per multiprocessor
  static constexpr int kWarpOutputs = outputs / kOutputWarps, kWarpTokens = tokens / kTokenWarps;
  static constexpr int kOutputTiles = kWarpOutputs / 16, kTokenTiles = kWarpTokens / 8;
  static constexpr int kCodewordBits =
      codes < Codes::kP2S8 ? 0 : 2 + static_cast<int>(codes) - static_cast<int>(Codes::kP2S8);
  static constexpr int kWeightBits = codes == Codes::kS8S8 ? 8
                                     : kCodewordBits > 0   ? kCodewordBits
                                                           : 4;
  // The shift that undoes the factors in sums: 16 for nibbles, 8 for codewords of 2 bits.
  static constexpr int kShift = codes == Codes::kS4S8 ? 4 : codes == Codes::kP2S8 ? 3 : 0;
  static constexpr int kBlockBytes = 64 * kInputs * kWeightBits / 8;
  static constexpr bool kLevels = codes == Codes::kL4S8, kScales = groups || kLevels;
  // Bytes of a block in a stage: codes, and the most that lies behind them (BlockScales).
  static constexpr int kStageBlock =
      kBlockBytes + (kScales ? BlockScales{4, groups&& kWeightBits == 4}.bytes() : 0);
  static constexpr int kStages = kWeightBits <= 4 ? 3 : 2;
  // The half of a stage before which the next copies are requested. Early ones keep the first
  // operands of the stage waiting; with two stages that is better than late ones.
  static constexpr int kRequestAt = kStages == 2 ? 0 : 1;
  static constexpr int kPitch = kWarpOutputs + 4;  // ints; no bank conflicts
};

template <typename S>
struct Stage {
  alignas(16) uint8_t w[S::kOutputs / 64 * S::kStageBlock];
  int8_t x[S::kTokens * kInputs];
};

template <typename S>
struct Shared {
  union {
    Stage<S> stages[S::kStages];
    typename S::Sum sums[kWarps][kChunk * S::kPitch];  // on their way to y
  };
  struct {
    float scales[S::kTokens], zero_offsets[S::kTokens];
    int32_t sums[S::kTokens];
  } tokens;
};

// The place of a block in y, and of a warp in the block.
struct Place {
  int token, output;  // the block's first column, a token or one of its planes; and output
  int output_warp = threadIdx.x / 32 % kOutputWarps, token_warp = threadIdx.x / 32 / kOutputWarps;
};

// Fills the stages, one after the other, one request each for every thread.
template <typename S>
class Loader {
 public:
  __device__ Loader(const GemmArguments& g, const Place& place, Stage<S>* stages)
      : stages_(stages),
        k_blocks_(static_cast<int>((g.cols + kInputs - 1) / kInputs)),
        block_bytes_(S::kScales ? g.block_bytes() : S::kBlockBytes) {
    const int row = threadIdx.x / 8, unit = threadIdx.x % 8;
    const int last_block = static_cast<int>((g.rows - 1) / 64);
    // Behind the last output or column any codes will do; nobody stores those sums.
    const int last_row = static_cast<int>(g.planes() ? PlaneRow(g.tokens - 1) + 8 : g.tokens - 1);
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      const int64_t block = min(place.output / 64 + i, last_block);
      w_[i] = g.w + block * k_blocks_ * block_bytes_ + threadIdx.x * 16;
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int64_t column = min(place.token + row + 32 * i, last_row);
      x_[i] = g.x + column * g.stride + unit * 16;
    }
    x_at_ = row * kInputs + (unit ^ row % 8) * 16;
  }

  __device__ int k_blocks() const {
    return k_blocks_;
  }

  // Requests the next 128 inputs, if there are any, into the stage that was filled kStages ago.
  __device__ void Request() {
    if (next_ < k_blocks_) {
      Stage<S>& stage = stages_[stage_];
      const SharedAddress w(stage.w + threadIdx.x * 16), x(stage.x + x_at_);
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        const uint8_t* from = w_[i] + int64_t{next_} * block_bytes_;
#pragma unroll
        for (int at = 0; at < S::kBlockBytes; at += kThreads * 16) {
          constexpr bool kWhole = S::kBlockBytes % (kThreads * 16) == 0;
          if (!kWhole && at + threadIdx.x * 16 >= S::kBlockBytes) continue;
          CopyAsync16(w + i * S::kStageBlock + at, from + at);
        }
        if (S::kScales && S::kBlockBytes + threadIdx.x * 16 < block_bytes_) {
          CopyAsync16(w + i * S::kStageBlock + S::kBlockBytes, from + S::kBlockBytes);
        }
      }
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        CopyAsync16(x + i * 32 * kInputs, x_[i] + int64_t{next_} * kInputs);
      }
    }
    CopyAsyncCommit();
    ++next_;
    if (++stage_ == S::kStages) stage_ = 0;
  }

 private:
  static constexpr int kBlocks = S::kOutputs / 64, kRows = S::kTokens / 32;

  Stage<S>* const stages_;
  const int k_blocks_, block_bytes_;
  int next_ = 0, stage_ = 0;
  const uint8_t* w_[kBlocks];
  const int8_t* x_[kRows];
  int x_at_;
};

// Low nibbles of the bytes of `low`, then those of `high`.
__device__ __forceinline__ uint32_t LowNibbles(uint32_t low, uint32_t high) {
  return Select(0x0F0F0F0Fu, low, high << 4);
}
__device__ __forceinline__ uint32_t HighNibbles(uint32_t low, uint32_t high) {
  return Select(0x0F0F0F0Fu, low >> 4, high);
}

// A warp's sums: operands D of mma, outputs x tokens.
template <typename S>
using IntegerSums = int32_t[S::kOutputTiles][S::kTokenTiles][4];
// IntegerSums or, with groups, fp32 sums that contain the scales of groups.
template <typename S>
using Sums = typename S::Sum[S::kOutputTiles][S::kTokenTiles][4];

// A warp's view of a stage.
template <typename S>
class Operands {
 public:
  // pieces: of a block with two levels of scales.
  __device__ Operands(const Stage<S>& stage, const Place& place, int pieces = 0) : pieces_(pieces) {
    const int lane = threadIdx.x % 32, tile = place.output_warp * S::kOutputTiles;
    const uint32_t block = SharedAddress(stage.w) + tile / 4 * S::kStageBlock;
    w_ = block + tile % 4 * 512 + lane * 16;
    steps_ = block + S::kBlockBytes + (tile % 4 * 8 + lane / 4) * 4 * pieces;
    const bool s4 = S::kCodes == Codes::kS4S4;
    const int row = place.token_warp * S::kWarpTokens + lane % 8 + (s4 ? 0 : lane / 16 * 8);
    const int unit = s4 ? lane / 8 : lane / 8 % 2;
    x_ = SharedAddress(stage.x) + row * kInputs + (unit ^ lane % 8) * 16;
  }

  // The at-th 64 (4 bits) or 32 inputs of the weights of 16 outputs.
  __device__ uint4 Weights(int at, int output_tile) const {
    return LoadShared16(w_ + at * 2048 + output_tile * 512);
  }
  // The word that holds the at-th 32 inputs.
  __device__ uint4 WordOf(int at, int output_tile) const {
    return Weights(at * S::kWeightBits / 8, output_tile);
  }
  // The steps by which the nibbles of WordOf become bytes.
  __device__ LevelSteps StepsOf(int at, int output_tile) const {
    if constexpr (!S::kLevels) return {};
    return LevelSteps(LoadShared4(steps_ + (output_tile * 8 * pieces_ + at * pieces_ / 4) * 4));
  }
  // The at-th 64 inputs of the activations of 8 tokens, or 32 inputs of 16 tokens.
  __device__ void LoadActivations(int at, int token_tile, uint32_t (&b)[4]) const {
    constexpr int kBytes = S::kCodes == Codes::kS4S4 ? 64 : 32;
    LoadMatrices((x_ ^ at * kBytes) + token_tile * 8 * kInputs, b);
  }

 private:
  const int pieces_;
  uint32_t w_, x_, steps_;
};

// Adds the products of 64 inputs, the first or second half of a stage.
template <typename S>
__device__ __forceinline__ void MultiplyNibbles(const Operands<S>& operands, int half,
                                                IntegerSums<S>& sums) {
  uint32_t a[S::kOutputTiles][4], b[4];
#pragma unroll
  for (int i = 0; i < S::kOutputTiles; ++i) {
    const uint4 w = operands.Weights(half, i);
    a[i][0] = LowNibbles(w.x, w.y), a[i][1] = HighNibbles(w.x, w.y);
    a[i][2] = LowNibbles(w.z, w.w), a[i][3] = HighNibbles(w.z, w.w);
  }
#pragma unroll
  for (int j = 0; j < S::kTokenTiles; ++j) {
    operands.LoadActivations(half, j, b);
    const uint32_t b0 = LowNibbles(b[0], b[1]), b1 = LowNibbles(b[2], b[3]);
#pragma unroll
    for (int i = 0; i < S::kOutputTiles; ++i) MmaS4(sums[i][j], a[i], b0, b1);
  }
}

// Adds the products of the at-th 32 inputs.
template <typename S>
__device__ __forceinline__ void MultiplyStep(const Operands<S>& operands, int at,
                                             const uint32_t (&a)[S::kOutputTiles][4],
                                             IntegerSums<S>& sums) {
#pragma unroll
  for (int j = 0; j < S::kTokenTiles; j += 2) {
    uint32_t b[4];
    operands.LoadActivations(at, j, b);
#pragma unroll
    for (int i = 0; i < S::kOutputTiles; ++i) {
      MmaS8(sums[i][j], a[i], b[0], b[1]);
      MmaS8(sums[i][j + 1], a[i], b[2], b[3]);
    }
  }
}

// MultiplyNibbles where activations have more than 4 bits. 4-bit weights come in the high halves of
// bytes: 16 times their codes.
template <typename S>
__device__ __forceinline__ void MultiplyBytes(const Operands<S>& operands, int half,
                                              Sums<S>& sums) {
  uint4 w[S::kOutputTiles];
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    const int at = 2 * half + step;
    uint32_t a[S::kOutputTiles][4];
#pragma unroll
    for (int i = 0; i < S::kOutputTiles; ++i) {
      if (S::kWeightBits == 8 || step == 0) w[i] = operands.WordOf(at, i);
      constexpr auto kWidening = S::kLevels ? Widening::kSteps : Widening::kShift;
      Fragment<S::kWeightBits, kWidening>(w[i], operands.StepsOf(at, i), at, a[i]);
    }
    MultiplyStep(operands, at, a, sums);
  }
}

}  // namespace nibble::cuda::sm80
