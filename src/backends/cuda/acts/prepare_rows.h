// SPDX-License-Identifier: Apache-2.0
// PrepareActs for rows without an online transform, in any formats and parts.
#pragma once

#include <cuda_runtime.h>

#include "backends/cuda/acts/prepare_acts.h"

namespace nibble::cuda {

// Whether PrepareRows serves these arguments: rows of up to 16384 columns, as codes of up to 8 bits
// with one scale; of few tokens any, but groups are 32, 64, 128 or 256 columns.
bool FitsRows(const PrepareArguments& args);

// Enqueues the op. A dependent launch; throws nibble::Error if it is refused. Of args.norm nothing
// may be written by the kernel in front.
void PrepareRows(const PrepareArguments& args, cudaStream_t stream);

}  // namespace nibble::cuda
