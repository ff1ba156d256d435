// SPDX-License-Identifier: Apache-2.0
// What linears of two formats need beside the kernels of one: sums of two products as intermediate
// values. Device pointers; everything is enqueued.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace nibble::cuda {

// out[i] = in[i] rounded to bf16.
void Narrow(const float* in, int64_t count, __nv_bfloat16* out, cudaStream_t stream);

}  // namespace nibble::cuda
