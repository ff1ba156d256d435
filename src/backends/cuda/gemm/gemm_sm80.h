// SPDX-License-Identifier: Apache-2.0
// The linear of prefill on GPUs of compute capability 8: any number of tokens, limited by the
// tensor cores, which multiply codes of 4 bits twice as fast as bytes.
#pragma once

#include <cuda_runtime.h>

#include "backends/cuda/gemm/gemm.h"

namespace nibble::cuda {

// Enqueues the product, with scales of rows or of groups. Correct on newer GPUs too, but slow: they
// emulate products of two 4-bit codes. Throws nibble::Error if the launch is refused.
void GemmSm80(const GemmArguments& arguments, cudaStream_t stream);

// GemmSm80 for codewords of lattices.
void GemmSm80Codewords(const GemmArguments& arguments, cudaStream_t stream);

}  // namespace nibble::cuda
