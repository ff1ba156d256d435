// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <span>

#include "backends/cuda/runtime/real_type.h"

namespace nibble::cuda {

// x[i] = scale * table[ids[i]]; table [.., hidden] of `type`, x [ids.size(), hidden], both in
// device memory. Enqueued: ids go along as arguments of kernels. Throws nibble::Error if a launch
// is refused.
void Embed(const void* table, WeightType type, std::span<const int32_t> ids, int64_t hidden,
           float scale, float* x, cudaStream_t stream);
// Embed from a table of 8-bit codes [.., hidden] with one scale per row.
void Embed(const int8_t* codes, const float* scales, std::span<const int32_t> ids, int64_t hidden,
           float scale, float* x, cudaStream_t stream);

// x[rows[i]] += weights[i] * y[i]; y [rows.size(), width], x [.., width]. Enqueued likewise.
void AddRows(const float* y, std::span<const int32_t> rows, std::span<const float> weights,
             int64_t width, float* x, cudaStream_t stream);

// x = (x + y * rsqrt(mean(y^2) + eps) * weight) * scale; y and x [tokens, width], weight [width],
// scale one number or null for 1. Enqueued likewise.
void AddNormed(const float* y, int64_t tokens, int64_t width, const float* weight, float eps,
               const float* scale, float* x, cudaStream_t stream);
// y = (RMS norm of x) + z for each part; x and z [tokens, parts * width], y [parts, tokens, width].
void AddNormedParts(const float* x, const float* z, int64_t tokens, int64_t parts, int64_t width,
                    const float* weight, float eps, __nv_bfloat16* y, cudaStream_t stream);
// x = RMS norm of x; weight [width] or null for ones.
void NormRows(__nv_bfloat16* x, int64_t tokens, int64_t width, const float* weight, float eps,
              cudaStream_t stream);

}  // namespace nibble::cuda
