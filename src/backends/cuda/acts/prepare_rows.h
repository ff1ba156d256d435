// SPDX-License-Identifier: Apache-2.0
// PrepareActs for rows without an online transform, in any formats and parts.
#pragma once

#include <cuda_runtime.h>

#include "backends/cuda/acts/prepare_acts.h"

namespace nibble::cuda {

// True if PrepareRows serves these arguments: rows of up to 16384 columns, as codes of up to 8 bits
// with one scale; for few tokens in any format, but groups are 32, 64, 128 or 256 columns.
bool FitsRows(const PrepareArguments& args);

// Enqueues the op. A dependent launch; throws nibble::Error if it is refused. The kernel in front
// must not write args.norm.
void PrepareRows(const PrepareArguments& args, cudaStream_t stream);

}  // namespace nibble::cuda
