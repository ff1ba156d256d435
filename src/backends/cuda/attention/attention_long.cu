// SPDX-License-Identifier: Apache-2.0
// Attention for heads of more than 256, whose sums do not fit into the registers of a warp that
// multiplies tiles: each warp has a few rows, a lane 16 neighbours of each. Pages are decoded to
// fp16, K and then V in the same memory; scores, weights and sums are fp32.
#include "backends/cuda/attention/page_decode.cuh"
#include "backends/cuda/runtime/launch.h"
#include "backends/cuda/runtime/warp_reduce.cuh"

namespace nibble::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kSpanPages = 1;  // a page keeps a warp with a row busy for longer than joining takes
constexpr int kFewRows = 64;   // up to here keys are split
constexpr int kElements = kMaxHeadDim / 32, kStride = kMaxHeadDim + 8;

// Rows of a warp: one in steps of answers, where there are few.
constexpr int RowsOfWarp(int rows) {
  return rows <= kWarps ? 1 : 2;
}

template <int kRowsOfWarp>
struct LongShared {
  static constexpr int kRows = kWarps * kRowsOfWarp;
  __half page[kPageKeys][kStride];  // of K, then of V; at the end the result
  float weights[kRows][kPageKeys];

  __device__ Parts Result() {
    static_assert(kRows * (kMaxHeadDim + 2) * sizeof(float) <= sizeof(page));
    auto* values = reinterpret_cast<float*>(page);
    return {values, reinterpret_cast<float2*>(values + kRows * kMaxHeadDim), kMaxHeadDim, 0, 0};
  }
};

// Elements of a lane, in the order of page_decode.cuh: two times eight, 256 apart.
__device__ __forceinline__ int FirstOf(int eight) {
  return eight * (kMaxHeadDim / 2) + threadIdx.x % 32 * 8;
}

__device__ __forceinline__ void LoadEight(const __half* from, float (&x)[8]) {
  const uint4 words = *reinterpret_cast<const uint4*>(from);
  const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = __half22float2(*reinterpret_cast<const __half2*>(&pairs[i]));
    x[i] = two.x, x[i + 4] = two.y;
  }
}

struct Row {
  float q[kElements], o[kElements];
  float max, sum;
};

// Calls use(first element, its place among the lane's own) for each eight that the head has.
template <typename Use>
__device__ __forceinline__ void ForEights(int head_dim, const Use& use) {
#pragma unroll
  for (int eight = 0; eight < 2; ++eight) {
    if (FirstOf(eight) < head_dim) use(FirstOf(eight), 8 * eight);
  }
}

// Weights of a page's keys for one row, whose sums are scaled to the new maximum.
template <typename Shared>
__device__ __forceinline__ void Weigh(const Tile& tile, int page, int number, int head_dim,
                                      Shared& shared, Row& row) {
  const KeyRange visible = tile.Visible(number, page);
  const int lane = threadIdx.x % 32, first = page * kPageKeys;
  float scores[2] = {kNoKeys, kNoKeys};  // of keys lane and lane + 32
  for (int key = 0; key < kPageKeys; ++key) {
    if (first + key < visible.first || first + key >= visible.last) continue;
    float dot = 0;
    ForEights(head_dim, [&](int d, int at) {
      float k[8];
      LoadEight(&shared.page[key][d], k);
#pragma unroll
      for (int i = 0; i < 8; ++i) dot = fmaf(row.q[at + i], k[i], dot);
    });
    const float score = Capped(WarpSum(dot), tile.cap);
    if (key % 32 == lane) scores[key / 32] = score;
  }
  const float max = fmaxf(row.max, WarpMax(fmaxf(scores[0], scores[1])));
  const float factor = Exp2(row.max - max);
  float sum = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float weight = scores[half] == kNoKeys ? 0 : Exp2(scores[half] - max);
    shared.weights[number][lane + 32 * half] = weight;
    sum += weight;
  }
  row.sum = row.sum * factor + WarpSum(sum);
  row.max = max;
#pragma unroll
  for (float& o : row.o) o *= factor;
}

