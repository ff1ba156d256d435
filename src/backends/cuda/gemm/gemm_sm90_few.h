// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include "backends/cuda/gemm/gemm.h"

namespace nibble::cuda {

// Whether tiles of 64 tokens suit the product: one has all of them, or every pair of blocks one.
bool FitsFew(const GemmArguments& g);
// As GemmSm90, which calls it.
void GemmSm90Few(const GemmArguments& g, cudaStream_t stream);

}  // namespace nibble::cuda
