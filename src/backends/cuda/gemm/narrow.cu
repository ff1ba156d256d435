// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "backends/cuda/gemm/narrow.h"
#include "backends/cuda/ptx/ptx.h"
#include "backends/cuda/runtime/launch.h"

namespace nibble::cuda {
namespace {

constexpr int64_t kThreads = 256;

__global__ void NarrowKernel(const float* in, int64_t count, __nv_bfloat16* out) {
  WaitForPreviousGrid();
  AllowNextGrid();
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = blockIdx.x * kThreads + threadIdx.x; i < count; i += step) {
    out[i] = __float2bfloat16_rn(in[i]);
  }
}

}  // namespace

void Narrow(const float* in, int64_t count, __nv_bfloat16* out, cudaStream_t stream) {
  if (count == 0) return;
  constexpr int64_t kMaxBlocks = 4096;
  const int64_t blocks = std::min((count + kThreads - 1) / kThreads, kMaxBlocks);
  LaunchDependent(NarrowKernel, {.grid = static_cast<unsigned>(blocks), .block = kThreads}, stream,
                  in, count, out);
}

}  // namespace nibble::cuda
