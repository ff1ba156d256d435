// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backends/cuda/gemm_plain.h"

namespace nibble::cuda {

// x[i] = table[ids[i]] for i < count; table [.., hidden] of `type`, x [count, hidden]. Device
// pointers. Enqueued; throws nibble::Error if the launch is refused.
void Embed(const void* table, WeightType type, const int32_t* ids, int64_t count, int64_t hidden,
           float* x, cudaStream_t stream);

// x[rows[i]] += weights[i] * y[i] for i < count; y [count, width], x [.., width], all in device
// memory. Enqueued likewise.
void AddRows(const float* y, const int32_t* rows, const float* weights, int64_t count,
             int64_t width, float* x, cudaStream_t stream);

}  // namespace nibble::cuda
