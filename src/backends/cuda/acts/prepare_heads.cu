// SPDX-License-Identifier: Apache-2.0
// A block per row, whose values stay in registers from the first load to the codes: a thread has a
// column of all heads and does its butterflies.
#include <bit>
#include <cstddef>

#include "backends/cuda/acts/prepare_heads.h"
#include "backends/cuda/acts/quantize_row.cuh"
#include "backends/cuda/runtime/launch.h"

namespace nibble::cuda {
namespace {

constexpr int kMaxThreads = 512, kMaxHeads = 64;
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
  if (kGrid == Grid::kAsymmetric) a.zero_offsets[token] = grid.zero_offset;
  a.sums[token] = of_row;
}

// One word per warp.
struct HeadWords {
  int low[kMaxThreads / 32], high[kMaxThreads / 32], sum[kMaxThreads / 32];
};

// Quantize where every head is a group.
template <Grid kGrid, int kHeads>
__device__ void QuantizeGroups(const PreparePart& a, int64_t token, int64_t pitch,
                               const float (&v)[kHeads], float factor) {
  using HeadGrid = ActGrid<kGrid>;
  __shared__ HeadWords words[kHeads];
  __shared__ __align__(16) std::byte memory[kHeads * sizeof(HeadGrid)];
  auto* const grids = reinterpret_cast<HeadGrid*>(memory);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    Range<kGrid> range;
    range.Add(v[h]);
    if (!OfMagnitudes(kGrid)) words[h].low[warp] = MaxOf()(Ordered(range.negative_lo));
    words[h].high[warp] = MaxOf()(Ordered(range.hi));
  }
  __syncthreads();
  for (int h = warp; h < kHeads; h += warps) {
    Range<kGrid> range;
    if (!OfMagnitudes(kGrid)) range.negative_lo = FromOrdered(JoinWarps(words[h].low, MaxOf()));
    range.hi = FromOrdered(JoinWarps(words[h].high, MaxOf()));
    if (lane == 0) grids[h] = HeadGrid(a, range, factor);
  }
  __syncthreads();
  int8_t* const codes = a.codes + token * a.stride;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const auto code = static_cast<int8_t>(grids[h].Code(v[h]));
    codes[h * blockDim.x + threadIdx.x] = code;
    words[h].sum[warp] = SumOf()(code);
  }
  for (int64_t i = a.columns + threadIdx.x; i < a.stride; i += blockDim.x) codes[i] = 0;
  __syncthreads();
  for (int h = warp; h < kHeads; h += warps) {
    const int sum = JoinWarps(words[h].sum, SumOf());
    if (lane > 0) continue;
    const int64_t at = h * pitch + token;
    a.scales[at] = grids[h].scale;
    if (kGrid == Grid::kAsymmetric) a.zero_offsets[at] = grids[h].zero_offset;
    a.sums[at] = sum;
  }
}

template <int kHeads, typename X>
__global__ void __launch_bounds__(kMaxThreads)
    prepare_heads(const __grid_constant__ PrepareArguments a) {
  AllowNextGrid();
  WaitForPreviousGrid();
  const int64_t token = blockIdx.x;
  const X* const x = static_cast<const X*>(a.x) + token * a.x_stride + threadIdx.x;
  float v[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) v[h] = static_cast<float>(x[h * blockDim.x]);
  if (a.hadamard.halves) ToHalfPrecision(v);
  Butterflies<kLog2Of<kHeads>>(v);
  if (a.hadamard.halves) ToHalfPrecision(v);
  WithGrid(a.main, [&]<Grid kGrid>() {
    const float factor = a.hadamard.scale;
    a.main.group == 0 ? Quantize<kGrid>(a.main, token, v, factor)
                      : QuantizeGroups<kGrid>(a.main, token, ScalePitch(a.tokens), v, factor);
  });
}

}  // namespace

bool FitsHeads(const PrepareArguments& a) {
  const HadamardPlan& h = a.hadamard;
  const bool codes =
      !a.main.keeps_values() && a.main.bits <= 8 && (a.main.group == 0 || a.main.group == h.inner);
  const bool across =
      h.segment == a.width && h.inner % 32 == 0 && h.inner <= kMaxThreads && h.dense_factors == 0;
  return codes && across && h.sylvester >= 8 && h.sylvester <= kMaxHeads && !a.in_parts() &&
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
        return run.template operator()<kMaxHeads>();
    }
  });
}

}  // namespace nibble::cuda
