// SPDX-License-Identifier: Apache-2.0
// Loading of operands for the blocks of prompt products (gemm_sm90_tile.cuh): the stages of a
// block's shared memory and the lanes that fill them.
#pragma once

#include <cuda.h>

#include "backends/cuda/gemm/gemm_epilogue.cuh"
#include "backends/cuda/gemm/gemm_sm90_tiles.cuh"
#include "backends/cuda/gemm/lattice_codewords.cuh"
#include "backends/cuda/ptx/ptx_sm90.h"

namespace nibble::cuda::sm90 {

inline constexpr int kSharedBytes = 227 * 1024;
inline constexpr int kTailBytes = 4096, kTailInputs = 32;  // per step of a tail

// The tail of a product: columns of 8-bit codes, or of 16-bit weights, whose inputs are pairs
// (prepare_acts.h).
enum class Tail { kNone, kCodes, kPairs };

// tokens: of a stage. fine: blocks have scales of 2 or 4 pieces, not of one. x_groups: tokens have
// groups.
template <WeightKind kind, bool fine, int tokens, bool x_groups, typename Y,
          Tail tail = Tail::kNone>
struct Shape {
  using Out = Y;
  static constexpr Tail kTail = tail;
  static constexpr WeightKind kKind = kind;
  static constexpr bool kGroups = HasGroups(kind), kLevels = kind == WeightKind::kLevels;
  static constexpr int kTokens = tokens, kPart = std::min(tokens, kHalfTokens);  // Tiles::part
  static constexpr int kPieces = fine ? 4 : 1;                                   // at most
  static constexpr bool kFine = fine, kTokenScales = x_groups;
  static constexpr int kCodewordBits = CodewordBits(kind);
  static constexpr int kFactor = SumFactor(kind);
  static constexpr bool kSparse = IsSparse(kind);
  static constexpr int kWords = StoredCodeBytes(kind) / 2048;  // of 16 bytes, a thread's in a block
  static constexpr int kBlockBytes =                           // at most
      CodeBytes(kind) +
      BlockScales{kLevels || kGroups ? kPieces : 0, kind == WeightKind::kNibbleGroups}.bytes();
  static constexpr int kScaleFloats = x_groups ? 2 * kPieces * tokens : 0;
  static constexpr int kStageBytes = tokens * kInputs + 2 * kBlockBytes + 4 * kScaleFloats;

  // Bytes of a block in memory; a constant where it can be.
  static __device__ int BlockBytes(const GemmArguments& g) {
    return kFine || kGroups ? g.block_bytes() : kBlockBytes;
  }
};

template <typename S>
struct Shared {
  static constexpr int kMaxStages = 8;
  static constexpr bool kCodes = S::kTail == Tail::kCodes;
  struct Rest {
    Staging<typename S::Out> staging[2];
    float tail_scales[kCodes ? S::kTokens : 1], tail_output_scales[kCodes ? kTileOutputs : 1];
    TileParameters parameters;
    uint64_t full[kMaxStages], empty[kMaxStages];  // kStages of each
    uint64_t parameters_full, parameters_empty;
  };
  using Codewords = cuda::Codewords<S::kCodewordBits, 16>;
  static constexpr int kFit =
      (kSharedBytes - sizeof(Rest) - Codewords::kTableBytes) / S::kStageBytes;
  static constexpr int kStages = kFit < kMaxStages ? kFit : kMaxStages;

  int8_t x[kStages][S::kTokens * kInputs];
  uint8_t w[kStages][2 * S::kBlockBytes];
  float scales[kStages]
              [S::kScaleFloats > 0 ? S::kScaleFloats : 4];  // then zero offsets, [piece][token]
  Rest rest;

  __device__ Codewords codewords() { return Codewords(this + 1); }

  // In the end the sums of other splits take the place of the stages: a tile's sums from each.
  static constexpr int kSumBytes = 4 * kTileOutputs * S::kPart;
};

// A place in the ring of stages.
template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void Advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

__device__ __forceinline__ ProductTerms TermsOf(const GemmArguments& g, const Tiles& tiles,
                                                int tile, int product) {
  ProductTerms terms = g.product(product);
  if (tiles.experts.linears != nullptr) {
    terms.linear = tiles.experts.linears[tiles.Group(tile).expert];
  }
  return terms;
}

// The maps of tensor copies: activations in boxes of 128 bytes x Shape::kPart tokens; with a tail,
// its activations, too; with pairs, the weights of each product in boxes of 64 bytes x 64 outputs.
template <Tail kTail>
struct Maps {
  CUtensorMap x;
};
template <>
struct Maps<Tail::kCodes> {
  CUtensorMap x, tail;
};
template <>
struct Maps<Tail::kPairs> {
  CUtensorMap x, tail, weights[kMaxJoined];
};

// Each of these operands has a lane that loads it: a single lane for all held up products in groups
// and of few tokens.
enum class Operand { kInputs, kWeights, kScales };

// A lane's side of the ring: its part of the next stage, once that is free.
template <typename S>
struct Filling {
  Shared<S>& s;
  Ring<Shared<S>::kStages> ring = {};

