// SPDX-License-Identifier: Apache-2.0
// Two kernels for either product, with the same order of operations for an output:
//
//   StreamKernel   few tokens: a warp per token, a lane per output. The rows of w pass through
//                  a ring in shared memory, so that a lane may walk along its row by itself.
//   TileKernel     any number: 64 outputs x 64 tokens, 4 x 4 of them a thread
#include <algorithm>

#include "backends/cuda/gemm/gemm_plain.h"
#include "backends/cuda/gemm/plain_products.cuh"
#include "backends/cuda/ptx/ptx.h"
#include "backends/cuda/runtime/launch.h"

namespace nibble::cuda {
namespace {

__device__ void Store(const GemmArguments& g, int64_t t, int64_t n, float value) {
  if (t >= g.tokens || n >= g.rows) return;
  if (g.bias != nullptr) value = __fadd_rn(value, g.bias[n]);
  const int64_t at = t * g.y_stride + n;
  if (g.y_type == RealType::kBfloat16) {
    static_cast<__nv_bfloat16*>(g.y)[at] = __float2bfloat16_rn(value);
    return;
  }
  float* const y = static_cast<float*>(g.y) + at;
  *y = g.accumulate ? __fadd_rn(*y, value) : value;
}

// ---- Few tokens ----

constexpr int kMaxStreamTokens = 32;  // for more, tiles are faster
constexpr int kBlockTokens = 8;       // at most
constexpr int kUnits = 16;            // of a row in a stage: 256 bytes
constexpr int kStages = 6;

// A stage is w [32][kUnits + 1] units (no bank conflicts), then x [warps][kUnits] units.
template <typename P>
struct Ring {
  static constexpr int kWBytes = 32 * (kUnits + 1) * 16;
  static constexpr int kXBytes = kUnits * P::kUnitBytes;  // of a token

  const P& product;
  std::byte* memory;
  int units;  // of a row

  static __host__ __device__ int StageBytes(int warps) { return kWBytes + warps * kXBytes; }
  __device__ std::byte* At(int stage) const {
    return memory + stage % kStages * StageBytes(blockDim.x / 32);
  }
  __device__ const uint4* W(int stage, int row) const {
    return reinterpret_cast<const uint4*>(At(stage)) + row * (kUnits + 1);
  }
  __device__ const uint4* X(int stage, int warp) const {
    return reinterpret_cast<const uint4*>(At(stage) + kWBytes + warp * kXBytes);
  }
  __device__ int UnitsOf(int stage) const { return min(kUnits, units - stage * kUnits); }

  // Requests a stage as one group of copies, which is empty behind the last stage.
  __device__ void Request(int stage) const {
    const int count = UnitsOf(stage), unit = threadIdx.x % kUnits;
    const int first = threadIdx.x / kUnits, step = blockDim.x / kUnits;
    if (unit < count) {
      const int64_t at = stage * kUnits + unit;
      for (int row = first; row < 32; row += step) {
        const int64_t n = min(int64_t{blockIdx.y} * 32 + row, product.g.rows - 1);
        CopyAsync16(W(stage, row) + unit, product.w_row(n) + at * 16);
      }
      for (int warp = first; warp < blockDim.x / 32; warp += step) {
        const int64_t t = min(int64_t{blockIdx.x} * kBlockTokens + warp, product.g.tokens - 1);
        CopyAsync<P::kUnitBytes>(X(stage, warp) + unit * (P::kUnitBytes / 16),
                                 product.x_row(t) + at * P::kUnitBytes);
      }
    }
    CopyAsyncCommit();
  }
};

// The grid is (blocks of tokens, of outputs): blocks that share weights run side by side.
template <typename P>
__global__ void __launch_bounds__(32 * kBlockTokens)
    StreamKernel(const __grid_constant__ GemmArguments g) {
  extern __shared__ __align__(16) std::byte memory[];
  WaitForPreviousGrid();
  AllowNextGrid();
  const P product = {g};
  const int units = static_cast<int>((g.cols + P::kUnitInputs - 1) / P::kUnitInputs);
  const Ring<P> ring = {product, memory, units};
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t token = int64_t{blockIdx.x} * kBlockTokens + warp;
  const int64_t row = int64_t{blockIdx.y} * 32 + lane;
  const int64_t t = min(token, g.tokens - 1), n = min(row, g.rows - 1);
  const int group_units = static_cast<int>((product.group() + P::kUnitInputs - 1) / P::kUnitInputs);
  typename P::Element d = 0, q = 0, p = 0;
  float y = 0;
  int left = group_units, group = 0;
  for (int stage = 0; stage < kStages - 1; ++stage) ring.Request(stage);
  for (int stage = 0; stage * kUnits < units; ++stage) {
    CopyAsyncWait<kStages - 2>();
    __syncthreads();  // all warps see the stage and have read the one before
    ring.Request(stage + kStages - 1);
    const uint4 *w = ring.W(stage, lane), *x = ring.X(stage, warp);
#pragma unroll 4
    for (int i = 0; i < ring.UnitsOf(stage); ++i) {
      P::MultiplyUnit(x + i * (P::kUnitBytes / 16), w[i], d, q, p);
      if (--left > 0) continue;
      const float term = product.Term(d, q, p, t, n, group * product.group());
      y = group == 0 ? term : __fadd_rn(y, term);
      left = group_units, ++group;
      d = q = p = 0;
    }
  }
  Store(g, token, row, y);
}

// ---- Any number of tokens ----

constexpr int kTile = 64, kTileThreads = 256;
constexpr int kDepth = 16;  // elements of a step

// Elements of a step, [element][row].
template <typename P>
struct TileMemory {
  alignas(16) typename P::Element x[kDepth][kTile + 4], w[kDepth][kTile + 4];
};

// A thread's elements of a step: one of every 16th row.
template <typename P>
struct TileShare {
  static constexpr int kRows = kTile * kDepth / kTileThreads;
  typename P::Element x[kRows], w[kRows];

