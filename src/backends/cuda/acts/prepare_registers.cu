// SPDX-License-Identifier: Apache-2.0
// A block per row, whose values stay in registers from the first load to the codes. Everything that
// a code depends on is known after one barrier: a norm's factor scales the whole row, so that the
// largest values need not wait for it.
#include <algorithm>
#include <bit>

#include "backends/cuda/acts/gate.cuh"
#include "backends/cuda/acts/prepare_registers.h"
#include "backends/cuda/acts/quantize_row.cuh"
#include "backends/cuda/launch.h"

namespace nibble::cuda {
namespace {

constexpr int kMostThreads = 512, kMostPieces = 4, kMostHeads = 64;

__device__ void Load8(const float* p, float (&v)[8]) {
  const float4 a = reinterpret_cast<const float4*>(p)[0], b = reinterpret_cast<const float4*>(p)[1];
  v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
  v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}
__device__ void Load8(const __nv_bfloat16* p, float (&v)[8]) {
  UnpackBf16(*reinterpret_cast<const uint4*>(p), v);
}

// A thread's columns of a row: pieces of 8, each of them a block's threads apart.
template <int kPieces>
struct Pieces {
  static constexpr int kValues = 8 * kPieces;

  __device__ static int Count(const PrepareArguments& a) {
    const int pieces = a.width / 8 - static_cast<int>(threadIdx.x);
    return pieces <= 0 ? 0 : 8 * (1 + (pieces - 1) / static_cast<int>(blockDim.x));
  }
  __device__ static int Column(int piece) {
    return 8 * static_cast<int>(piece * blockDim.x + threadIdx.x);
  }

  // Returns the sum of squares, of kRmsNorm, whose weights do not depend on the kernel before.
  template <typename X>
  __device__ static float Load(const PrepareArguments& a, int64_t token, float (&v)[kValues]) {
    float weights[kPieces][8], squares = 0;
    if (a.norm != nullptr) {
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        if (Column(p) < a.width) Load8(a.norm + Column(p), weights[p]);
      }
    }
    WaitForPreviousGrid();
    const X* const x = static_cast<const X*>(a.x) + token * a.x_stride;
    const X* const up = static_cast<const X*>(a.up) + token * a.x_stride;
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      if (Column(p) >= a.width) continue;
      float eight[8], ups[8];
      Load8(x + Column(p), eight);
      if (a.source == Source::kGated) {
        Load8(up + Column(p), ups);
        GateTimes(a.gating, eight, ups);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (a.source == Source::kRmsNorm) squares = fmaf(eight[i], eight[i], squares);
        v[8 * p + i] = a.norm == nullptr ? eight[i] : eight[i] * weights[p][i];
      }
    }
    return squares;
  }

  template <typename ToCodes>
  __device__ static int Store(const PrepareArguments& a, int64_t token, const float (&v)[kValues],
                              const ToCodes& grid) {
    int8_t* const codes = a.main.codes + token * a.main.stride;
    int sum = 0;
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      if (Column(p) >= a.width) continue;
      const float* const e = v + 8 * p;
      const uint2 words = {grid.Codes({e[0], e[1], e[2], e[3]}),
                           grid.Codes({e[4], e[5], e[6], e[7]})};
      sum = __dp4a(static_cast<int>(words.x), 0x01010101, sum);
      sum = __dp4a(static_cast<int>(words.y), 0x01010101, sum);
      *reinterpret_cast<uint2*>(codes + Column(p)) = words;
    }
    return sum;
  }
};

// A thread's column of all heads.
template <int kHeads>
struct Heads {
  static constexpr int kValues = kHeads, kLog2 = std::countr_zero(uint32_t{kHeads});

  __device__ static int Count(const PrepareArguments&) { return kHeads; }

  template <typename X>
  __device__ static float Load(const PrepareArguments& a, int64_t token, float (&v)[kHeads]) {
    WaitForPreviousGrid();
    const X* const x = static_cast<const X*>(a.x) + token * a.x_stride + threadIdx.x;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) v[h] = static_cast<float>(x[h * blockDim.x]);
    Butterflies<kLog2>(v);
    return 0;
  }

  template <typename ToCodes>
  __device__ static int Store(const PrepareArguments& a, int64_t token, const float (&v)[kHeads],
                              const ToCodes& grid) {
    int8_t* const codes = a.main.codes + token * a.main.stride + threadIdx.x;
    int sum = 0;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const auto code = static_cast<int8_t>(grid.Code(v[h]));
      codes[h * blockDim.x] = code;
      sum += code;
    }
    return sum;
  }
};

// Of a block, for all threads; `words` has room for one of each warp.
template <typename Reduce>
__device__ int JoinWarps(const int* words, const Reduce& reduce) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return reduce(lane < static_cast<int>(blockDim.x) / 32 ? words[lane] : Reduce::kIdentity);
}

