// SPDX-License-Identifier: Apache-2.0
// y = W a on integers: cuts the product into tasks, feeds the kernel and applies the epilogue.
#pragma once

#include <cstring>
#include <span>

#include "backends/cpu/gemm/kernel_table.h"

namespace nibble::cpu {

// A row's codes inside [tokens / 16][stride / 64][16][64], the A tiles of a matrix unit: a tile
// lies in one piece, where 16 rows of codes would lie in 16 pages.
inline constexpr int64_t kTileTokens = 16;
inline void StoreTileRow(const int8_t* codes, int64_t token, int64_t stride, int8_t* tiles) {
  int8_t* out = tiles + token / kTileTokens * kTileTokens * stride + token % kTileTokens * 64;
  for (int64_t k = 0; k < stride; k += 64, out += kTileTokens * 64) std::memcpy(out, codes + k, 64);
}

// y[t, n] (+)= W a + bias, y with row stride y_stride. `kernel` must match (Kernel::Runs). Results
// depend neither on the kernel, nor on the number of threads, nor on the other tokens.
void GemmInt(Isa isa, const Activations& acts, const IntPanels& weights, const Kernel& kernel,
             float* y, int64_t y_stride, bool accumulate);

// Several products of few rows at once, y [tokens, N] each. Their kernels must have a gemv.
struct GemvProduct {
  Activations acts;
  const IntPanels* weights;
  const Kernel* kernel;
  float* y;
};
void GemvAll(Isa isa, std::span<const GemvProduct> products);

}  // namespace nibble::cpu