  // The barrier that counts the stage's bytes.
  __device__ SharedAddress Wait() const {
    BarrierWait(&s.rest.empty[ring.stage], ring.parity ^ 1);
    return &s.rest.full[ring.stage];
  }
  __device__ uint8_t* weights(int half) const { return s.w[ring.stage] + half * S::kBlockBytes; }
};

// Loads a chunk of 128 bytes of a tile's inputs for both blocks of a pair: each block loads half of
// the tokens or, if the tile is not whole, every other chunk.
template <typename S>
__device__ __forceinline__ void LoadInputs(Filling<S>& to, const CUtensorMap& map, int chunk,
                                           int token, bool whole, SharedAddress full) {
  const int rank = PairRank(), part = whole ? rank : 0;
  if (!whole && chunk % kPair != rank) return;
  TensorLoad(to.s.x[to.ring.stage] + part * S::kPart * kInputs, map, chunk * kInputs,
             token + part * S::kPart, full, ((1 << kPair) - 1) << (ClusterRank() - rank));
}

// Loads the scales and zero offsets of a tile's steps, piece by piece. Behind the last group any
// values will do.
template <typename S>
__device__ void LoadTokenScales(const GemmArguments& g, const Tiles& tiles, int token,
                                Filling<S>& to) {
  constexpr int kBytes = S::kTokens * sizeof(float);
  const int length = static_cast<int>(g.x_group), pieces = kInputs / g.piece;
  const int groups = (static_cast<int>(g.cols) + length - 1) / length;
  int group = tiles.first_step() * kInputs / length;
  int left = (group + 1) * length - tiles.first_step() * kInputs;
  for (int step = 0; step < tiles.steps; ++step, to.ring.Advance()) {
    const SharedAddress full = to.Wait();
    float* const scales = to.s.scales[to.ring.stage];
    for (int i = 0; i < pieces; ++i) {
      const int64_t at = min(group, groups - 1) * g.x_pitch + token;
      BulkLoad(scales + i * S::kTokens, g.x_scales + at, kBytes, full);
      if (g.x_zero_offsets != nullptr) {
        BulkLoad(scales + (S::kPieces + i) * S::kTokens, g.x_zero_offsets + at, kBytes, full);
      }
      left -= g.piece;
      if (left == 0) ++group, left = length;
    }
  }
}

// Loads the steps of a tile's tail: 4096 bytes of weights for each warpgroup, 64 codes or 32
// numbers of 16 bits per output. There are as many steps as chunks of activations or twice that:
// codes have a chunk every other step, weights of fp16 come twice.
template <Operand kOperand, typename S>
__device__ void LoadTail(const Maps<S::kTail>& maps, const Tiles& tiles,
                         const Tiles::TilePlace& place, const ProductTerms& product, bool whole,
                         Filling<S>& to) {
  constexpr bool kCodes = S::kTail == Tail::kCodes;
  const int last_block = static_cast<int>((product.rows - 1) / 64), block = place.output / 64;
  const int tokens = whole ? kTileTokens : S::kPart;
  for (int step = 0; step < tiles.tail_steps; ++step, to.ring.Advance()) {
    const SharedAddress full = to.Wait();
    const int chunk = kCodes ? step / 2 : step % tiles.tail_chunks;
    if constexpr (kOperand == Operand::kInputs) {
      const bool with_x = !kCodes || step % 2 == 0;
      BarrierArriveExpect(full, 2 * kTailBytes + (with_x ? tokens * kInputs : 0));
      if (with_x) LoadInputs(to, maps.tail, chunk, place.token, whole, full);
    }
    if constexpr (kOperand == Operand::kWeights) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if constexpr (kCodes) {
          const int64_t at = int64_t{min(block + half, last_block)} * tiles.tail_steps + step;
          BulkLoad(to.weights(half), product.linear.tail_w + at * kTailBytes, kTailBytes, full);
        } else {
          TensorLoad(to.weights(half), maps.weights[place.product], chunk * 2 * kTailInputs,
                     64 * (block + half), full, 1 << ClusterRank());
        }
      }
    }
  }
}

