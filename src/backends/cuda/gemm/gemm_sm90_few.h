// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include "backends/cuda/gemm/gemm.h"

namespace nibble::cuda {

// True if tiles of 64 tokens suit the product: one tile has all tokens, or there are no more tiles
// than pairs of blocks.
bool FitsFew(const GemmArguments& g);
// GemmSm90 with such tiles; GemmSm90 calls it.
void GemmSm90Few(const GemmArguments& g, cudaStream_t stream);

}  // namespace nibble::cuda
