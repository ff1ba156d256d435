// SPDX-License-Identifier: Apache-2.0
// The derivatives of DeviceMath.
#include <cuda_bf16.h>

#include <algorithm>

#include "backends/cuda/calibrate/device_math.h"
#include "backends/cuda/runtime/launch.h"
#include "backends/cuda/runtime/warp_reduce.cuh"

namespace nibble::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

unsigned Blocks(int64_t items, int64_t block) {
  return static_cast<unsigned>((items + block - 1) / block);
}

__device__ int64_t Thread() {
  return int64_t{blockIdx.x} * kThreads + threadIdx.x;
}

__global__ void __launch_bounds__(kThreads)
    WidenKernel(const __nv_bfloat16* values, int64_t count, float* out) {
  if (Thread() < count) out[Thread()] = __bfloat162float(values[Thread()]);
}

// A block per 32 columns; a warp takes every kWarps-th row.
__global__ void __launch_bounds__(kThreads)
    ColumnDotKernel(const float* a, const float* b, int64_t rows, int64_t cols, float* sums) {
  __shared__ float parts[kWarps][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t col = int64_t{blockIdx.x} * 32 + lane;
  float sum = 0;
  if (col < cols) {
    for (int64_t r = warp; r < rows; r += kWarps) sum += a[r * cols + col] * b[r * cols + col];
  }
  parts[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || col >= cols) return;
  for (int i = 1; i < kWarps; ++i) sum += parts[i][lane];
  sums[col] = sum;
}

// A block per row.
__global__ void __launch_bounds__(kThreads)
    NormGradientKernel(const float* x, const float* weight, const float* gradients, int64_t cols,
                       float eps, float keep, float* out) {
  const int64_t at = blockIdx.x * cols;
  const auto gradient = [&](int64_t c) {
    return weight == nullptr ? gradients[at + c] : gradients[at + c] * weight[c];
  };
  float squares = 0, products = 0;
  for (int64_t c = threadIdx.x; c < cols; c += kThreads) {
    squares += x[at + c] * x[at + c];
    products += x[at + c] * gradient(c);
  }
  const auto n = static_cast<float>(cols);
  const float scale = rsqrtf(BlockSum<kWarps>(squares) / n + eps);
  const float share = scale * scale * BlockSum<kWarps>(products) / n;
  for (int64_t c = threadIdx.x; c < cols; c += kThreads) {
    const float kept = keep == 0 ? 0 : keep * out[at + c];
    out[at + c] = kept + scale * (gradient(c) - share * x[at + c]);
  }
}

__global__ void __launch_bounds__(kThreads)
    GateGradientKernel(const GateSpec gating, const float* gate, const float* up, int64_t count,
                       float* gradients, float* gate_gradients) {
  const int64_t i = Thread();
  if (i >= count) return;
  const float square = gate[i] * gate[i], gradient = gradients[i];
  const float opening = gate[i] * (gating.linear + gating.cubic * square);
  const float opening_gradient = gating.linear + 3 * gating.cubic * square;
  const float sigmoid = 1 / (1 + expf(-opening)), through = gate[i] * sigmoid;
  gate_gradients[i] = gradient * up[i] * (sigmoid + through * (1 - sigmoid) * opening_gradient);
  gradients[i] = gradient * through;
}

// Rows of `width` values from one place to another, turned by sign times the angles.
struct HeadMove {
  const float* from;
  float* to;
  int64_t from_stride, to_stride, tokens, width;
  HeadAngles angles;
  float sign;
};

__global__ void __launch_bounds__(kThreads) MoveHeadKernel(HeadMove m) {
  if (Thread() >= m.tokens * m.width) return;
  const int64_t token = Thread() / m.width, i = Thread() % m.width;
  const float* const from = m.from + token * m.from_stride;
  float value = from[i];
  const int64_t pairs = m.angles.count;
  if (i < 2 * pairs) {
    const bool low = i < pairs;
    const int64_t angle = token * pairs + (low ? i : i - pairs);
    const float other = low ? -from[i + pairs] : from[i - pairs];
    value = value * m.angles.cos[angle] + m.sign * other * m.angles.sin[angle];
  }
  m.to[token * m.to_stride + i] = value;
}

void MoveHead(const HeadMove& m, cudaStream_t stream) {
  MoveHeadKernel<<<Blocks(m.tokens * m.width, kThreads), kThreads, 0, stream>>>(m);
  CheckCuda(cudaGetLastError(), "kernel launch");
}

// A warp per query.
__global__ void __launch_bounds__(kThreads) SoftmaxKernel(CausalBlock block, float* scores) {
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= block.rows) return;
  const int64_t keys = block.first + block.rows;
  float* const s = scores + row * keys;
  const int64_t end = block.first + row + 1;
  const int64_t begin = block.window > 0 ? max(end - block.window, int64_t{0}) : 0;
  float max = -INFINITY, sum = 0;
  for (int64_t k = begin + lane; k < end; k += 32) max = fmaxf(max, s[k]);
  max = WarpMax(max);
  for (int64_t k = begin + lane; k < end; k += 32) sum += s[k] = expf(s[k] - max);
  const float factor = 1 / WarpSum(sum);
  __syncwarp();
  for (int64_t k = lane; k < keys; k += 32) {
    s[k] = k >= begin && k < end ? s[k] * factor : 0;
  }
}

