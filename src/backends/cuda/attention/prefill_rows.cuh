// SPDX-License-Identifier: Apache-2.0
// Attention of a block's rows over one page that has been decoded to fp16 ("FlashAttention-2", Dao
// 2023): each of four warps has 16 or 32 rows, both products run on the tensor cores with fp32
// sums, and the softmax goes along in fp32.
#pragma once

#include "backends/cuda/attention/page_decode.cuh"

namespace nibble::cuda {

inline constexpr int kPrefillWarps = 4;

// D: head_dim rounded up; kTiles: 16-row tiles of a warp. Rows are padded by 16 bytes, which
// spreads a column over the banks.
template <int D, int kTiles>
struct PrefillShared {
  static constexpr int kRows = 16 * kTiles * kPrefillWarps, kStride = D + 8;
  __half q[kRows][kStride], k[kPageKeys][kStride], v[kPageKeys][kStride];

  // At the end the result takes their place.
  __device__ Parts Result() {
    constexpr int kResultStride = D + 4;
    static_assert(kRows * (kResultStride + 2) * sizeof(float) <= sizeof(PrefillShared));
    auto* values = reinterpret_cast<float*>(this);
    auto* ends = reinterpret_cast<float2*>(values + kRows * kResultStride);
    return {values, ends, kResultStride, 0, 0};
  }
};

// Rows of q for the products. Columns behind head_dim, which is at most D, become zeros.
template <int D, int kThreads, int kRows>
__device__ __forceinline__ void StoreQuery(const AttentionArguments& a, const Tile& tile,
                                           __half (&q)[kRows][D + 8]) {
  constexpr int kEights = kRows * D / 8;
  const float factor = a.scale * kLog2E;
#pragma unroll 4  // loads in flight
  for (int first = 0; first < kEights; first += kThreads) {
    const int i = first + threadIdx.x;
    const int row = i / (D / 8), d = i % (D / 8) * 8;
    float x[8] = {};
    if (row < tile.rows && d < a.kv.head_dim) LoadQuery(a, tile, row, d, x);
#pragma unroll
    for (float& v : x) v *= factor;
    *reinterpret_cast<uint4*>(&q[row][d]) = PackEight(x);
  }
}

// Columns behind head_dim count for nothing.
template <int D>
__device__ __forceinline__ void ClearPadding(int head_dim, __half (&page)[kPageKeys][D + 8]) {
  const int eights = (D - head_dim) / 8;
  for (int i = threadIdx.x; i < kPageKeys * eights; i += blockDim.x) {
    *reinterpret_cast<uint4*>(&page[i / eights][head_dim + i % eights * 8]) = {};
  }
}

// A lane's results for its rows g and g + 8 (index h) of every tile of its warp.
template <int D, int kTiles>
struct WarpState {
  float o[kTiles][D / 8][4];
  float max[kTiles][2], sum[kTiles][2];
};

// s[tile][key / 8][2 h + e]: row g + 8 h, key 8 (key / 8) + 2 t + e.
template <int kTiles, int kEights = kPageKeys / 8>
using Scores = float[kTiles][kEights][4];

template <int D, int kTiles>
__device__ __forceinline__ void Score(const PrefillShared<D, kTiles>& shared, Scores<kTiles>& s) {
  const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16 * kTiles;
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (auto& keys : s[m]) keys[0] = keys[1] = keys[2] = keys[3] = 0;
  }
#pragma unroll
  for (int d = 0; d < D; d += 16) {
    uint32_t q[kTiles][4];
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      LoadMatrices(&shared.q[first + 16 * m + lane % 16][d + lane / 16 * 8], q[m]);
    }
#pragma unroll
    for (int n = 0; n < kPageKeys / 8; n += 2) {
      uint32_t k[4];
      LoadMatrices(&shared.k[8 * n + lane / 16 * 8 + lane % 8][d + lane / 8 % 2 * 8], k);
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        MmaF16(s[m][n], q[m], k[0], k[1]);
        MmaF16(s[m][n + 1], q[m], k[2], k[3]);
      }
    }
  }
}

template <int kTiles, int kEights>
__device__ __forceinline__ void Cap(float cap, Scores<kTiles, kEights>& s) {
#pragma unroll
  for (auto& tile : s) {
#pragma unroll
    for (auto& keys : tile) {
#pragma unroll
      for (float& score : keys) score = Capped(score, cap);
    }
  }
}

// True if one of `count` rows may see a key of a page.
__device__ __forceinline__ bool SomeSeen(const Tile& tile, int page, int first, int count) {
  if (first >= tile.rows) return false;
  const int last = min(first + count, tile.rows) - 1, key = page * kPageKeys;
  if (key >= tile.Visible(last).last || key + kPageKeys <= tile.Visible(first).first) return false;
  return tile.Reads(first, page) || tile.Reads(last, page);
}
// True if all of them see every key of it.
__device__ __forceinline__ bool AllSeen(const Tile& tile, int page, int first, int count) {
  const int last = min(first + count, tile.rows) - 1, key = page * kPageKeys;
  return key + kPageKeys <= tile.Visible(first).last && key >= tile.Visible(last).first &&
         tile.Reads(first, page) && tile.Reads(last, page);
}

