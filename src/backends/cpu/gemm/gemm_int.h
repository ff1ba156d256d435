// SPDX-License-Identifier: Apache-2.0
// y = W a on integers: cuts the product into tasks, feeds the kernel and applies the epilogue.
#pragma once

#include <span>

#include "backends/cpu/gemm/kernel_table.h"

namespace nibble::cpu {

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
