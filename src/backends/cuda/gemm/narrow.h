// SPDX-License-Identifier: Apache-2.0
// Rounding to bf16 where sums of two products are intermediate values and the last product does not
// round them. Device pointers; enqueued.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace nibble::cuda {

// out[i] = in[i] rounded to bf16.
void Narrow(const float* in, int64_t count, __nv_bfloat16* out, cudaStream_t stream);

}  // namespace nibble::cuda
