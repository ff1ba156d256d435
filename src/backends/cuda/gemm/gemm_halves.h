// SPDX-License-Identifier: Apache-2.0
// Products of 16-bit weights with 16-bit inputs on tensor cores: outliers' columns (QUIK), heads
// and layers that stay wide.
#pragma once

#include <cuda_runtime.h>

#include "backends/cuda/gemm/gemm.h"

namespace nibble::cuda {

// Enqueues products of kHalves, of which only one may have an addend. Products are added in fp32,
// in an order of the kernel. A dependent launch. Throws nibble::Error if it is refused.
//
// Inputs, and weights that are not bf16, are multiplied as the sum of two bf16, which differs from
// a value by at most 2^-18 of it. If both are sums, the product of the two second parts is left
// out, again 2^-18.
void GemmHalves(const GemmArguments& arguments, cudaStream_t stream);

}  // namespace nibble::cuda
