// SPDX-License-Identifier: Apache-2.0
// Attention for heads of more than 256 and any format ("FlashAttention-2", Dao 2023). The sums of
// 16 rows do not fit into the registers of one warp. Two warps share them: each scores one half of
// a page's keys and sums one half of the elements. Maxima and weights go through shared memory.
//
// K of a page and then V are copied to shared memory while the part before is worked on, and
// decoded to fp16 in one place.
#include <algorithm>

#include "backends/cuda/attention/prefill_rows.cuh"
#include "backends/cuda/runtime/launch.h"

namespace nibble::cuda {
namespace {

constexpr int D = kMaxHeadDim, kStride = D + 8;
constexpr int kThreads = 256;
constexpr int kHalfKeys = kPageKeys / 2, kHalf = D / 2;
constexpr int kManyRows = 64, kSomeRows = 16;  // of a block
constexpr int kSpanPages = 2;                  // of a tile with few rows
constexpr int kFewRows = 64;                   // up to here keys are split

template <int kRows>
struct LongShared {
  __half q[kRows][kStride], page[kPageKeys][kStride];  // later the result takes their place
  __half weights[kRows][kPageKeys + 8];
  float max[2][kRows], sum[2][kRows];  // by half of the keys
  float2 ends[kRows];
  Tile tile;

  __device__ Parts Result() {
    constexpr int kResultStride = D + 4;
    static_assert(kRows * kResultStride * sizeof(float) <= sizeof(q) + sizeof(page));
    return {reinterpret_cast<float*>(q), ends, kResultStride, 0, 0};
  }
};

// The rows and the half of keys and elements of a warp; warps without rows only decode.
struct Share {
  int first = threadIdx.x / 32 % 4 * 16, half = threadIdx.x / 128;
};

// A lane's results for its rows g and g + 8 (index h). Both warps know the same maxima; a sum is
// that of a warp's own keys.
struct Sums {
  float o[kHalf / 8][4] = {};
  float max[2] = {kNoKeys, kNoKeys}, sum[2] = {0, 0};
};

using HalfScores = Scores<1, kHalfKeys / 8>;

template <int kRows>
__device__ __forceinline__ void Score(const LongShared<kRows>& shared, const Share& share, int page,
                                      HalfScores& s) {
  const int lane = threadIdx.x % 32, first_key = share.half * kHalfKeys;
#pragma unroll
  for (auto& keys : s[0]) keys[0] = keys[1] = keys[2] = keys[3] = 0;
#pragma unroll 8
  for (int d = 0; d < D; d += 16) {
    uint32_t q[4];
    LoadMatrices(&shared.q[share.first + lane % 16][d + lane / 16 * 8], q);
#pragma unroll
    for (int n = 0; n < kHalfKeys / 8; n += 2) {
      uint32_t k[4];
      const int key = first_key + 8 * n + lane / 16 * 8 + lane % 8;
      LoadMatrices(&shared.page[key][d + lane / 8 % 2 * 8], k);
      MmaF16(s[0][n], q, k[0], k[1]);
      MmaF16(s[0][n + 1], q, k[2], k[3]);
    }
  }
  const Tile& tile = shared.tile;
  if (tile.cap != 0) Cap(tile.cap, s);
  if (!AllSeen(tile, page, share.first, 16)) Mask(tile, page, share.first, first_key, s);
}

// The largest scores of a warp's keys, for the other warp.
template <int kRows>
__device__ __forceinline__ void ShareMaxima(const HalfScores& s, const Share& share,
                                            LongShared<kRows>& shared) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float max = kNoKeys;
#pragma unroll
    for (const auto& keys : s[0]) max = fmaxf(max, fmaxf(keys[2 * h], keys[2 * h + 1]));
    max = fmaxf(max, __shfl_xor_sync(~0u, max, 1));
    max = fmaxf(max, __shfl_xor_sync(~0u, max, 2));
    if (t == 0) shared.max[share.half][share.first + 8 * h + g] = max;
  }
}