  // Loads the elements from input k on, 0 from `end` on; all loads at once.
  template <bool kWhole>
  __device__ void Load(const P& product, int64_t first_token, int64_t first_row, int64_t k,
                       int64_t end) {
    k += threadIdx.x % kDepth * P::kInputs;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int64_t row = threadIdx.x / kDepth + i * (kTileThreads / kDepth);
      const int64_t t = min(first_token + row, product.g.tokens - 1);
      const int64_t n = min(first_row + row, product.g.rows - 1);
      x[i] = P::template XElement<kWhole>(product.x_row(t), k, end);
      w[i] = P::template WElement<kWhole>(product.w_row(n), k, end);
    }
  }
  __device__ void Store(TileMemory<P>& memory) const {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = threadIdx.x / kDepth + i * (kTileThreads / kDepth);
      memory.x[threadIdx.x % kDepth][row] = x[i];
      memory.w[threadIdx.x % kDepth][row] = w[i];
    }
  }
};

template <typename P>
__global__ void __launch_bounds__(kTileThreads, 2)
    TileKernel(const __grid_constant__ GemmArguments g) {
  __shared__ TileMemory<P> memory;
  WaitForPreviousGrid();
  AllowNextGrid();
  const P product = {g};
  const int64_t first_token = int64_t{blockIdx.y} * kTile, first_row = int64_t{blockIdx.x} * kTile;
  const int token = threadIdx.x / 16 * 4, row = threadIdx.x % 16 * 4;
  const bool whole = product.has_whole_elements();
  float y[4][4] = {};
  for (int64_t begin = 0; begin < g.cols; begin += product.group()) {
    typename P::Element sums[4][4] = {}, x_sums[4] = {}, w_sums[4] = {};
    const int64_t end = begin + product.group();
    for (int64_t k = begin; k < end; k += kDepth * P::kInputs) {
      TileShare<P> share;
      whole ? share.template Load<true>(product, first_token, first_row, k, end)
            : share.template Load<false>(product, first_token, first_row, k, end);
      __syncthreads();  // the step before has been read
      share.Store(memory);
      __syncthreads();
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          P::Multiply(memory.x[d][token + i / 4], memory.w[d][row + i % 4], sums[i / 4][i % 4]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          P::Count(memory.x[d][token + i], x_sums[i]);
          P::Count(memory.w[d][row + i], w_sums[i]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int64_t t = min(first_token + token + i / 4, g.tokens - 1);
      const int64_t n = min(first_row + row + i % 4, g.rows - 1);
      const float term =
          product.Term(sums[i / 4][i % 4], x_sums[i / 4], w_sums[i % 4], t, n, begin);
      y[i / 4][i % 4] = begin == 0 ? term : __fadd_rn(y[i / 4][i % 4], term);
    }
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    Store(g, first_token + token + i / 4, first_row + row + i % 4, y[i / 4][i % 4]);
  }
}

// ---- Launch ----

template <typename P>
void Launch(const GemmArguments& g, cudaStream_t stream) {
  const P product = {g};
  CheckArguments(g);
  NIBBLE_CUDA_CHECK(g.cols % product.group() == 0);
  const auto blocks = [](int64_t size, int64_t of) {
    return static_cast<unsigned>((size + of - 1) / of);
  };
  if (g.tokens <= kMaxStreamTokens && product.has_units()) {
    const int warps = static_cast<int>(std::min<int64_t>(g.tokens, kBlockTokens));
    LaunchDependent(StreamKernel<P>,
                    {.grid = dim3(blocks(g.tokens, kBlockTokens), blocks(g.rows, 32)),
                     .block = static_cast<unsigned>(32 * warps),
                     .shared_bytes = size_t{kStages} * Ring<P>::StageBytes(warps)},
                    stream, g);
  } else {
    LaunchDependent(
        TileKernel<P>,
        {.grid = dim3(blocks(g.rows, kTile), blocks(g.tokens, kTile)), .block = kTileThreads},
        stream, g);
  }
}

}  // namespace

void GemmFloat(const GemmArguments& g, cudaStream_t stream) {
  switch (g.w_type) {
    case WeightType::kFloat32:
      return Launch<FloatProduct<float>>(g, stream);
    case WeightType::kBfloat16:
      return Launch<FloatProduct<__nv_bfloat16>>(g, stream);
    case WeightType::kFloat16:
      return Launch<FloatProduct<__half>>(g, stream);
  }
}

void GemmGrouped(const GemmArguments& g, cudaStream_t stream) {
  NIBBLE_CUDA_CHECK(g.x_group == 0 || g.w_group == 0 || g.x_group % g.w_group == 0 ||
                    g.w_group % g.x_group == 0);
  g.x_zero_offsets == nullptr&& g.w_zeros == nullptr ? Launch<GroupedProduct<false>>(g, stream)
                                                     : Launch<GroupedProduct<true>>(g, stream);
}

}  // namespace nibble::cuda
