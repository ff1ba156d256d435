// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "backends/cuda/acts/embed.h"
#include "backends/cuda/ptx/ptx.h"
#include "backends/cuda/runtime/launch.h"
#include "backends/cuda/runtime/warp_reduce.cuh"

namespace nibble::cuda {
namespace {

constexpr unsigned kThreads = 256;

// An argument of a kernel, which may take 4 KB in all; a copy of its own takes the program longer
// than a launch.
struct RowList {
  static constexpr size_t kMax = 480;
  int32_t rows[kMax];
  float weights[kMax];
};

// A block per row.
template <typename T>
__global__ void EmbedKernel(const void* table, const float* scales,
                            const __grid_constant__ RowList list, int64_t hidden, float factor,
                            float* x) {
  WaitForPreviousGrid();
  AllowNextGrid();
  const int64_t id = list.rows[blockIdx.x];
  const T* row = static_cast<const T*>(table) + id * hidden;
  const float scale = scales == nullptr ? 1 : scales[id];
  for (int64_t i = threadIdx.x; i < hidden; i += kThreads) {
    x[blockIdx.x * hidden + i] = factor * (scale * static_cast<float>(row[i]));
  }
}

// A block per row.
__global__ void AddRowsKernel(const float* y, const __grid_constant__ RowList list, int64_t width,
                              float* x) {
  WaitForPreviousGrid();
  AllowNextGrid();
  const float weight = list.weights[blockIdx.x];
  float* to = x + list.rows[blockIdx.x] * width;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    to[i] += weight * y[blockIdx.x * width + i];
  }
}

// A block per row; many threads, since a step of answers waits for each of their turns.
constexpr unsigned kManyThreads = 1024;
__global__ void __launch_bounds__(kManyThreads)
    AddNormedKernel(const float* y, const float* weight, const float* scale, int64_t width,
                    float eps, float* x) {
  WaitForPreviousGrid();
  AllowNextGrid();
  y += blockIdx.x * width, x += blockIdx.x * width;
  float squares = 0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < width; i += kManyThreads) {
    squares = fmaf(y[i], y[i], squares);
  }
  const float mean = BlockSum<kManyThreads / 32>(squares) / static_cast<float>(width);
  const float factor = rsqrtf(mean + eps);
  const float of_sum = scale == nullptr ? 1 : *scale;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < width; i += kManyThreads) {
    x[i] = (x[i] + y[i] * factor * weight[i]) * of_sum;
  }
}

// A block per row and part.
__global__ void __launch_bounds__(kThreads)
    AddNormedPartsKernel(const float* x, const float* z, const float* weight, int64_t width,
                         float eps, __nv_bfloat16* y) {
  WaitForPreviousGrid();
  AllowNextGrid();
  const int64_t from = (int64_t{blockIdx.x} * gridDim.y + blockIdx.y) * width;
  const int64_t to = (int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * width;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    squares = fmaf(x[from + i], x[from + i], squares);
  }
  const float mean = BlockSum<kThreads / 32>(squares) / static_cast<float>(width);
  const float factor = rsqrtf(mean + eps);
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    y[to + i] = __float2bfloat16_rn(x[from + i] * factor * weight[i] + z[from + i]);
  }
}

// The norm of a row in its place.
__global__ void __launch_bounds__(kThreads)
    NormRowsKernel(const float* weight, int64_t width, float eps, __nv_bfloat16* x) {
  WaitForPreviousGrid();
  AllowNextGrid();
  x += blockIdx.x * width;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    squares = fmaf(static_cast<float>(x[i]), static_cast<float>(x[i]), squares);
  }
  const float mean = BlockSum<kThreads / 32>(squares) / static_cast<float>(width);
  const float factor = rsqrtf(mean + eps);
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    const float normed = static_cast<float>(x[i]) * factor;
    x[i] = __float2bfloat16_rn(weight == nullptr ? normed : normed * weight[i]);
  }
}

// visit(first, rows as an argument, launch shape) for all of them.
void ForEachList(std::span<const int32_t> rows, std::span<const float> weights, auto&& visit) {
  for (size_t first = 0; first < rows.size(); first += RowList::kMax) {
    const size_t count = std::min(RowList::kMax, rows.size() - first);
    RowList list;
    std::copy_n(rows.data() + first, count, list.rows);
    if (!weights.empty()) std::copy_n(weights.data() + first, count, list.weights);
    visit(static_cast<int64_t>(first), list,
          LaunchShape{.grid = static_cast<unsigned>(count), .block = kThreads});
  }
}

}  // namespace

void Embed(const void* table, WeightType type, std::span<const int32_t> ids, int64_t hidden,
           float scale, float* x, cudaStream_t stream) {
  const auto kernel = type == WeightType::kFloat32    ? EmbedKernel<float>
                      : type == WeightType::kBfloat16 ? EmbedKernel<__nv_bfloat16>
                                                      : EmbedKernel<__half>;
  const float* const no_scales = nullptr;
  ForEachList(ids, {}, [&](int64_t first, const RowList& list, const LaunchShape& shape) {
    LaunchDependent(kernel, shape, stream, table, no_scales, list, hidden, scale,
                    x + first * hidden);
  });
}

void Embed(const int8_t* codes, const float* scales, std::span<const int32_t> ids, int64_t hidden,
           float scale, float* x, cudaStream_t stream) {
  const void* const table = codes;
  ForEachList(ids, {}, [&](int64_t first, const RowList& list, const LaunchShape& shape) {
    LaunchDependent(EmbedKernel<int8_t>, shape, stream, table, scales, list, hidden, scale,
                    x + first * hidden);
  });
}

void AddRows(const float* y, std::span<const int32_t> rows, std::span<const float> weights,
             int64_t width, float* x, cudaStream_t stream) {
  ForEachList(rows, weights, [&](int64_t first, const RowList& list, const LaunchShape& shape) {
    LaunchDependent(AddRowsKernel, shape, stream, y + first * width, list, width, x);
  });
}

void AddNormed(const float* y, int64_t tokens, int64_t width, const float* weight, float eps,
               const float* scale, float* x, cudaStream_t stream) {
  if (tokens == 0) return;
  const LaunchShape shape = {.grid = static_cast<unsigned>(tokens), .block = kManyThreads};
  LaunchDependent(AddNormedKernel, shape, stream, y, weight, scale, width, eps, x);
}

void AddNormedParts(const float* x, const float* z, int64_t tokens, int64_t parts, int64_t width,
                    const float* weight, float eps, __nv_bfloat16* y, cudaStream_t stream) {
  if (tokens == 0) return;
  const LaunchShape shape = {
      .grid = dim3(static_cast<unsigned>(tokens), static_cast<unsigned>(parts)), .block = kThreads};
  LaunchDependent(AddNormedPartsKernel, shape, stream, x, z, weight, width, eps, y);
}

void NormRows(__nv_bfloat16* x, int64_t tokens, int64_t width, const float* weight, float eps,
              cudaStream_t stream) {
  if (tokens == 0) return;
  const LaunchShape shape = {.grid = static_cast<unsigned>(tokens), .block = kThreads};
  LaunchDependent(NormRowsKernel, shape, stream, weight, width, eps, x);
}

}  // namespace nibble::cuda