__global__ void __launch_bounds__(kThreads)
    SoftmaxGradientKernel(CausalBlock block, const float* probabilities, float* gradients) {
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= block.rows) return;
  const int64_t keys = block.first + block.rows;
  const float* const p = probabilities + row * keys;
  float* const s = gradients + row * keys;
  float mean = 0;
  for (int64_t k = lane; k < keys; k += 32) mean += p[k] * s[k];
  mean = WarpSum(mean);
  for (int64_t k = lane; k < keys; k += 32) s[k] = p[k] * (s[k] - mean);
}

// A block per row.
__global__ void __launch_bounds__(kThreads)
    DivergenceGradientKernel(const float* target, int64_t cols, float* logits, float* divergences) {
  const float* const t = target + blockIdx.x * cols;
  float* const p = logits + blockIdx.x * cols;
  float max_t = -INFINITY, max_p = -INFINITY, sum_t = 0, sum_p = 0, divergence = 0;
  for (int64_t c = threadIdx.x; c < cols; c += kThreads) {
    max_t = fmaxf(max_t, t[c]);
    max_p = fmaxf(max_p, p[c]);
  }
  max_t = BlockMax<kWarps>(max_t);
  max_p = BlockMax<kWarps>(max_p);
  for (int64_t c = threadIdx.x; c < cols; c += kThreads) {
    sum_t += expf(t[c] - max_t);
    sum_p += expf(p[c] - max_p);
  }
  sum_t = BlockSum<kWarps>(sum_t);
  sum_p = BlockSum<kWarps>(sum_p);
  // log(q / p) = difference of logits - that of the logarithms of their sums.
  const float shift = (max_p + logf(sum_p)) - (max_t + logf(sum_t));
  for (int64_t c = threadIdx.x; c < cols; c += kThreads) {
    const float share = expf(t[c] - max_t) / sum_t;
    divergence += share * (t[c] - p[c] + shift);
    p[c] = expf(p[c] - max_p) / sum_p - share;
  }
  divergence = BlockSum<kWarps>(divergence);
  if (threadIdx.x == 0) divergences[blockIdx.x] = divergence;
}

// A block per row and group of columns.
__global__ void __launch_bounds__(kThreads)
    RowPowerKernel(const float* a, int64_t cols, float* powers) {
  const int64_t begin = blockIdx.y * cols / gridDim.y, end = (blockIdx.y + 1) * cols / gridDim.y;
  float sum = 0;
  for (int64_t c = begin + threadIdx.x; c < end; c += kThreads) {
    const float value = a[blockIdx.x * cols + c];
    sum += value * value;
  }
  sum = BlockSum<kWarps>(sum);
  if (threadIdx.x != 0) return;
  powers[blockIdx.y * gridDim.x + blockIdx.x] = sum / static_cast<float>(end - begin);
}

// A block per row, whose threads have columns of their own: the label is one of the thread in which
// the sum of what those before it have reaches the draw.
__global__ void __launch_bounds__(kThreads)
    DrawnGradientKernel(const float* draws, int64_t cols, float* logits) {
  __shared__ float sums[kThreads];
  __shared__ float left;
  __shared__ int drawn;
  float* const p = logits + blockIdx.x * cols;
  float max = -INFINITY, own = 0;
  for (int64_t c = threadIdx.x; c < cols; c += kThreads) max = fmaxf(max, p[c]);
  max = BlockMax<kWarps>(max);
  for (int64_t c = threadIdx.x; c < cols; c += kThreads) own += expf(p[c] - max);
  sums[threadIdx.x] = own;
  const float sum = BlockSum<kWarps>(own);
  __syncthreads();
  if (threadIdx.x == 0) {
    const int last = static_cast<int>(min(static_cast<int64_t>(kThreads), cols)) - 1;
    left = draws[blockIdx.x] * sum;
    for (drawn = 0; drawn < last && left >= sums[drawn]; ++drawn) left -= sums[drawn];
  }
  __syncthreads();
  float rest = left;
  bool found = threadIdx.x != drawn;
  for (int64_t c = threadIdx.x; c < cols; c += kThreads) {
    const float value = expf(p[c] - max);
    const bool label = !found && (rest < value || c + kThreads >= cols);
    found |= label;
    rest -= value;
    p[c] = value / sum - (label ? 1.0f : 0.0f);
  }
}

}  // namespace

