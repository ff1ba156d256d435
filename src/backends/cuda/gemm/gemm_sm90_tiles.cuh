// SPDX-License-Identifier: Apache-2.0
// The tiles that the prompt products of compute capability 9.0 are cut into (gemm_sm90_tile.cuh).
#pragma once

#include <algorithm>
#include <array>

#include "backends/cuda/gemm/gemm_epilogue.cuh"
#include "backends/cuda/ptx/ptx_sm90.h"

namespace nibble::cuda::sm90 {

inline constexpr int kInputs = 128;   // of a step
inline constexpr int kPair = 2;       // blocks that share activations
inline constexpr int kMaxSplits = 2;  // pairs of a cluster; more are no faster
inline constexpr int kBand = 8;       // token tiles that are walked through together, for L2's sake
inline constexpr int kHalfTokens = kTileTokens / 2, kQuarterTokens = kHalfTokens / 2;

__device__ __forceinline__ int PairRank() {
  return ClusterRank() % kPair;
}

// The tiles of a product, the first `whole` of them 256 tokens, the others `part`, which is half as
// many or a quarter, and those of them that this block computes.
//
//   halves      of the others, that follow from one place of 256 tokens; 1 where there is none
//   splits      if more than 1, all tiles are `part` and a cluster has one (gemm_sm90_split.cuh)
//   steps       of 128 inputs, of a split; at least 4 in tiles of 256, the last two special
//   tail_steps  further ones, of the tail's tail_chunks (gemm_sm90_load.cuh)
//
// Steps come in pairs; past the end of K the activations are zeros.
struct Tiles {
  int part, columns, token_tiles, output_pairs, block_outputs, k_blocks, halves, whole, count,
      splits, steps, tail_chunks, tail_steps;
  int joins, first_pairs[kMaxJoined - 1];  // of GemmArguments::joined among the pairs of outputs
  ExpertGroups experts;  // of a mixture: a group's tiles are halves, and `count` is but a bound

  __device__ int Count() const {
    return experts.linears == nullptr ? count : *experts.count * output_pairs;
  }
  __device__ const ExpertGroup& Group(int number) const {
    return experts.groups[number / output_pairs];
  }
  __device__ int first() const { return blockIdx.x / (kPair * splits); }
  __device__ int stride() const { return gridDim.x / (kPair * splits); }
  __device__ int Split() const { return ClusterRank() / kPair; }
  __device__ int first_step() const { return Split() * steps; }
  struct TilePlace {
    int token, output, product;  // the first two of the tile; output of GemmArguments::product
  };
  __device__ TilePlace Place(int number) const {
    if (experts.linears != nullptr) {
      return {Group(number).first, (number % output_pairs * kPair + PairRank()) * block_outputs, 0};
    }
    const int half = max(0, number - whole), tile = min(number, whole) + half / halves;
    const int band = tile / (kBand * output_pairs) * kBand;
    const int height = min(token_tiles - band, kBand);
    const int in_band = tile - band * output_pairs;
    int pair = in_band / height, product = 0;
    while (product < joins && in_band / height >= first_pairs[product]) {
      pair = in_band / height - first_pairs[product++];
    }
    return {((band + in_band % height) * halves + half % halves) * part,
            (pair * kPair + PairRank()) * block_outputs, product};
  }
};

// The tiles of g in the fewest rounds of a grid of max_split[0] pairs of blocks, where a round of
// halves takes kHalfRound of one. A half without tokens costs as much as any: where few rows leave
// many such halves, all tiles are halves.
//
// Tiles are split where a grid of max_split[s - 1] pairs in clusters of s has room for each s
// times. tokens: of the largest tiles of the kernel; kQuarterTokens are not halved.
inline Tiles TilesOf(const GemmArguments& g, int tokens,
                     const std::array<int, kMaxSplits>& max_split) {
  const int max = max_split[0], part = std::min(tokens, kHalfTokens);
  const bool whole_tiles = tokens == kTileTokens;
  constexpr double kHalfRound = 0.57;
  constexpr int kMinSteps = 4;  // of a split
  const auto parts = [](int64_t size, int64_t part) {
    return static_cast<int>((size + part - 1) / part);
  };
  const int outputs = g.up_w != nullptr ? kTileOutputs / 2 : kTileOutputs;
  const auto pairs = [&](int64_t rows) { return parts(rows, kPair * outputs); };
  Tiles tiles = {.part = part,
                 .columns = static_cast<int>(g.x_rows()),
                 .token_tiles = parts(g.x_rows(), kTileTokens),
                 .output_pairs = pairs(g.rows),
                 .block_outputs = outputs,
                 .k_blocks = parts(g.cols, kInputs),
                 .halves = kTileTokens / kHalfTokens,
                 .splits = 1,
                 .tail_chunks = static_cast<int>(g.tail.stride / kInputs),
                 .joins = g.joins};
  const bool twice = g.tail.x_scales != nullptr || g.tail.w_type != WeightType::kBfloat16;
  tiles.tail_steps = (twice ? 2 : 1) * tiles.tail_chunks;
  for (int i = 0; i < g.joins; ++i) {
    tiles.first_pairs[i] = tiles.output_pairs;
    tiles.output_pairs += pairs(g.joined[i].rows);
  }
  if (g.experts.linears != nullptr) {
    tiles.experts = g.experts, tiles.halves = 1;
    tiles.count = g.experts.max * tiles.output_pairs;
    tiles.steps = 2 * parts(tiles.k_blocks, 2);
    return tiles;
  }
  const int all = tiles.token_tiles * tiles.output_pairs, left = all % max;
  const bool halve_last = 2 * left <= max;
  const double last_round = left == 0 ? 0 : halve_last ? kHalfRound : 1;
  const int token_halves = parts(g.x_rows(), part);
  const double half_rounds = kHalfRound * parts(token_halves * tiles.output_pairs, max);
  if (token_halves == 1 || part == kQuarterTokens ||
      (whole_tiles && half_rounds < all / max + last_round)) {
    tiles.token_tiles = token_halves, tiles.halves = 1;
    tiles.count = token_halves * tiles.output_pairs;
  } else {
    tiles.whole = !whole_tiles ? 0 : halve_last ? all - left : all;
    tiles.count = all + (all - tiles.whole);
  }
  const auto steps = [&](int splits) { return 2 * parts(tiles.k_blocks, 2 * splits); };
  for (int splits = kMaxSplits; splits > 1; --splits) {
    const bool fits = tiles.count * splits <= max_split[splits - 1];
    if (fits && g.tail.x == nullptr && tiles.whole == 0 && steps(splits) >= kMinSteps) {
      tiles.splits = splits;
      break;
    }
  }
  tiles.steps = std::max(tiles.whole > 0 ? 4 : 2, steps(tiles.splits));
  return tiles;
}

}  // namespace nibble::cuda::sm90
