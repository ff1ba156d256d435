// SPDX-License-Identifier: Apache-2.0
// PrepareActs for rows that need no shared memory: without an online transform, or with one across
// heads of up to 64 (a power of 2), whose butterflies a thread does on its column of all heads.
#pragma once

#include <cuda_runtime.h>

#include "backends/cuda/acts/prepare_acts.h"

namespace nibble::cuda {

// Whether PrepareActsInRegisters serves these arguments: codes of up to 8 bits, one scale per row.
bool FitsRegisters(const PrepareArguments& args);

// Enqueues the op. A dependent launch; throws nibble::Error if it is refused. Of args.norm nothing
// may be written by the kernel in front.
void PrepareActsInRegisters(const PrepareArguments& args, cudaStream_t stream);

}  // namespace nibble::cuda