void DeviceMath::Widen(const std::byte* values, int64_t count, float* out) const {
  WidenKernel<<<Blocks(count, kThreads), kThreads, 0, stream_>>>(
      reinterpret_cast<const __nv_bfloat16*>(values), count, out);
  CheckCuda(cudaGetLastError(), "kernel launch");
}

void DeviceMath::ColumnDots(const float* a, const float* b, int64_t rows, int64_t cols,
                            float* sums) const {
  ColumnDotKernel<<<Blocks(cols, 32), kThreads, 0, stream_>>>(a, b, rows, cols, sums);
  CheckCuda(cudaGetLastError(), "kernel launch");
}

void DeviceMath::RowPowers(const float* a, int64_t rows, int64_t cols, int64_t groups,
                           float* powers) const {
  const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(groups));
  RowPowerKernel<<<grid, kThreads, 0, stream_>>>(a, cols, powers);
  CheckCuda(cudaGetLastError(), "kernel launch");
}

void DeviceMath::NormGradients(const float* x, const float* weight, const float* gradients,
                               int64_t rows, int64_t cols, float eps, float keep,
                               float* out) const {
  NormGradientKernel<<<static_cast<unsigned>(rows), kThreads, 0, stream_>>>(x, weight, gradients,
                                                                            cols, eps, keep, out);
  CheckCuda(cudaGetLastError(), "kernel launch");
}

void DeviceMath::GateGradients(const GateSpec& gating, const float* gate, const float* up,
                               int64_t count, float* gradients, float* gate_gradients) const {
  GateGradientKernel<<<Blocks(count, kThreads), kThreads, 0, stream_>>>(gating, gate, up, count,
                                                                        gradients, gate_gradients);
  CheckCuda(cudaGetLastError(), "kernel launch");
}

void DeviceMath::TakeHead(const float* rows, int64_t tokens, int64_t stride, int64_t width,
                          const HeadAngles& angles, float* head) const {
  MoveHead({.from = rows,
            .to = head,
            .from_stride = stride,
            .to_stride = width,
            .tokens = tokens,
            .width = width,
            .angles = angles,
            .sign = 1},
           stream_);
}

void DeviceMath::PutHead(const float* head, int64_t tokens, int64_t stride, int64_t width,
                         const HeadAngles& angles, float* rows) const {
  MoveHead({.from = head,
            .to = rows,
            .from_stride = width,
            .to_stride = stride,
            .tokens = tokens,
            .width = width,
            .angles = angles,
            .sign = -1},
           stream_);
}

void DeviceMath::Softmax(const CausalBlock& block, float* scores) const {
  SoftmaxKernel<<<Blocks(block.rows, kWarps), kThreads, 0, stream_>>>(block, scores);
  CheckCuda(cudaGetLastError(), "kernel launch");
}

void DeviceMath::SoftmaxGradients(const CausalBlock& block, const float* p,
                                  float* gradients) const {
  SoftmaxGradientKernel<<<Blocks(block.rows, kWarps), kThreads, 0, stream_>>>(block, p, gradients);
  CheckCuda(cudaGetLastError(), "kernel launch");
}

void DeviceMath::DivergenceGradients(const float* target, int64_t rows, int64_t cols, float* logits,
                                     float* divergences) const {
  DivergenceGradientKernel<<<static_cast<unsigned>(rows), kThreads, 0, stream_>>>(
      target, cols, logits, divergences);
  CheckCuda(cudaGetLastError(), "kernel launch");
}

void DeviceMath::DrawnGradients(std::span<const float> draws, int64_t cols, float* logits) const {
  const auto rows = static_cast<int64_t>(draws.size());
  DeviceBuffer<float> there;
  CheckCuda(cudaMemcpyAsync(there.Grow(rows), draws.data(), draws.size_bytes(),
                            cudaMemcpyHostToDevice, stream_),
            "copy to the GPU");
  DrawnGradientKernel<<<static_cast<unsigned>(rows), kThreads, 0, stream_>>>(there.data(), cols,
                                                                             logits);
  CheckCuda(cudaGetLastError(), "kernel launch");
}

}  // namespace nibble::cuda