// Scores become weights, for both warps.
template <int kRows>
__device__ __forceinline__ void ShareWeights(const HalfScores& s, const Share& share,
                                             LongShared<kRows>& shared, Sums& sums) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = share.first + 8 * h + g;
    const float max = fmaxf(sums.max[h], fmaxf(shared.max[0][row], shared.max[1][row]));
    const float factor = Exp2(sums.max[h] - max);
    sums.max[h] = max;
    float sum = 0;
#pragma unroll
    for (int n = 0; n < kHalfKeys / 8; ++n) {
      const float low = Exp2(s[0][n][2 * h] - max), high = Exp2(s[0][n][2 * h + 1] - max);
      sum += low + high;
      const int key = share.half * kHalfKeys + 8 * n + 2 * t;
      *reinterpret_cast<uint32_t*>(&shared.weights[row][key]) = PackHalves(low, high);
    }
    sums.sum[h] = sums.sum[h] * factor + sum;
    if (!__any_sync(~0u, factor != 1)) continue;
#pragma unroll
    for (auto& o : sums.o) o[2 * h] *= factor, o[2 * h + 1] *= factor;
  }
}

template <int kRows>
__device__ __forceinline__ void AddValues(const LongShared<kRows>& shared, const Share& share,
                                          Sums& sums) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int key = 0; key < kPageKeys; key += 16) {
    uint32_t p[4];
    LoadMatrices(&shared.weights[share.first + lane % 16][key + lane / 16 * 8], p);
#pragma unroll
    for (int d = 0; d < kHalf; d += 16) {
      uint32_t v[4];
      LoadTransposed(&shared.page[key + lane % 16][share.half * kHalf + d + lane / 16 * 8], v);
      MmaF16(sums.o[d / 8], p, v[0], v[1]);
      MmaF16(sums.o[d / 8 + 1], p, v[2], v[3]);
    }
  }
}

template <int kRows>
__device__ __forceinline__ void StoreRows(const Sums& sums, const Share& share,
                                          LongShared<kRows>& shared) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const Parts result = shared.Result();
  const bool has_rows = share.first < kRows;
  __syncthreads();  // q and the page have been read
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = share.first + 8 * h + g;
    float sum = sums.sum[h];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (!has_rows) continue;
    if (t == 0) shared.sum[share.half][row] = sum;
    float* values = result.values + row * result.row_stride + share.half * kHalf;
#pragma unroll
    for (int n = 0; n < kHalf / 8; ++n) {  // columns 2 t and 2 t + 1 are elements t and t + 4
      values[8 * n + t] = sums.o[n][2 * h];
      values[8 * n + t + 4] = sums.o[n][2 * h + 1];
    }
  }
  __syncthreads();
  if (!has_rows || share.half != 0 || t != 0) return;
  for (int h = 0; h < 2; ++h) {
    const int row = share.first + 8 * h + g;
    shared.ends[row] = {sums.max[h], shared.sum[0][row] + shared.sum[1][row]};
  }
}

// K or V of a page in shared memory, where there is room for it.
struct StagedPart {
  std::byte* memory;  // null: there is none

  // Starts the copy of bytes [begin, end) of a block.
  __device__ __forceinline__ void Copy(const std::byte* block, int begin, int end) const {
    if (memory == nullptr) return;
    for (int i = begin + threadIdx.x * 16; i < end; i += kThreads * 16) {
      CopyAsync16(memory + i - begin, block + i);
    }
    CopyAsyncCommit();
  }
  // The block, of which only bytes from `begin` on are read.
  __device__ __forceinline__ const std::byte* Block(const std::byte* block, int begin) const {
    return memory == nullptr ? block : memory - begin;
  }
};

