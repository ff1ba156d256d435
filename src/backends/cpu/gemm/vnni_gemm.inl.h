// SPDX-License-Identifier: Apache-2.0
// Products on vpdpbusd, of two vectors of outputs at a time: per four inputs 2 weight loads and
// Vector::kRows broadcasts feed 2 kRows instructions, so neither load port nor latency limits. The
// weights (unsigned) sit in registers, the activations (signed) are broadcast from memory, as
// vpdpbusd wants them.
//
// A Vector has the type V of kOutputs sums, as many as a panel or half of them, kRows <= 12, the
// tokens whose sums fit into the registers beside two vectors of weights, and the operations below.
#pragma once

#include "backends/cpu/gemm/int_kernels.h"

namespace nibble::cpu {
namespace {

// Two vectors of outputs: their weights of the first four inputs, and their sums of the tile's
// first row.
struct VnniPair {
  const uint8_t *b0, *b1;
  int32_t *c0, *c1;
};

template <typename Vector, int R>
__attribute__((noinline)) void VnniBlock(const GemmTile& t, int64_t row, VnniPair p) {
  using V = typename Vector::V;
  const int8_t* a = t.a + row * t.a_stride;
  p.c0 += row * kTileOutputs, p.c1 += row * kTileOutputs;
  V sums[R][2];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    sums[r][0] = t.accumulate ? Vector::Load(p.c0 + r * kTileOutputs) : Vector::Zero();
    sums[r][1] = t.accumulate ? Vector::Load(p.c1 + r * kTileOutputs) : Vector::Zero();
  }
  for (int64_t k = 0; k < t.k; k += 4) {
    const V w0 = Vector::Load(p.b0 + k * kPanel), w1 = Vector::Load(p.b1 + k * kPanel);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const V x = Vector::Broadcast(a + r * t.a_stride + k);
      sums[r][0] = Vector::Dot(sums[r][0], w0, x);
      sums[r][1] = Vector::Dot(sums[r][1], w1, x);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    Vector::Store(p.c0 + r * kTileOutputs, sums[r][0]);
    Vector::Store(p.c1 + r * kTileOutputs, sums[r][1]);
  }
}

template <typename Vector, int R = Vector::kRows>
void VnniRows(const GemmTile& t, int64_t row, int64_t height, const VnniPair& pair) {
  if (height == R) return VnniBlock<Vector, R>(t, row, pair);
  if constexpr (R > 1) VnniRows<Vector, R - 1>(t, row, height, pair);
}

template <typename Vector>
void VnniGemm(const GemmTile& t) {
  constexpr int64_t kOutputs = Vector::kOutputs;
  // Blocks of nearly equal height: 13 rows are 7 + 6, not 12 + 1, whose one row would wait for its
  // own latency.
  int64_t blocks = (t.rows + Vector::kRows - 1) / Vector::kRows;
  for (int64_t row = 0, height; blocks > 0; --blocks, row += height) {
    height = (t.rows - row + blocks - 1) / blocks;
    for (int64_t n = 0; n < kTileOutputs; n += 2 * kOutputs) {
      const auto weights = [&](int64_t output) {
        return t.b + output / kPanel * t.b_stride + output % kPanel * 4;
      };
      VnniRows<Vector>(t, row, height,
                       {weights(n), weights(n + kOutputs), t.c + n, t.c + n + kOutputs});
    }
  }
}

}  // namespace
}  // namespace nibble::cpu
