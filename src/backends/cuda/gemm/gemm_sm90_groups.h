// SPDX-License-Identifier: Apache-2.0
// The prompt product of kNibbleGroups and kByteGroups on compute capability 9.0.
#pragma once

#include <cuda_runtime.h>

#include "backends/cuda/gemm/gemm.h"

namespace nibble::cuda {

// Enqueues the product. A dependent launch. Throws nibble::Error on another GPU or if the launch is
// refused.
void GemmSm90Groups(const GemmArguments& arguments, cudaStream_t stream);

}  // namespace nibble::cuda
