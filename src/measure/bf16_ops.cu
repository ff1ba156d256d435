// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/ptx/ptx.h"
#include "backends/cuda/runtime/launch.h"
#include "measure/bf16_ops.h"

namespace nibble::cuda {
namespace {

constexpr int kThreads = 256, kMaxWarps = 32;

// Eight elements as a memory access and as numbers.
struct Eight {
  float x[8];

  __device__ explicit Eight(const __nv_bfloat16* from) {
    UnpackBf16(*reinterpret_cast<const uint4*>(from), x);
  }
  __device__ void Store(__nv_bfloat16* to) const { *reinterpret_cast<uint4*>(to) = PackBf16(x); }
};

// A block per row, a thread per eight elements.
__global__ void __launch_bounds__(32 * kMaxWarps)
    NormKernel(const __nv_bfloat16* x, int width, __nv_bfloat16* y) {
  __shared__ float sums[kMaxWarps];
  const int64_t at = int64_t{blockIdx.x} * width + 8 * threadIdx.x;
  const bool exists = 8 * threadIdx.x < width;
  WaitForPreviousGrid();
  AllowNextGrid();
  Eight e(exists ? x + at : x);
  float sum = 0;
#pragma unroll
  for (const float v : e.x) sum += exists ? v * v : 0;
  for (int distance = 16; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(~0u, sum, distance);
  }
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = threadIdx.x % 32 < blockDim.x / 32 ? sums[threadIdx.x % 32] : 0;
  for (int distance = 16; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(~0u, sum, distance);
  }
  const float factor = rsqrtf(sum / static_cast<float>(width) + 1e-5f);
#pragma unroll
  for (float& v : e.x) v *= factor;
  if (exists) e.Store(y + at);
}

// A thread per eight elements of the first half of a head and the same of its second half.
__global__ void __launch_bounds__(kThreads)
    RopeKernel(const __grid_constant__ Bf16RopeArguments a) {
  const int half = a.head_dim / 2, pieces = half / 8, heads = a.heads + 2 * a.kv_heads;
  const int i = blockIdx.x * kThreads + threadIdx.x;
  const int piece = i % pieces, head = i / pieces % heads, row = i / pieces / heads;
  const int sequence = row / a.tokens, position = a.context + row % a.tokens;
  WaitForPreviousGrid();
  AllowNextGrid();
  if (sequence >= a.sequences) return;
  const auto* from = a.qkv + (int64_t{row} * heads + head) * a.head_dim + 8 * piece;
  Eight low(from), high(from + half);
  if (head < a.heads + a.kv_heads) {
    const int64_t angle = int64_t{position} * half + 8 * piece;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float c = a.cos[angle + j], s = a.sin[angle + j], x = low.x[j];
      low.x[j] = x * c - high.x[j] * s;
      high.x[j] = high.x[j] * c + x * s;
    }
  }
  __nv_bfloat16* to = a.q + (int64_t{row} * a.heads + head) * a.head_dim;
  if (head >= a.heads) {
    const int kv = head - a.heads, capacity = a.context + a.tokens;
    const int64_t cached = int64_t{sequence} * a.kv_heads + kv % a.kv_heads;
    to = (kv < a.kv_heads ? a.k : a.v) + (cached * capacity + position) * a.head_dim;
  }
  low.Store(to + 8 * piece);
  high.Store(to + half + 8 * piece);
}

__global__ void __launch_bounds__(kThreads)
    SiluKernel(const __nv_bfloat16* gate_up, int64_t eights, int width, __nv_bfloat16* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t row = i / (width / 8), at = 8 * (i % (width / 8));
  WaitForPreviousGrid();
  AllowNextGrid();
  if (i >= eights) return;
  Eight gate(gate_up + row * 2 * width + at);
  const Eight up(gate_up + row * 2 * width + width + at);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    gate.x[j] = __fdividef(gate.x[j], 1 + __expf(-gate.x[j])) * up.x[j];
  }
  gate.Store(y + row * width + at);
}

__global__ void __launch_bounds__(1024)
    ReadKernel(const uint4* memory, size_t count, uint32_t* sink) {
  const size_t step = size_t{gridDim.x} * blockDim.x;
  uint32_t sum = 0;
#pragma unroll 8
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const uint4 v = __ldcs(memory + i);
    sum ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  if (sum == 0x9E3779B9u) *sink = sum;
}

unsigned Blocks(int64_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

}  // namespace

void Bf16Norm(const __nv_bfloat16* x, int64_t tokens, int width, __nv_bfloat16* y,
              cudaStream_t stream) {
  const unsigned threads = (width / 8 + 31) / 32 * 32;
  NIBBLE_CUDA_CHECK(threads <= 32 * kMaxWarps);
  LaunchDependent(NormKernel, {.grid = static_cast<unsigned>(tokens), .block = threads}, stream, x,
                  width, y);
}

void Bf16RopeAppend(const Bf16RopeArguments& a, cudaStream_t stream) {
  const int64_t rows = int64_t{a.sequences} * a.tokens;
  const int64_t threads = rows * (a.heads + 2 * a.kv_heads) * (a.head_dim / 16);
  LaunchDependent(RopeKernel, {.grid = Blocks(threads), .block = kThreads}, stream, a);
}

void Bf16SiluMul(const __nv_bfloat16* gate_up, int64_t tokens, int width, __nv_bfloat16* y,
                 cudaStream_t stream) {
  const int64_t eights = tokens * width / 8;
  LaunchDependent(SiluKernel, {.grid = Blocks(eights), .block = kThreads}, stream, gate_up, eights,
                  width, y);
}

void ReadMemory(const void* memory, size_t bytes, uint32_t* sink, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(2 * Device::Current().multiprocessors);
  LaunchDependent(ReadKernel, {.grid = blocks, .block = 1024}, stream,
                  static_cast<const uint4*>(memory), bytes / sizeof(uint4), sink);
}

}  // namespace nibble::cuda
