// SPDX-License-Identifier: Apache-2.0
// Products of 16-bit weights with 16-bit inputs on tensor cores: outliers' columns (QUIK), heads
// and layers that stay wide.
#pragma once

#include <cuda_runtime.h>

#include "backends/cuda/gemm/gemm.h"

namespace nibble::cuda {

// Enqueues a product of kHalves. Inputs, and weights of fp16, are multiplied as the sum of two
// bf16, which lacks at most 2^-17 of a value; products are added in fp32, in an order of the
// kernel. A dependent launch. Throws nibble::Error if it is refused.
void GemmHalves(const GemmArguments& arguments, cudaStream_t stream);

}  // namespace nibble::cuda
