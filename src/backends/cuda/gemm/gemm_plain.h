// SPDX-License-Identifier: Apache-2.0
// Every product that the tensor-core kernels do not take, on ordinary cores: fp32 inputs, and bytes
// in groups with zeros. These kernels are simple; with a few tokens they are limited by reading the
// weights once.
#pragma once

#include <cuda_runtime.h>

#include "backends/cuda/gemm/gemm.h"

namespace nibble::cuda {

// Enqueues a product of kFloats, fastest where rows of x and w are aligned to 16 bytes. A dependent
// launch. Throws nibble::Error if it is refused.
void GemmFloat(const GemmArguments& arguments, cudaStream_t stream);

// Enqueues a product of kPlain: the smaller of the two groups is summed in integers, groups are
// added in ascending order. Fastest with groups of whole 16 bytes.
void GemmGrouped(const GemmArguments& arguments, cudaStream_t stream);

}  // namespace nibble::cuda
