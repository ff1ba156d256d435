// SPDX-License-Identifier: Apache-2.0
// PrepareActs for rows that are transformed across heads of up to 64 (a power of 2).
#pragma once

#include <cuda_runtime.h>

#include "backends/cuda/acts/prepare_acts.h"

namespace nibble::cuda {

// True if PrepareHeads serves these arguments: codes of up to 8 bits, one scale per row.
bool FitsHeads(const PrepareArguments& args);

// Enqueues the op. A dependent launch; throws nibble::Error if it is refused.
void PrepareHeads(const PrepareArguments& args, cudaStream_t stream);

}  // namespace nibble::cuda