template <typename S>
__device__ void LoadWeights(const GemmArguments& g, const Tiles& tiles,
                            const Tiles::TilePlace& place, const ProductTerms& product,
                            Filling<S>& to) {
  const int block_bytes = S::BlockBytes(g);
  const int last_block = static_cast<int>((product.rows - 1) / 64);
  const uint8_t* w[2];
  for (int half = 0; half < 2; ++half) {  // behind the last block any weights will do
    const bool up = half == 1 && g.up_w != nullptr;
    const int block = min(place.output / 64 + (up ? 0 : half), last_block);
    w[half] = (up ? product.linear.up_w : product.linear.w) +
              (int64_t{block} * tiles.k_blocks + tiles.first_step()) * block_bytes;
  }
  int left = tiles.k_blocks - tiles.first_step();
  for (int step = 0; step < tiles.steps; ++step, to.ring.Advance()) {
    const SharedAddress full = to.Wait();
    BulkLoad(to.weights(0), w[0], block_bytes, full);
    BulkLoad(to.weights(1), w[1], block_bytes, full);
    if (--left <= 0) continue;  // behind the last input the last block repeats
    w[0] += block_bytes, w[1] += block_bytes;
  }
}

// One lane for each operand calls this.
template <Operand kOperand, typename S>
__device__ void Load(const Maps<S::kTail>& maps, const GemmArguments& g, const Tiles& tiles,
                     Shared<S>& s) {
  const int scale_bytes =
      S::kTokenScales ? kInputs / g.piece * S::kTokens * 4 * (g.x_zero_offsets != nullptr ? 2 : 1)
                      : 0;
  const int step_bytes = 2 * S::BlockBytes(g) + scale_bytes;
  Filling<S> to = {s};
  for (int tile = tiles.first(); tile < tiles.Count(); tile += tiles.stride()) {
    const auto place = tiles.Place(tile);
    const ProductTerms product = TermsOf(g, tiles, tile, place.product);
    const bool whole = S::kTokens == kTileTokens && tile < tiles.whole;
    if constexpr (kOperand == Operand::kInputs) {
      const int bytes = step_bytes + (whole ? kTileTokens : S::kPart) * kInputs;
      for (int step = 0; step < tiles.steps; ++step, to.ring.Advance()) {
        const SharedAddress full = to.Wait();
        BarrierArriveExpect(full, bytes);
        LoadInputs(to, maps.x, tiles.first_step() + step, place.token, whole, full);
      }
    }
    if constexpr (kOperand == Operand::kWeights) LoadWeights(g, tiles, place, product, to);
    if constexpr (kOperand == Operand::kScales) LoadTokenScales(g, tiles, place.token, to);
    if constexpr (S::kTail != Tail::kNone) {
      LoadTail<kOperand>(maps, tiles, place, product, whole, to);
    }
  }
}

template <typename S>
__device__ void Prepare(const GemmArguments& g, const Tiles& tiles, Shared<S>& s) {
  uint32_t parity = 1;
  for (int tile = tiles.first(); tile < tiles.Count(); tile += tiles.stride(), parity ^= 1) {
    const auto place = tiles.Place(tile);
    BarrierWait(&s.rest.parameters_empty, parity);
    const ProductTerms product = TermsOf(g, tiles, tile, place.product);
    LoadParameters<typename S::Out, S::kFactor>(g, product, place.token, place.output,
                                                s.rest.parameters);
    if constexpr (S::kTail == Tail::kCodes) {
      const int lane = threadIdx.x % 32;
      for (int i = lane; i < S::kTokens; i += 32) {
        s.rest.tail_scales[i] = g.tail.x_scales[min(int64_t{place.token + i}, g.tokens - 1)];
      }
      for (int i = lane; i < kTileOutputs; i += 32) {
        const int64_t n = min(int64_t{place.output + i}, product.rows - 1);
        s.rest.tail_output_scales[i] = product.linear.tail_scales[n];
      }
    }
    if (threadIdx.x % 32 == 0) {
      if (tiles.experts.linears != nullptr) {
        s.rest.parameters.end = place.token + tiles.Group(tile).rows;
      }
      s.rest.parameters.split = tiles.Split(), s.rest.parameters.splits = tiles.splits;
    }
    BarrierArrive(&s.rest.parameters_full);
  }
}

}  // namespace nibble::cuda::sm90
