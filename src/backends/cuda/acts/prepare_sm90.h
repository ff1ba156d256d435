// SPDX-License-Identifier: Apache-2.0
// PrepareActs for the input of down_proj on sm_90a: silu(gate) * up, or x where a product has made
// that, a Hadamard transform over the whole row, codes.
#pragma once

#include <cuda_runtime.h>

#include "backends/cuda/acts/prepare_acts.h"

namespace nibble::cuda {

// True if PrepareActsSm90 serves these arguments: bf16 in, no norm, gates opened by sigmoids, one
// scale per row or, in most shapes, per 128 columns, and a TileHadamard.
bool FitsSm90(const PrepareArguments& args);

// Enqueues the op. A dependent launch; throws nibble::Error if it is refused.
void PrepareActsSm90(const PrepareArguments& args, cudaStream_t stream);

}  // namespace nibble::cuda
