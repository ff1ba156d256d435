// SPDX-License-Identifier: Apache-2.0
// Prompt products that add those of their tail, for compute capability 9.0: outliers of 16 bits
// beside operands with one scale a row (QUIK), of 8 bits beside groups of 128 on both sides (Atom).
#pragma once

#include "backends/cuda/gemm/gemm.h"

namespace nibble::cuda {

// Enqueues a product that has a tail. If the tail has 16 bits, both sides are multiplied as the sum
// of two bf16, as in gemm_halves.h; if it has codes, the law's value of each 128 columns is added.
// A dependent launch. Throws nibble::Error if it is refused.
void GemmSm90Tails(const GemmArguments& arguments, cudaStream_t stream);

}  // namespace nibble::cuda
