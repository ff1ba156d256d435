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

// A lane's results for its rows g and g + 8 (index h) of every tile of its warp.
template <int D, int kTiles>
struct WarpState {
  float o[kTiles][D / 8][4];
  float max[kTiles][2], sum[kTiles][2];
};

// s[tile][key / 8][2 h + e]: row g + 8 h, key 8 (key / 8) + 2 t + e.
template <int kTiles>
using Scores = float[kTiles][kPageKeys / 8][4];

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

template <int kTiles>
__device__ __forceinline__ void Cap(float cap, Scores<kTiles>& s) {
#pragma unroll
  for (auto& tile : s) {
#pragma unroll
    for (auto& keys : tile) {
#pragma unroll
      for (float& score : keys) score = Capped(score, cap);
    }
  }
}

// Keys of a page that a row must not see get no weight.
template <int kTiles>
__device__ __forceinline__ void Mask(const Tile& tile, int page, Scores<kTiles>& s) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const KeyRange range = tile.Visible((threadIdx.x / 32 * kTiles + m) * 16 + 8 * h + g, page);
#pragma unroll
      for (int i = 0; i < kPageKeys / 8 * 2; ++i) {
        const int key = page * kPageKeys + i / 2 * 8 + 2 * t + i % 2;
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
  const int first = threadIdx.x / 32 * 16 * kTiles, key = page * kPageKeys;
  if (first >= tile.rows) return;
  const int last = min(first + 16 * kTiles, tile.rows) - 1;
  const KeyRange low = tile.Visible(first), high = tile.Visible(last);
  const bool first_reads = tile.Reads(first, page), last_reads = tile.Reads(last, page);
  if (key >= high.last || key + kPageKeys <= low.first || !(first_reads || last_reads)) return;
  Scores<kTiles> s;
  Score(shared, s);
  if (tile.cap != 0) Cap<kTiles>(tile.cap, s);
  const bool all_read = first_reads && last_reads;
  if (key + kPageKeys > low.last || key < high.first || !all_read) Mask<kTiles>(tile, page, s);
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
