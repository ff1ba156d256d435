// SPDX-License-Identifier: Apache-2.0
// How the prompt products of compute capability 9.0 are cut into tiles (gemm_sm90_tile.cuh).
#pragma once

#include "backends/cuda/gemm/gemm_epilogue.cuh"
#include "backends/cuda/ptx/ptx_sm90.h"

namespace nibble::cuda::sm90 {

inline constexpr int kInputs = 128;  // of a step
inline constexpr int kPair = 2;      // blocks of a cluster
inline constexpr int kBand = 8;      // token tiles that are walked through together, for L2's sake
inline constexpr int kHalfTokens = kTileTokens / 2;

// The tiles of a product, the first `whole` of them 256 tokens, the others half as many, and those
// of them that this block computes. halves: how many of the others follow from one place of 256
// tokens; 1 where there is none of 256.
struct Tiles {
  int token_tiles, output_pairs, block_outputs, k_blocks, halves, whole, count;

  __device__ int first() const { return blockIdx.x / kPair; }
  __device__ int stride() const { return gridDim.x / kPair; }
  // Of 128 inputs, in pairs; at least 4, since the last two are special. Past the end of K the
  // activations are zeros.
  __device__ int steps() const { return max(4, (k_blocks + 1) / 2 * 2); }
  // First token and first output.
  __device__ int2 Place(int number) const {
    const int half = max(0, number - whole), tile = min(number, whole) + half / halves;
    const int band = tile / (kBand * output_pairs) * kBand;
    const int height = min(token_tiles - band, kBand);
    const int in_band = tile - band * output_pairs;
    return {(band + in_band % height) * halves * kHalfTokens + half % halves * kHalfTokens,
            (in_band / height * kPair + ClusterRank()) * block_outputs};
  }
};

// Those of g in the fewest rounds of a grid of `most` pairs of blocks, where one of halves takes a
// little more than half the time. A half without tokens costs as much as any: where few rows leave
// many such, all tiles are halves. whole_tiles: the kernel has tiles of 256 tokens.
inline Tiles TilesOf(const GemmArguments& g, bool whole_tiles, int most) {
  constexpr double kHalfRound = 0.57;
  const auto parts = [](int64_t size, int64_t part) {
    return static_cast<int>((size + part - 1) / part);
  };
  const int outputs = g.up_w != nullptr ? kTileOutputs / 2 : kTileOutputs;
  Tiles tiles = {.token_tiles = parts(g.x_rows(), kTileTokens),
                 .output_pairs = parts(g.rows, kPair * outputs),
                 .block_outputs = outputs,
                 .k_blocks = parts(g.cols, kInputs),
                 .halves = kTileTokens / kHalfTokens};
  const int all = tiles.token_tiles * tiles.output_pairs, left = all % most;
  const bool halve_last = 2 * left <= most;
  const double last_round = left == 0 ? 0 : halve_last ? kHalfRound : 1;
  const int token_halves = parts(g.x_rows(), kHalfTokens);
  const double half_rounds = kHalfRound * parts(token_halves * tiles.output_pairs, most);
  if (token_halves == 1 || (whole_tiles && half_rounds < all / most + last_round)) {
    tiles.token_tiles = token_halves, tiles.halves = 1;
    tiles.count = token_halves * tiles.output_pairs;
  } else {
    tiles.whole = !whole_tiles ? 0 : halve_last ? all - left : all;
    tiles.count = all + (all - tiles.whole);
  }
  return tiles;
}

}  // namespace nibble::cuda::sm90
