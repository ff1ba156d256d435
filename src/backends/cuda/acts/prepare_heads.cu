// SPDX-License-Identifier: Apache-2.0
// A block per row, whose values stay in registers from the first load to the codes: a thread has a
// column of all heads and does its butterflies.
#include <bit>

#include "backends/cuda/acts/prepare_heads.h"
#include "backends/cuda/acts/quantize_row.cuh"
#include "backends/cuda/launch.h"

namespace nibble::cuda {
namespace {

constexpr int kMostThreads = 512, kMostHeads = 64;
template <int n>
inline constexpr int kLog2Of = std::countr_zero(uint32_t{n});

template <Grid kGrid, int kHeads>
__device__ void Quantize(const PreparePart& a, int64_t token, const float (&v)[kHeads],
                         float factor) {
  __shared__ int lows[16], highs[16], sums[16];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  Range<kGrid> range;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) range.Add(v[h]);
  const int low = MaxOf()(Ordered(range.negative_lo)), high = MaxOf()(Ordered(range.hi));
  if (lane == 0) lows[warp] = low, highs[warp] = high;
  __syncthreads();
  range = {FromOrdered(JoinWarps(lows, MaxOf())), FromOrdered(JoinWarps(highs, MaxOf()))};
  const ActGrid<kGrid> grid(a, range, factor);
  int8_t* const codes = a.codes + token * a.stride;
  int sum = 0;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const auto code = static_cast<int8_t>(grid.Code(v[h]));
    codes[h * blockDim.x + threadIdx.x] = code;
    sum += code;
  }
  for (int64_t i = a.columns + threadIdx.x; i < a.stride; i += blockDim.x) codes[i] = 0;
  sum = SumOf()(sum);
  if (lane == 0) sums[warp] = sum;
  __syncthreads();
  if (warp > 0) return;
  const int of_row = JoinWarps(sums, SumOf());
  if (lane > 0) return;
  a.scales[token] = grid.scale;
  if (kGrid == Grid::kAsymmetric) a.zetas[token] = grid.zeta;
  a.sums[token] = of_row;
}

template <int kHeads, typename X>
__global__ void __launch_bounds__(kMostThreads)
    prepare_heads(const __grid_constant__ PrepareArguments a) {
  AllowNextGrid();
  WaitForPreviousGrid();
  const int64_t token = blockIdx.x;
  const X* const x = static_cast<const X*>(a.x) + token * a.x_stride + threadIdx.x;
  float v[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) v[h] = static_cast<float>(x[h * blockDim.x]);
  Butterflies<kLog2Of<kHeads>>(v);
  WithGrid(a.main, [&]<Grid kGrid>() { Quantize<kGrid>(a.main, token, v, a.hadamard.scale); });
}

}  // namespace

bool FitsHeads(const PrepareArguments& a) {
  const HadamardPlan& h = a.hadamard;
  const bool codes = a.main.values == nullptr && a.main.group == 0 && a.main.bits <= 8;
  const bool across =
      h.segment == a.width && h.inner % 32 == 0 && h.inner <= kMostThreads && h.dense_factors == 0;
  return codes && across && h.sylvester >= 8 && h.sylvester <= kMostHeads && !a.in_parts() &&
         a.source == Source::kPlain && a.scales == nullptr;
}

void PrepareHeads(const PrepareArguments& a, cudaStream_t stream) {
  WithReal(a.type, [&]<typename X>(X) {
    const auto run = [&]<int heads>() {
      LaunchDependent(prepare_heads<heads, X>,
                      {.grid = static_cast<unsigned>(a.tokens),
                       .block = static_cast<unsigned>(a.hadamard.inner)},
                      stream, a);
    };
    switch (a.hadamard.sylvester) {
      case 8:
        return run.template operator()<8>();
      case 16:
        return run.template operator()<16>();
      case 32:
        return run.template operator()<32>();
      default:
        return run.template operator()<kMostHeads>();
    }
  });
}

}  // namespace nibble::cuda