template <typename Shared>
__device__ __forceinline__ void AddValues(const float* weights, int head_dim, Shared& shared,
                                          Row& row) {
  for (int key = 0; key < kPageKeys; ++key) {
    const float weight = weights[key];
    if (weight == 0) continue;
    ForEights(head_dim, [&](int d, int at) {
      float v[8];
      LoadEight(&shared.page[key][d], v);
#pragma unroll
      for (int i = 0; i < 8; ++i) row.o[at + i] = fmaf(weight, v[i], row.o[at + i]);
    });
  }
}

__device__ __forceinline__ void Begin(const AttentionArguments& a, const Tile& tile, int number,
                                      Row& row) {
  row.max = kNoKeys, row.sum = 0;
#pragma unroll
  for (int eight = 0; eight < 2; ++eight) {
    float x[8] = {};
    if (number < tile.rows && FirstOf(eight) < a.kv.head_dim) {
      LoadQuery(a, tile, number, FirstOf(eight), x);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      row.q[8 * eight + i] = x[i] * (a.scale * kLog2E);
      row.o[8 * eight + i] = 0;
    }
  }
}

template <int kRowsOfWarp>
__global__ void __launch_bounds__(kThreads) LongKernel(const __grid_constant__ AttentionCall call) {
  extern __shared__ __align__(128) std::byte memory[];
  auto& shared = *reinterpret_cast<LongShared<kRowsOfWarp>*>(memory);
  const AttentionArguments& a = call.arguments;
  const int head_dim = a.kv.head_dim, first = threadIdx.x / 32 * kRowsOfWarp;
  const Tile tile = TileOf(call);
  if (tile.rows == 0 || tile.span >= tile.spans) return;
  WaitForPreviousGrid();
  AllowNextGrid();
  Row rows[kRowsOfWarp];
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) Begin(a, tile, first + r, rows[r]);
  for (int i = tile.pages.first; i < tile.pages.last; ++i) {
    const int page = tile.PageAt(i);
    const std::byte* block = tile.Block(page, a.kv);
    __syncthreads();  // nobody reads the page before any more
    DecodeRows<kMaxHeadDim>(a.kv.k, head_dim, block, tile.Stored(page), shared.page[0], kStride);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRowsOfWarp; ++r) {
      if (first + r < tile.rows) Weigh(tile, page, first + r, head_dim, shared, rows[r]);
    }
    __syncthreads();
    DecodeRows<kMaxHeadDim>(a.kv.v, head_dim, block, tile.Stored(page), shared.page[0], kStride);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRowsOfWarp; ++r) {
      if (first + r < tile.rows) AddValues(shared.weights[first + r], head_dim, shared, rows[r]);
    }
  }
  __syncthreads();
  const Parts result = shared.Result();
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) {
#pragma unroll
    for (int four = 0; four < 4; ++four) {
      const int d = FirstOf(four / 2) + four % 2 * 4;
      const float* o = rows[r].o + 4 * four;
      if (d < head_dim && first + r < tile.rows) {
        StorePart(result, first + r, d, {o[0], o[1], o[2], o[3]}, {rows[r].max, rows[r].sum});
      }
    }
  }
  FinishBlock(call, tile, result, 1, head_dim);
}

}  // namespace

AttentionPlan LongPlan(const AttentionArguments& a) {
  return PlanOf(a, kWarps * RowsOfWarp(a.rows()), a.rows() <= kFewRows ? kSpanPages : 0);
}

void LaunchLong(const AttentionCall& call, cudaStream_t stream) {
  const AttentionArguments& a = call.arguments;
  const bool one = RowsOfWarp(a.rows()) == 1;
  LaunchDependent(one ? LongKernel<1> : LongKernel<2>,
                  {.grid = dim3(a.kv.kv_heads, call.plan.spans, a.sequences * call.plan.tiles),
                   .block = kThreads,
                   .shared_bytes = one ? sizeof(LongShared<1>) : sizeof(LongShared<2>)},
                  stream, call);
}

}  // namespace nibble::cuda
