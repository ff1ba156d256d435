// SPDX-License-Identifier: Apache-2.0
// The linear of prefill on sm_90a: any number of tokens, limited by the tensor cores.
#pragma once

#include <cuda_runtime.h>

#include "backends/cuda/gemm/gemm.h"

namespace nibble::cuda {

// Enqueues the product, and those joined to it. A dependent launch: its blocks may take their
// places while the kernel in front runs, and wait for its end before they read or write. With
// `accumulate` results are added to y in L2, which takes subnormals for 0. Throws nibble::Error if
// the launch is refused, as on every other chip.
void GemmSm90(const GemmArguments& arguments, cudaStream_t stream);

// GemmSm90 for kSparseNibbles and kSparseBytes.
void GemmSm90Sparse(const GemmArguments& arguments, cudaStream_t stream);

// GemmSm90 for codewords of lattices.
void GemmSm90Codewords(const GemmArguments& arguments, cudaStream_t stream);

}  // namespace nibble::cuda
