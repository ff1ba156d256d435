// SPDX-License-Identifier: Apache-2.0
// Products with fewer tiles than the GPU has pairs of blocks (gemm_sm90_tile.cuh): the pairs of a
// larger cluster, its splits, have a tile in common and a part of its inputs each. In the end every
// split adds up the sums of some tokens, those that the epilogue then stores.
#pragma once

#include "backends/cuda/gemm/gemm_sm90_tile.cuh"

namespace nibble::cuda::sm90 {

// The math warpgroups call this, while the cluster's other warps call WaitForSplits. Afterwards the
// sums of the chunks that this block stores are complete.
template <Epilogue kEpilogue, typename S, typename Sum, int kSums>
__device__ __forceinline__ void AddSplits(const Tiles& tiles, Shared<S>& s, Sum (&sums)[kSums]) {
  constexpr int kChunk = kChunkSums<kOfPlanes<kEpilogue>, typename S::Out>;
  static_assert(sizeof(Sum) * kSums * 256 == Shared<S>::kSumBytes);
  static_assert((kMaxSplits - 1) * Shared<S>::kSumBytes <= Shared<S>::kStages * S::kStageBytes);
  uint4* const received = reinterpret_cast<uint4*>(&s) + threadIdx.x;
  // The place of four sums that split `from` sends to split `to`.
  const auto slot = [&](int from, int to, int i) {
    const int place = (from - to - 1 + tiles.splits) % tiles.splits;
    return received + (place * kSums / 4 + i) * 256;
  };
  const int split = tiles.Split(), columns = tiles.columns - tiles.Place(tiles.first()).token;
  const auto owner = [&](int i) { return 4 * i / kChunk % tiles.splits; };
  ClusterSync();  // the stages of all blocks are free
#pragma unroll
  for (int i = 0; i < kSums / 4; ++i) {  // eight columns
    if (owner(i) == split || 8 * i >= columns) continue;
    StorePeer(PeerAddress(slot(split, owner(i), i), owner(i) * kPair + PairRank()),
              reinterpret_cast<const uint4&>(sums[4 * i]));
  }
  ClusterSync();
#pragma unroll
  for (int i = 0; i < kSums / 4; ++i) {
    if (owner(i) != split || 8 * i >= columns) continue;
    for (int from = 0; from < tiles.splits; ++from) {
      if (from == split) continue;
      const uint4 more = *slot(from, split, i);
      const Sum* const values = reinterpret_cast<const Sum*>(&more);
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[4 * i + j] += values[j];
    }
  }
}

}  // namespace nibble::cuda::sm90
