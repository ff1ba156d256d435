// SPDX-License-Identifier: Apache-2.0
// Tasks of an integer product. A GEMM task is some pairs of panels x a block of rows (tokens, or
// their planes). Weights become bytes a chunk at a time (16 KiB, L1), one ahead of the products;
// activations stay in L2, sums on the stack between chunks. A GEMV task is some whole panels, each
// read once.
#pragma once

#include "backends/cpu/gemm/kernel_table.h"
#include "backends/cpu/gemm/tile_ops.h"

namespace nibble::cpu {

inline constexpr int64_t kMaxTaskRows = 256;  // of a GEMM task
inline constexpr int64_t kFewRows = 64;       // up to which weights are prefetched

// y (+)= W a
struct Product {
  Isa isa;
  const Activations& acts;
  TokenTerms terms;
  const IntPanels& weights;
  const Kernel& kernel;
  TileOutput out;
  int64_t rows;         // of a GEMM task
  int64_t panels;       // of a task, even
  const int8_t* tiles;  // activations for a matrix unit, or null
};

// Run task number `task` of a product whose kernel has a gemv, or has none.
void GemvTask(const Product& product, int64_t task);
void GemmTask(const Product& product, int64_t task);

}  // namespace nibble::cpu
