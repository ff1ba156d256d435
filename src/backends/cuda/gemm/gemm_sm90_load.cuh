// SPDX-License-Identifier: Apache-2.0
// How operands come to the blocks of prompt products (gemm_sm90_tile.cuh): the stages of a block's
// shared memory and what fills them.
#pragma once

#include <cuda.h>

#include "backends/cuda/gemm/gemm_epilogue.cuh"
#include "backends/cuda/gemm/gemm_sm90_tiles.cuh"
#include "backends/cuda/gemm/lattice_points.cuh"
#include "backends/cuda/ptx/ptx_sm90.h"

namespace nibble::cuda::sm90 {

inline constexpr int kSharedBytes = 227 * 1024;
inline constexpr int kTailBytes = 4096, kTailInputs = 32;  // of a step of a tail

// What a product has besides its operands: columns of codes of 8 bits, or of 16-bit weights, whose
// inputs are pairs (prepare_acts.h).
enum class Tail { kNone, kCodes, kPairs };

// tokens: of a stage. fine: blocks have scales of 2 or 4 pieces, not of one. x_groups: so have the
// tokens.
template <WeightKind kind, bool fine, int tokens, bool x_groups, typename Y,
          Tail tail = Tail::kNone>
struct Shape {
  using Out = Y;
  static constexpr Tail kTail = tail;
  static constexpr WeightKind kKind = kind;
  static constexpr bool kGroups = HasGroups(kind), kLevels = kind == WeightKind::kLevels;
  static constexpr int kTokens = tokens, kPieces = fine ? 4 : 1;  // at most
  static constexpr bool kFine = fine, kTokenScales = x_groups;
  static constexpr int kPointBits = PointBits(kind);
  static constexpr int kFactor = SumFactor(kind);
  static constexpr int kWords = CodeBits(kind) / 2;  // of 16 bytes, a thread's in a block
  static constexpr int kBlockBytes =                 // at most
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
  static constexpr int kMostStages = 8;
  static constexpr bool kCodes = S::kTail == Tail::kCodes;
  struct Rest {
    Staging<typename S::Out> staging[2];
    float tail_scales[kCodes ? S::kTokens : 1], tail_output_scales[kCodes ? kTileOutputs : 1];
    TileParameters parameters;
    uint64_t full[kMostStages], empty[kMostStages];  // kStages of each
    uint64_t parameters_full, parameters_empty;
  };
  using Points = cuda::Points<S::kPointBits, 16>;
  static constexpr int kFit = (kSharedBytes - sizeof(Rest) - Points::kTableBytes) / S::kStageBytes;
  static constexpr int kStages = kFit < kMostStages ? kFit : kMostStages;

  int8_t x[kStages][S::kTokens * kInputs];
  uint8_t w[kStages][2 * S::kBlockBytes];
  float scales[kStages][S::kScaleFloats > 0 ? S::kScaleFloats : 4];  // then zetas, [piece][token]
  Rest rest;

  __device__ Points points() { return Points(this + 1); }

