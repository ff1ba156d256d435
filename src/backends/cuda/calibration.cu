// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/calibration.h"
#include "backends/cuda/launch.h"
#include "backends/cuda/ptx.h"

namespace nibble::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr int kTile = 32;

// A block per token.
__global__ void DecodeKernel(const DecodeArguments a) {
  WaitForPreviousGrid();
  AllowNextGrid();
  const int64_t token = blockIdx.x, group_length = a.width / a.groups;
  for (int64_t k = threadIdx.x; k < a.width; k += kThreads) {
    const int64_t group = token * a.groups + k / group_length;
    const float zeta = a.zetas == nullptr ? 0.0f : a.zetas[group];
    const float code = static_cast<float>(a.codes[token * a.stride + k]);
    a.values[token * a.width + k] = __fmul_rn(a.scales[group], __fadd_rn(code, zeta));
  }
}

__global__ void TransposeKernel(const float* in, int64_t rows, int64_t cols, float* out) {
  __shared__ float tile[kTile][kTile + 1];
  WaitForPreviousGrid();
  AllowNextGrid();
  const int64_t row = int64_t{blockIdx.y} * kTile, col = int64_t{blockIdx.x} * kTile;
  for (int i = threadIdx.y; i < kTile; i += blockDim.y) {
    if (row + i < rows && col + threadIdx.x < cols) {
      tile[i][threadIdx.x] = in[(row + i) * cols + col + threadIdx.x];
    }
  }
  __syncthreads();
  for (int i = threadIdx.y; i < kTile; i += blockDim.y) {
    if (col + i < cols && row + threadIdx.x < rows) {
      out[(col + i) * rows + row + threadIdx.x] = tile[threadIdx.x][i];
    }
  }
}

unsigned Tiles(int64_t length) {
  return static_cast<unsigned>((length + kTile - 1) / kTile);
}

}  // namespace

void DecodeActivations(const DecodeArguments& a, cudaStream_t stream) {
  if (a.tokens == 0) return;
  LaunchDependent(DecodeKernel, {.grid = static_cast<unsigned>(a.tokens), .block = kThreads},
                  stream, a);
}

void Transpose(const float* in, int64_t rows, int64_t cols, float* out, cudaStream_t stream) {
  LaunchDependent(TransposeKernel,
                  {.grid = dim3(Tiles(cols), Tiles(rows)), .block = dim3(kTile, 8)}, stream, in,
                  rows, cols, out);
}

}  // namespace nibble::cuda