// Keys of a page that a row must not see get no weight. s[0][0][0] is the score of row `first_row`
// for key `first_key` of the page.
template <int kTiles, int kEights>
__device__ __forceinline__ void Mask(const Tile& tile, int page, int first_row, int first_key,
                                     Scores<kTiles, kEights>& s) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const KeyRange range = tile.Visible(first_row + 16 * m + 8 * h + g, page);
#pragma unroll
      for (int i = 0; i < kEights * 2; ++i) {
        const int key = page * kPageKeys + first_key + i / 2 * 8 + 2 * t + i % 2;
        if (key < range.first || key >= range.last) s[m][i / 2][2 * h + i % 2] = -INFINITY;
      }
    }
  }
}

// Scores become weights.
template <int D, int kTiles>
__device__ __forceinline__ void Weigh(WarpState<D, kTiles>& state, Scores<kTiles>& s) {
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float max = state.max[m][h];
#pragma unroll
      for (auto& keys : s[m]) max = fmaxf(max, fmaxf(keys[2 * h], keys[2 * h + 1]));
      max = fmaxf(max, __shfl_xor_sync(~0u, max, 1));
      max = fmaxf(max, __shfl_xor_sync(~0u, max, 2));
      const float factor = Exp2(state.max[m][h] - max);
      state.max[m][h] = max;
      float sum = 0;
#pragma unroll
      for (auto& keys : s[m]) {
        keys[2 * h] = Exp2(keys[2 * h] - max);
        keys[2 * h + 1] = Exp2(keys[2 * h + 1] - max);
        sum += keys[2 * h] + keys[2 * h + 1];
      }
      state.sum[m][h] = state.sum[m][h] * factor + sum;
      if (__any_sync(~0u, factor != 1)) {
#pragma unroll
        for (auto& o : state.o[m]) o[2 * h] *= factor, o[2 * h + 1] *= factor;
      }
    }
  }
}

template <int D, int kTiles>
__device__ __forceinline__ void AddValues(const PrefillShared<D, kTiles>& shared,
                                          const Scores<kTiles>& s, WarpState<D, kTiles>& state) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < kPageKeys / 8; n += 2) {
    uint32_t p[kTiles][4];
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        p[m][i] = PackHalves(s[m][n + i / 2][i % 2 * 2], s[m][n + i / 2][i % 2 * 2 + 1]);
      }
    }
#pragma unroll
    for (int d = 0; d < D; d += 16) {
      uint32_t v[4];
      LoadTransposed(&shared.v[8 * n + lane % 16][d + lane / 16 * 8], v);
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        MmaF16(state.o[m][d / 8], p[m], v[0], v[1]);
        MmaF16(state.o[m][d / 8 + 1], p[m], v[2], v[3]);
      }
    }
  }
}

// One page, decoded, for the rows of a warp.
template <int D, int kTiles>
__device__ __forceinline__ void AttendPage(const Tile& tile, int page,
                                           const PrefillShared<D, kTiles>& shared,
                                           WarpState<D, kTiles>& state) {
  const int first = threadIdx.x / 32 * 16 * kTiles;
  if (!SomeSeen(tile, page, first, 16 * kTiles)) return;
  Scores<kTiles> s;
  Score(shared, s);
  if (tile.cap != 0) Cap(tile.cap, s);
  if (!AllSeen(tile, page, first, 16 * kTiles)) Mask(tile, page, first, 0, s);
  Weigh(state, s);
  AddValues(shared, s, state);
}

template <int D, int kTiles>
__device__ __forceinline__ void StoreRows(const WarpState<D, kTiles>& state,
                                          PrefillShared<D, kTiles>& shared) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const Parts result = shared.Result();
  __syncthreads();  // q, k and v have been read
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = (threadIdx.x / 32 * kTiles + m) * 16 + 8 * h + g;
      float sum = state.sum[m][h];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      if (t == 0) result.ends[row] = {state.max[m][h], sum};
      float* values = result.values + row * result.row_stride;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {  // columns 2 t and 2 t + 1 are elements t and t + 4
        values[8 * n + t] = state.o[m][n][2 * h];
        values[8 * n + t + 4] = state.o[m][n][2 * h + 1];
      }
    }
  }
}

template <int D, int kTiles>
__device__ __forceinline__ void Clear(WarpState<D, kTiles>& state) {
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (auto& o : state.o[m]) o[0] = o[1] = o[2] = o[3] = 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) state.max[m][h] = kNoKeys, state.sum[m][h] = 0;
  }
}

}  // namespace nibble::cuda