template <int kRows>
__device__ __forceinline__ void AttendPages(const AttentionArguments& a, const StagedPart& staged,
                                            const Share& share, LongShared<kRows>& shared,
                                            Sums& sums) {
  const Tile& tile = shared.tile;
  const KvLayout& kv = a.kv;
  __half* const rows = shared.page[0];
#pragma unroll 1
  for (int number = tile.pages.first; number < tile.pages.last; ++number) {
    const int page = tile.PageAt(number), stored = tile.Stored(page);
    const std::byte* block = tile.Block(page, kv);
    const bool seen = SomeSeen(tile, page, share.first, 16);
    CopyAsyncWait<0>();
    __syncthreads();  // K is there, and no warp reads the page before any more
    DecodeRows<D>(kv.k, kv.head_dim, staged.Block(block, 0), stored, rows, kStride);
    __syncthreads();
    staged.Copy(block, kv.v.codes, kv.block_bytes);
    HalfScores s;
    if (seen) {
      Score(shared, share, page, s);
      ShareMaxima(s, share, shared);
    }
    CopyAsyncWait<0>();
    __syncthreads();  // V and the maxima are there, and K has been read
    if (seen) ShareWeights(s, share, shared, sums);
    DecodeRows<D>(kv.v, kv.head_dim, staged.Block(block, kv.v.codes), stored, rows, kStride);
    __syncthreads();
    if (number + 1 < tile.pages.last) {
      staged.Copy(tile.Block(tile.PageAt(number + 1), kv), 0, kv.v.codes);
    }
    if (seen) AddValues(shared, share, sums);
  }
}

template <int kRows>
__global__ void __launch_bounds__(kThreads)
    LongKernel(const __grid_constant__ AttentionCall call, bool stages) {
  extern __shared__ __align__(128) std::byte memory[];
  auto& shared = *reinterpret_cast<LongShared<kRows>*>(memory);
  const AttentionArguments& a = call.arguments;
  const StagedPart staged = {stages ? memory + sizeof(shared) : nullptr};
  const Tile& tile = shared.tile;
  if (threadIdx.x == 0) shared.tile = TileOf(call);
  __syncthreads();
  if (tile.rows == 0 || tile.span >= tile.spans) return;
  const int first_page = tile.PageAt(tile.pages.first);
  const bool has_pages = tile.pages.first < tile.pages.last;
  const bool early = has_pages && tile.Settled(first_page);
  if (early) staged.Copy(tile.Block(first_page, a.kv), 0, a.kv.v.codes);
  WaitForPreviousGrid();
  AllowNextGrid();
  if (has_pages && !early) staged.Copy(tile.Block(first_page, a.kv), 0, a.kv.v.codes);
  ClearPadding<D>(a.kv.head_dim, shared.page);
  StoreQuery<D, kThreads>(a, tile, shared.q);
  const Share share;
  Sums sums;
  AttendPages(a, staged, share, shared, sums);
  StoreRows(sums, share, shared);
  FinishBlock(call, tile, shared.Result(), 1, a.kv.head_dim);
}

template <int kRows>
void LaunchFor(const AttentionCall& call, cudaStream_t stream) {
  const AttentionArguments& a = call.arguments;
  constexpr int kShared = sizeof(LongShared<kRows>);
  const int part = std::max(a.kv.v.codes, a.kv.block_bytes - a.kv.v.codes);
  const bool stages = kShared + part <= Device::Current().shared_bytes;
  LaunchDependent(LongKernel<kRows>,
                  {.grid = dim3(a.kv.kv_heads, call.plan.spans, a.sequences * call.plan.tiles),
                   .block = kThreads,
                   .shared_bytes = static_cast<size_t>(kShared + (stages ? part : 0))},
                  stream, call, stages);
}

bool HasManyRows(const AttentionArguments& a) {
  return a.rows() > kSomeRows &&
         Device::Current().shared_bytes >= static_cast<int>(sizeof(LongShared<kManyRows>));
}

}  // namespace

AttentionPlan LongPlan(const AttentionArguments& a) {
  return PlanOf(a, HasManyRows(a) ? kManyRows : kSomeRows, a.rows() <= kFewRows ? kSpanPages : 0);
}

void LaunchLong(const AttentionCall& call, cudaStream_t stream) {
  HasManyRows(call.arguments) ? LaunchFor<kManyRows>(call, stream)
                              : LaunchFor<kSomeRows>(call, stream);
}

}  // namespace nibble::cuda