  // In the end what other splits send takes the place of the stages: a tile's sums from each.
  static constexpr int kSumBytes = 4 * kTileOutputs * kHalfTokens;
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

// Asks for the scales, and zetas, of a step's pieces and tokens from `token` on.
template <typename S>
__device__ void LoadTokenScales(const GemmArguments& g, int k, int token, float* scales,
                                SharedAddress barrier) {
  constexpr int kBytes = S::kTokens * sizeof(float);
  const int last = static_cast<int>(g.cols) - 1;  // behind it any scales will do
  for (int i = 0; i < kInputs / g.piece; ++i) {
    const int input = min(k * kInputs + i * g.piece, last);
    const int64_t at = input / static_cast<int>(g.x_group) * g.x_pitch + token;
    BulkLoad(scales + i * S::kTokens, g.x_scales + at, kBytes, barrier);
    if (g.x_zetas == nullptr) continue;
    BulkLoad(scales + (S::kPieces + i) * S::kTokens, g.x_zetas + at, kBytes, barrier);
  }
}

__device__ __forceinline__ ProductTerms TermsOf(const GemmArguments& g, const Tiles& tiles,
                                                int tile, int product) {
  ProductTerms terms = g.product(product);
  if (tiles.experts.linears != nullptr) {
    terms.linear = tiles.experts.linears[tiles.Group(tile).expert];
  }
  return terms;
}

// What tensor copies read: activations in boxes of 128 bytes x 128 tokens; of a tail its own, and
// of pairs the weights of each product in boxes of 64 bytes x 64 outputs.
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

// The steps of a tile's tail: 4096 bytes of weights for each warpgroup, 64 codes or 32 numbers of
// 16 bits an output. There are as many as chunks of activations or twice that: codes have a chunk
// every other step, weights of fp16 come twice.
template <typename S>
__device__ void LoadTail(const Maps<S::kTail>& maps, const Tiles& tiles,
                         const Tiles::TilePlace& place, const ProductTerms& product, bool whole,
                         Ring<Shared<S>::kStages>& ring, Shared<S>& s) {
  constexpr bool kCodes = S::kTail == Tail::kCodes;
  const int rank = PairRank(), own = 1 << ClusterRank();
  const int both = ((1 << kPair) - 1) << (ClusterRank() - rank);
  const int last_block = static_cast<int>((product.rows - 1) / 64), block = place.output / 64;
  const int tokens = whole ? kTileTokens : kHalfTokens, part = whole ? rank : 0;
  for (int step = 0; step < tiles.tail_steps; ++step, ring.Advance()) {
    uint64_t* full = &s.rest.full[ring.stage];
    const bool with_x = !kCodes || step % 2 == 0;
    BarrierWait(&s.rest.empty[ring.stage], ring.parity ^ 1);
    BarrierArriveExpect(full, 2 * kTailBytes + (with_x ? tokens * kInputs : 0));
    const int chunk = kCodes ? step / 2 : step % tiles.tail_chunks;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint8_t* const to = s.w[ring.stage] + half * S::kBlockBytes;
      if constexpr (kCodes) {
        const int64_t at = int64_t{min(block + half, last_block)} * tiles.tail_steps + step;
        BulkLoad(to, product.linear.tail_w + at * kTailBytes, kTailBytes, full);
      } else {
        TensorLoad(to, maps.weights[place.product], chunk * 2 * kTailInputs, 64 * (block + half),
                   full, own);
      }
    }
    if (with_x && (whole || chunk % kPair == rank)) {
      TensorLoad(s.x[ring.stage] + part * kHalfTokens * kInputs, maps.tail, chunk * kInputs,
                 place.token + part * kHalfTokens, full, both);
    }
  }
}

template <typename S>
__device__ void Load(const Maps<S::kTail>& maps, const GemmArguments& g, const Tiles& tiles,
                     Shared<S>& s) {
  const int rank = PairRank(), block_bytes = S::BlockBytes(g);
  const int scale_bytes =
      S::kTokenScales ? kInputs / g.piece * S::kTokens * 4 * (g.x_zetas != nullptr ? 2 : 1) : 0;
  Ring<Shared<S>::kStages> ring;
  for (int tile = tiles.first(); tile < tiles.Count(); tile += tiles.stride()) {
    const auto place = tiles.Place(tile);
    const ProductTerms product = TermsOf(g, tiles, tile, place.product);
    const LinearTerms& linear = product.linear;
    const int last_block = static_cast<int>((product.rows - 1) / 64);
    const uint8_t* w[2];
    for (int half = 0; half < 2; ++half) {  // behind the last block any weights will do
      const bool up = half == 1 && g.up_w != nullptr;
      const int block = min(place.output / 64 + (up ? 0 : half), last_block);
      w[half] = (up ? linear.up_w : linear.w) + int64_t{block} * tiles.k_blocks * block_bytes;
    }
    const bool whole = S::kTokens == kTileTokens && tile < tiles.whole;
    for (int step = 0; step < tiles.steps; ++step, ring.Advance()) {
      const int k = tiles.first_step() + step;
      uint64_t* full = &s.rest.full[ring.stage];
      BarrierWait(&s.rest.empty[ring.stage], ring.parity ^ 1);
      const int tokens = whole ? kTileTokens : kHalfTokens;
      BarrierArriveExpect(full, 2 * block_bytes + tokens * kInputs + scale_bytes);
      const int64_t at = int64_t{min(k, tiles.k_blocks - 1)} * block_bytes;
      BulkLoad(s.w[ring.stage], w[0] + at, block_bytes, full);
      BulkLoad(s.w[ring.stage] + S::kBlockBytes, w[1] + at, block_bytes, full);
      const int part = whole ? rank : 0;  // a half is loaded by the two in turn
      if (whole || k % kPair == rank) {
        TensorLoad(s.x[ring.stage] + part * kHalfTokens * kInputs, maps.x, k * kInputs,
                   place.token + part * kHalfTokens, full,
                   ((1 << kPair) - 1) << (ClusterRank() - rank));
      }
      if constexpr (S::kTokenScales) {
        LoadTokenScales<S>(g, k, place.token, s.scales[ring.stage], full);
      }
    }
    if constexpr (S::kTail != Tail::kNone) {
      LoadTail<S>(maps, tiles, place, product, whole, ring, s);
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
