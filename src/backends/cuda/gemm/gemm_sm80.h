// SPDX-License-Identifier: Apache-2.0
// The linear of prefill on GPUs of compute capability 8: any number of tokens, limited by the
// tensor cores, which multiply codes of 4 bits twice as fast as bytes.
#pragma once

#include <cuda_runtime.h>

#include "backends/cuda/gemm/gemm.h"

namespace nibble::cuda {

// Enqueues the product, of rows or groups of codes. Right on newer GPUs too, only slow: products of
// two 4-bit codes are emulated there. Throws nibble::Error if the launch is refused.
void GemmSm80(const GemmArguments& arguments, cudaStream_t stream);

// GemmSm80 for points of lattices.
void GemmPointsSm80(const GemmArguments& arguments, cudaStream_t stream);

}  // namespace nibble::cuda
