// SPDX-License-Identifier: Apache-2.0
// The linear of decode steps: few tokens, limited by reading the weights once. sm_80 or newer.
#pragma once

#include <cuda_runtime.h>

#include <span>

#include "backends/cuda/gemm/gemm.h"

namespace nibble::cuda {

inline constexpr int kMaxLaunchRows = 32;  // rows of codes; more read the weights again

// Enqueues products that can be joined (gemm.h) as one kernel; many tokens are slow. A dependent
// launch: w, w_* and bias are read before the kernel in front has ended, so that one must not write
// them.
//
// Throws nibble::Error if the launch is refused or, on GPUs with clusters, if shared memory does
// not hold a token; without clusters GemmSm80 runs then.
void GemmDecode(std::span<const GemmArguments> products, cudaStream_t stream);

// GemmDecode for the experts of a mixture, up to kMaxLaunchRows rows each at a time; sm_90. w_* and
// bias are read only after the kernel in front has ended, which may make the groups.
void GemmDecodeExperts(std::span<const GemmArguments> products, cudaStream_t stream);

// GemmDecode for codewords of lattices; before sm_90 for up to 8 rows.
void GemmDecodeCodewords(std::span<const GemmArguments> products, cudaStream_t stream);

// GemmDecode for kSparseNibbles and kSparseBytes; sm_90.
void GemmDecodeSparse(std::span<const GemmArguments> products, cudaStream_t stream);

// GemmDecode for kNibbleGroups and kByteGroups.
void GemmDecodeGroups(std::span<const GemmArguments> products, cudaStream_t stream);

}  // namespace nibble::cuda
