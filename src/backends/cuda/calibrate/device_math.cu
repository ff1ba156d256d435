// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/calibrate/device_math.h"
#include "backends/cuda/runtime/launch.h"
#include "backends/cuda/runtime/warp_reduce.cuh"

namespace nibble::cuda {
namespace {

constexpr int kThreads = 256;

// A warp per group.
__global__ void __launch_bounds__(kThreads)
    PeakGradientKernel(int64_t groups, int64_t group, float* values) {
  const int64_t g = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  if (g >= groups) return;
  float* const v = values + g * group;
  const int lane = threadIdx.x % 32;
  float max = 1e-30f;
  for (int64_t i = lane; i < group; i += 32) max = fmaxf(max, v[i] * v[i]);
  max = WarpMax(max);
  float sum = 0;  // of (v^2 / most)^5
  for (int64_t i = lane; i < group; i += 32) {
    const float q = v[i] * v[i] / max, q2 = q * q;
    sum += q2 * q2 * q;
  }
  sum = fmaxf(WarpSum(sum), 1e-20f);  // zeros alone
  const float factor = 2 * powf(sum, 0.2f) / sum;
  for (int64_t i = lane; i < group; i += 32) {
    const float q = v[i] * v[i] / max, q2 = q * q;
    v[i] *= factor * q2 * q2;
  }
}

// A block per 32 x 32 elements; its mirror image passes through shared memory.
__global__ void SkewKernel(const float* a, int64_t n, float* out) {
  __shared__ float mirror[32][33];
  const int64_t row = int64_t{blockIdx.y} * 32, col = int64_t{blockIdx.x} * 32;
  const int64_t x = threadIdx.x, y = threadIdx.y;
  if (col + y < n && row + x < n) mirror[y][x] = a[(col + y) * n + row + x];
  __syncthreads();
  if (row + y >= n || col + x >= n) return;
  const int64_t at = (row + y) * n + col + x;
  out[at] = a[at] - mirror[x][y];
}

__global__ void __launch_bounds__(kThreads)
    CombineKernel(float keep, float factor, const float* a, int64_t count, float* out) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) out[i] = (keep == 0 ? 0 : keep * out[i]) + factor * a[i];
}

unsigned Blocks(int64_t items, int64_t block) {
  return static_cast<unsigned>((items + block - 1) / block);
}

}  // namespace

const float* DeviceMath::Load(std::span<const float> values, Buffer<float>& copy) const {
  float* const target = copy.Grow(static_cast<int64_t>(values.size()));
  CheckCuda(
      cudaMemcpyAsync(target, values.data(), values.size_bytes(), cudaMemcpyHostToDevice, stream_),
      "copy to the GPU");
  return target;
}

void DeviceMath::Store(const float* values, std::span<float> target) const {
  CheckCuda(
      cudaMemcpyAsync(target.data(), values, target.size_bytes(), cudaMemcpyDeviceToHost, stream_),
      "copy from the GPU");
  CheckCuda(cudaStreamSynchronize(stream_), "a kernel");
}

void DeviceMath::PeakGradients(int64_t count, int64_t group, float* values) const {
  const int64_t groups = count / group;
  PeakGradientKernel<<<Blocks(groups, kThreads / 32), kThreads, 0, stream_>>>(groups, group,
                                                                              values);
  CheckCuda(cudaGetLastError(), "kernel launch");
}

void DeviceMath::Skew(const float* a, int64_t n, float* out) const {
  SkewKernel<<<dim3(Blocks(n, 32), Blocks(n, 32)), dim3(32, 32), 0, stream_>>>(a, n, out);
  CheckCuda(cudaGetLastError(), "kernel launch");
}

void DeviceMath::Combine(float keep, float factor, const float* a, int64_t count,
                         float* out) const {
  CombineKernel<<<Blocks(count, kThreads), kThreads, 0, stream_>>>(keep, factor, a, count, out);
  CheckCuda(cudaGetLastError(), "kernel launch");
}

}  // namespace nibble::cuda
