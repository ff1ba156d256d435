// SPDX-License-Identifier: Apache-2.0
// The kernels of products in order of preference: the first row that matches runs. A new kernel is
// one file and one row.
#pragma once

#include <cuda_runtime.h>

#include <span>
#include <string_view>

#include "backends/cuda/gemm/gemm.h"
#include "compute/kernels.h"

namespace nibble::cuda {

struct Kernel {
  std::string_view name;
  int min, max;  // compute capability; most = 0: no upper bound
  WeightKind weights;
  int a_bits;        // inputs have at most these; 16: two planes of 8
  int64_t max_rows;  // rows of codes: one per token, or two planes; 0 = any
  // Enqueues products of one input, as many as `joins`.
  void (*run)(std::span<const GemmArguments> products, cudaStream_t stream);
  size_t joins = 1;
  bool gates = false;  // the kernel takes up_w
  // `run` for the experts of a mixture, or null.
  void (*run_experts)(std::span<const GemmArguments> products, cudaStream_t stream) = nullptr;

  bool Runs(int capability, WeightKind kind, int bits, int64_t tokens) const;
  // True if the kernel adds GemmArguments::addend: kernels of few rows and of halves do.
  bool takes_addend() const { return max_rows > 0 || weights == WeightKind::kHalves; }
};

// kind: KindOf(capability, product).
const Kernel& ChooseKernel(int capability, WeightKind kind, const ProductFormat& product,
                           int64_t tokens);

// The kernel of products with a tail (gemm_sm90_tails.h).
extern const Kernel kTailKernel;

// The layout of a product's weights on a GPU.
WeightKind KindOf(int capability, const ProductFormat& product);

// The inputs of a block of weights that share scales on either side: 32, 64 or 128 that divide all
// groups.
int PieceOf(const ProductFormat& product);

KernelUse KernelFor(int capability, const ProductFormat& product, int64_t tokens);

}  // namespace nibble::cuda
