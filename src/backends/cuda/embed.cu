// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backends/cuda/embed.h"
#include "backends/cuda/launch.h"
#include "backends/cuda/ptx.h"

namespace nibble::cuda {
namespace {

constexpr unsigned kThreads = 256;

// A block per row.
template <typename T>
__global__ void EmbedKernel(const void* table, const int32_t* ids, int64_t hidden, float* x) {
  WaitForPreviousGrid();
  AllowNextGrid();
  const T* row = static_cast<const T*>(table) + ids[blockIdx.x] * hidden;
  for (int64_t i = threadIdx.x; i < hidden; i += kThreads) {
    x[blockIdx.x * hidden + i] = static_cast<float>(row[i]);
  }
}

// A block per row.
__global__ void AddRowsKernel(const float* y, const int32_t* rows, const float* weights,
                              int64_t width, float* x) {
  WaitForPreviousGrid();
  AllowNextGrid();
  const float weight = weights[blockIdx.x];
  float* to = x + rows[blockIdx.x] * width;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    to[i] += weight * y[blockIdx.x * width + i];
  }
}

}  // namespace

void Embed(const void* table, WeightType type, const int32_t* ids, int64_t count, int64_t hidden,
           float* x, cudaStream_t stream) {
  const auto kernel = type == WeightType::kFloat32    ? EmbedKernel<float>
                      : type == WeightType::kBfloat16 ? EmbedKernel<__nv_bfloat16>
                                                      : EmbedKernel<__half>;
  LaunchDependent(kernel, {.grid = static_cast<unsigned>(count), .block = kThreads}, stream, table,
                  ids, hidden, x);
}

void AddRows(const float* y, const int32_t* rows, const float* weights, int64_t count,
             int64_t width, float* x, cudaStream_t stream) {
  LaunchDependent(AddRowsKernel, {.grid = static_cast<unsigned>(count), .block = kThreads}, stream,
                  y, rows, weights, width, x);
}

}  // namespace nibble::cuda