template <Grid kGrid, typename Layout>
__device__ void Quantize(const PrepareArguments& a, int64_t token,
                         const float (&v)[Layout::kValues], float squares) {
  __shared__ int all_squares[16], lows[16], highs[16], sums[16];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  Range<kGrid> range;
  const int count = Layout::Count(a);
#pragma unroll
  for (int i = 0; i < Layout::kValues; ++i) {
    if (i < count) range.Add(v[i]);
  }
  const int part = FloatSumOf()(__float_as_int(squares));
  const int low = MaxOf()(Ordered(range.negative_lo)), high = MaxOf()(Ordered(range.hi));
  if (lane == 0) all_squares[warp] = part, lows[warp] = low, highs[warp] = high;
  __syncthreads();
  range = {FromOrdered(JoinWarps(lows, MaxOf())), FromOrdered(JoinWarps(highs, MaxOf()))};
  float factor = a.hadamard.scale;
  if (a.source == Source::kRmsNorm) {
    const float sum = __int_as_float(JoinWarps(all_squares, FloatSumOf()));
    factor *= 1.0f / sqrtf(sum / static_cast<float>(a.width) + a.eps);
  }
  const ActGrid<kGrid> grid(a.main, range, factor);
  const int sum = SumOf()(Layout::Store(a, token, v, grid));
  int8_t* const codes = a.main.codes + token * a.main.stride;
  for (int64_t i = a.width + threadIdx.x; i < a.main.stride; i += blockDim.x) codes[i] = 0;
  if (lane == 0) sums[warp] = sum;
  __syncthreads();
  if (warp > 0) return;
  const int of_row = JoinWarps(sums, SumOf());
  if (lane > 0) return;
  a.main.scales[token] = grid.scale;
  if (kGrid == Grid::kAsymmetric) a.main.zetas[token] = grid.zeta;
  a.main.sums[token] = of_row;
}

template <typename Layout, typename X>
__global__ void __launch_bounds__(kMostThreads)
    PrepareRegistersKernel(const __grid_constant__ PrepareArguments a) {
  AllowNextGrid();
  const int64_t token = blockIdx.x;
  float v[Layout::kValues];
  const float squares = Layout::template Load<X>(a, token, v);
  if (!a.main.symmetric) {
    Quantize<Grid::kAsymmetric, Layout>(a, token, v, squares);
  } else if (a.main.signed_scale) {
    Quantize<Grid::kSigned, Layout>(a, token, v, squares);
  } else {
    Quantize<Grid::kSymmetric, Layout>(a, token, v, squares);
  }
}

template <typename Layout, typename X>
void Launch(const PrepareArguments& a, int threads, cudaStream_t stream) {
  LaunchDependent(
      PrepareRegistersKernel<Layout, X>,
      {.grid = static_cast<unsigned>(a.tokens), .block = static_cast<unsigned>(threads)}, stream,
      a);
}

template <typename X>
void Run(const PrepareArguments& a, cudaStream_t stream) {
  const int heads = a.hadamard.sylvester;
  if (heads > 1) {
    const auto run = [&]<int n>() { Launch<Heads<n>, X>(a, a.hadamard.inner, stream); };
    switch (heads) {
      case 8:
        return run.template operator()<8>();
      case 16:
        return run.template operator()<16>();
      case 32:
        return run.template operator()<32>();
      default:
        return run.template operator()<kMostHeads>();
    }
  }
  const int pieces = a.width / 8, threads = std::min((pieces + 31) / 32 * 32, kMostThreads);
  pieces <= threads       ? Launch<Pieces<1>, X>(a, threads, stream)
  : pieces <= 2 * threads ? Launch<Pieces<2>, X>(a, threads, stream)
                          : Launch<Pieces<kMostPieces>, X>(a, threads, stream);
}

}  // namespace

bool FitsRegisters(const PrepareArguments& a) {
  const HadamardPlan& h = a.hadamard;
  const bool codes = a.main.values == nullptr && a.main.group == 0 && a.main.bits <= 8;
  if (!codes || a.in_parts() || a.scales != nullptr || h.dense_factors > 0) return false;
  if (h.sylvester == 1) return a.width <= 8 * kMostThreads * kMostPieces;
  const bool across = h.segment == a.width && h.inner % 32 == 0 && h.inner <= kMostThreads;
  return across && h.sylvester >= 8 && h.sylvester <= kMostHeads && a.source == Source::kPlain;
}

void PrepareActsInRegisters(const PrepareArguments& a, cudaStream_t stream) {
  WithReal(a.type, [&]<typename X>(X) { Run<X>(a, stream); });
}

}  // namespace nibble::cuda
