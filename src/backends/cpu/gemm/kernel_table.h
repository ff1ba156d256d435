// SPDX-License-Identifier: Apache-2.0
// The kernels of products in order of preference: the first row that matches runs. A new kernel is
// one file and one row; tests and benchmarks walk the table.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "backends/cpu/gemm/int_kernels.h"
#include "backends/cpu/gemm/panels.h"
#include "base/cpu_features.h"

namespace nibble::cpu {

struct Kernel {
  std::string_view name;
  Isa isa;             // least instruction set
  int bits;            // of the panels; 0 = any of them as bytes, kValues = decoded weights
  int64_t max_tokens;  // 0 = any
  int64_t k_step;      // divides the inputs of a group
  GemmFn gemm;         // one of the two; of kValues none: gemm_f32.cc, gemm_bf16.cc
  GemvFn gemv;
  bool tiles;  // a matrix unit: activations in tiles, amx_begin and amx_end around its calls
  Form form = Form::kCodes;  // of the panels; rows of any bits take bytes

  bool Runs(const IntPanels& weights, int64_t tokens) const;
};

inline constexpr int kValues = 32;

// A matrix unit takes more rows of codes than vectors multiply in one pass.
inline bool TakesTiles(Isa isa, int64_t rows) {
  return isa >= Isa::kAmx && rows > kGemvRows;
}

// The last row of integers runs all of them.
std::span<const Kernel> Kernels();
const Kernel& ChooseKernel(Isa isa, const IntPanels& weights, int64_t tokens);
// The kernel for weights or inputs that are not quantized.
const Kernel& ValueKernel(Isa isa);

// isa: at least kAvx2.
KernelUse KernelFor(Isa isa, const ProductFormat& product, int64_t tokens);

}  // namespace nibble::cpu
