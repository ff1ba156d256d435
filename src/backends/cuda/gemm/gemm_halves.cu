// SPDX-License-Identifier: Apache-2.0
// Up to 8 tokens: a block computes 16 outputs, weights as operand A and inputs as operand B, both
// straight from global memory. More tokens: tiles in shared memory (halves_tiles.cuh).
#include <algorithm>

#include "backends/cuda/gemm/gemm_halves.h"
#include "backends/cuda/gemm/halves_tiles.cuh"
#include "backends/cuda/runtime/launch.h"

namespace nibble::cuda {
namespace {

constexpr int64_t kFewTokens = 8;
constexpr int kFewWarps = 4, kManyWarps = 16;  // of a block

// Adds up the sums of all warps in those of the first warp.
template <int kWarps>
__device__ void AddWarps(float (&sums)[4]) {
  __shared__ float parts[kWarps - 1][4][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (warp > 0) parts[warp - 1][i][lane] = sums[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    for (int w = 0; warp == 0 && w < kWarps - 1; ++w) sums[i] += parts[w][i][lane];
  }
}

// grid [outputs, products]. The warps of a block have the same 16 outputs and divide the inputs, so
// that more warps are at work.
template <typename W, typename Out, int kWarps>
__global__ void __launch_bounds__(32 * kWarps)
    gemm_halves(const __grid_constant__ GemmArguments g) {
  AllowNextGrid();
  WaitForPreviousGrid();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const ProductTerms product = g.product(static_cast<int>(blockIdx.z));
  const int64_t output = int64_t{blockIdx.x} * 16 + lane / 4;
  if (output - lane / 4 >= product.rows) return;
  const auto* const w = static_cast<const W*>(static_cast<const void*>(product.linear.w));
  float sums[1][1][4] = {};
#pragma unroll 2
  for (int64_t step = warp; step * kStepInputs < g.cols; step += kWarps) {
    const int64_t k = step * kStepInputs + lane % 4 * 8;
    const auto load = [&](const auto* rows, int64_t row, int64_t end) {
      return row < end && k < g.cols ? LoadEight(rows + row * g.cols + k) : Eight();
    };
    const Eight a[1][2] = {{load(w, output, product.rows), load(w, output + 8, product.rows)}};
    const Eight x[1] = {load(g.values, lane / 4, g.tokens)};
    MultiplyStep<W>(sums, 0, a, x);
  }
  AddWarps<kWarps>(sums[0][0]);
  if (warp == 0) StoreSums<Out>(g, product, output, lane % 4 * 2, sums);
}

template <typename W, typename Out, int kWarps>
void Launch(const GemmArguments& g, cudaStream_t stream) {
  LaunchDependent(gemm_halves<W, Out, kWarps>,
                  {.grid = GridOf(g, 16, kFewTokens), .block = 32 * kWarps}, stream, g);
}

template <typename W>
void LaunchFor(const GemmArguments& g, cudaStream_t stream) {
  WithReal(g.y_type, [&]<typename Out>(Out) {
    const bool deep = g.cols >= 2 * kManyWarps * kStepInputs;
    g.tokens > kFewTokens ? LaunchTiles<W, Out>(g, stream)
    : deep                ? Launch<W, Out, kManyWarps>(g, stream)
                          : Launch<W, Out, kFewWarps>(g, stream);
  });
}

}  // namespace

void GemmHalves(const GemmArguments& g, cudaStream_t stream) {
  CheckArguments(g);
  NIBBLE_CUDA_CHECK(g.w_kind == WeightKind::kHalves && g.cols % 8 == 0);
  switch (g.w_type) {
    case WeightType::kFloat32:
      return LaunchFor<float>(g, stream);
    case WeightType::kBfloat16:
      return LaunchFor<__nv_bfloat16>(g, stream);
    case WeightType::kFloat16:
      return LaunchFor<__half>(g, stream);
  }
}

}  // namespace nibble::cuda
