// SPDX-License-Identifier: Apache-2.0
// Attention of a few rows over one packed page, by one warp, on integers:
//   score[key, row] = s_key step_row (n_key . q_row - z_key sum(q_row))    q rounded to 16 bits
//   out[row, d]     = sum over keys of p[key, row] (n_key[d] - z_key)      p = weight * s_key, 16
//   bits
// Both sums are exact products u8 x 8 bits -> int32 of the tensor cores. Operand A are the codes: a
// mask makes four bytes out of eight nibbles, times 1 or times 16. Operand B is q or p, its upper
// and lower bytes apart. Which codes lie side by side does not matter as long as q (for K) and the
// outputs (for V) are permuted alike; V goes through ldmatrix.trans, which pairs keys.
//
// Operand B has 8 columns. kProducts = 1: up to four rows, columns 2 r and 2 r + 1 are the upper
// and lower bytes of row r. kProducts = 2: up to eight rows, a column each, and a product for
// either byte. A lane (4 g + t) works on rows kProducts * t + c of the keys or elements g and g
// + 8.
#pragma once

#include "backends/cuda/attention/attention_tile.cuh"
#include "backends/cuda/attention/packed_page.cuh"

namespace nibble::cuda {

// Sums of both bytes of operand B.
template <int kProducts>
struct ByteSums {
  int s[kProducts][4] = {};

  template <bool kSigned>
  __device__ __forceinline__ void Add(const uint32_t (&a)[4], const uint32_t (&b)[kProducts][2]) {
#pragma unroll
    for (int p = 0; p < kProducts; ++p) {
      kSigned ? MmaU8S8(s[p], a, b[p][0], b[p][1]) : MmaU8(s[p], a, b[p][0], b[p][1]);
    }
  }
  // Row g + 8 h of operand A, row c of the lane.
  __device__ __forceinline__ int Get(int h, int c) const {
    return kProducts == 1 ? 256 * s[0][2 * h] + s[0][2 * h + 1]
                          : 256 * s[0][2 * h + c] + s[kProducts - 1][2 * h + c];
  }
  // These sums times `factor`.
  __device__ __forceinline__ ByteSums Times(int factor) const {
    ByteSums product;
#pragma unroll
    for (int i = 0; i < 4 * kProducts; ++i) product.s[i / 4][i % 4] = s[i / 4][i % 4] * factor;
    return product;
  }
};

__device__ __forceinline__ void MaskBytes(const uint32_t (&codes)[4], uint32_t mask,
                                          uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = codes[i] & mask;
}

// The rows of q in shared memory, rounded to 16 bits.
template <int D, int kProducts>
struct Query {
  static constexpr int kRows = 4 * kProducts, kWords = D / 32;
  static constexpr int kPairs = (kWords + 1) / 2;  // of words; one word may stand alone

  // Elements t * D / 4 + 8 word .. + 7 of a column, two words to a pair: even elements of both
  // words, then odd ones. Columns of the second product lie behind those of the first.
  uint32_t pairs[kPairs][8 * kProducts][4][2][2];
  float step[kRows];  // of q, times scale * log2(e), divided by 16
  float sums[kRows];  // of q, times 16

  // By a whole warp. A row that does not exist becomes zeros.
  __device__ __forceinline__ void Store(const AttentionArguments& a, const Tile& tile, int row) {
    constexpr float kLargest = 127 * 256;  // so that the upper byte, rounded, is at most 127
    const int lane = threadIdx.x % 32;
    float x[8] = {};
    if (8 * lane < D && row < tile.rows) LoadQuery(a, tile, row, 8 * lane, x);
    float most = 1e-30f;
#pragma unroll
    for (const float v : x) most = fmaxf(most, fabsf(v));
    most = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(most)));
    const float inverse = __fdividef(kLargest, most);
    int sum = 0;
    uint32_t upper[2] = {}, lower[2] = {};  // even and odd elements
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int q = __float2int_rn(x[i] * inverse), shift = i / 2 * 8;
      sum += q;
      upper[i % 2] |= ((q + 128) >> 8 & 0xFF) << shift;
      lower[i % 2] |= (q & 0xFF) << shift;
    }
    sum = __reduce_add_sync(~0u, sum);
    const int word = lane % kWords, t = lane / kWords;
    if (t < 4) {
      for (int parity = 0; parity < 2; ++parity) {
        auto& columns = pairs[word / 2];
        columns[kProducts == 1 ? 2 * row : row][t][parity][word % 2] = upper[parity];
        columns[kProducts == 1 ? 2 * row + 1 : 8 + row][t][parity][word % 2] = lower[parity];
      }
    }
    if (lane == 0) {
      step[row] = most * (a.scale * kLog2E / (16 * kLargest));
      sums[row] = 16.0f * static_cast<float>(sum);
    }
  }

  // Operand B of a pair of words: even elements, odd elements.
  __device__ __forceinline__ void Load(int pair, uint32_t (&even)[kProducts][2],
                                       uint32_t (&odd)[kProducts][2]) const {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int p = 0; p < kProducts; ++p) {
      const auto v = *reinterpret_cast<const uint4*>(pairs[pair][8 * p + g][t]);
      even[p][0] = v.x, even[p][1] = v.y, odd[p][0] = v.z, odd[p][1] = v.w;
    }
  }
};

// Scores of a page, divided by the row's step: key 16 j + 8 h + g at [2 j + h].
template <int kProducts>
using PageScores = float[kPageKeys / 8][kProducts];

template <int D, int kProducts>
__device__ __forceinline__ void Score(const std::byte* keys, const Query<D, kProducts>& query,
                                      PageScores<kProducts>& scores) {
  using Page = PackedPage<D>;
  constexpr int kPairs = Query<D, kProducts>::kPairs;
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  uint32_t even[kPairs][kProducts][2], odd[kPairs][kProducts][2];
  float q_sums[kProducts];
#pragma unroll
  for (int i = 0; i < kPairs; ++i) query.Load(i, even[i], odd[i]);
#pragma unroll
  for (int c = 0; c < kProducts; ++c) q_sums[c] = query.sums[kProducts * t + c];
#pragma unroll
  for (int j = 0; j < kPageKeys / 16; ++j) {
    uint32_t low[2 * kPairs] = {}, high[2 * kPairs] = {};
    Page::LoadKey(keys, 16 * j + g, low);
    Page::LoadKey(keys, 16 * j + 8 + g, high);
    ByteSums<kProducts> even_sums, odd_sums;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const uint32_t codes[4] = {low[2 * i], high[2 * i], low[2 * i + 1], high[2 * i + 1]};
      uint32_t a[4];
      MaskBytes(codes, kEvenNibbles, a);
      even_sums.template Add<true>(a, even[i]);
      MaskBytes(codes, kOddNibbles, a);
      odd_sums.template Add<true>(a, odd[i]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float2 params = Page::Params(keys, 16 * j + 8 * h + g);
#pragma unroll
      for (int c = 0; c < kProducts; ++c) {
        const auto sum = static_cast<float>(16 * even_sums.Get(h, c) + odd_sums.Get(h, c));
        scores[2 * j + h][c] = params.x * (sum - params.y * q_sums[c]);
      }
    }
  }
}

// Keys of a page that a row must not see get no weight.
template <int kProducts>
__device__ __forceinline__ void Mask(const Tile& tile, int page, PageScores<kProducts>& scores) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int c = 0; c < kProducts; ++c) {
    const KeyRange visible = tile.Visible(kProducts * t + c);
#pragma unroll
    for (int i = 0; i < kPageKeys / 8; ++i) {
      const int key = page * kPageKeys + 8 * i + g;
      if (key < visible.first || key >= visible.last) scores[i][c] = -INFINITY;
    }
  }
}

// The weights of a page times V's scale as operand B of two products over 32 keys each.
template <int kProducts>
struct PageWeights {
  uint32_t b[2][kProducts][2];
  // Per row: weights are 2^(score - max) * kLargest, so that the largest product with a scale, not
  // the largest weight, makes full use of 16 bits whatever the scales are.
  float max[kProducts], sum[kProducts];

  template <int D>
  __device__ __forceinline__ void Set(const std::byte* values, const float* steps,
                                      const PageScores<kProducts>& scores) {
    constexpr float kLog2Largest = 15.994353f;  // 255 * 256
    constexpr float kRounder = 0x1p23f;         // leaves the integer in the low bits
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float scales[kPageKeys / 8], step[kProducts];
#pragma unroll
    for (int c = 0; c < kProducts; ++c) {
      step[c] = steps[kProducts * t + c], max[c] = kNoKeys, sum[c] = 0;
    }
#pragma unroll
    for (int i = 0; i < kPageKeys / 8; ++i) {
      scales[i] = PackedPage<D>::Params(values, 8 * i + g).x;
      const float log = Log2(scales[i]);
#pragma unroll
      for (int c = 0; c < kProducts; ++c) max[c] = fmaxf(max[c], scores[i][c] * step[c] + log);
    }
#pragma unroll
    for (int c = 0; c < kProducts; ++c) {
      for (int distance = 4; distance < 32; distance *= 2) {
        max[c] = fmaxf(max[c], __shfl_xor_sync(~0u, max[c], distance));
      }
      max[c] -= kLog2Largest;
    }
    uint32_t keys[kPageKeys / 8];  // 2 t and 2 t + 1 of eight, column g
#pragma unroll
    for (int i = 0; i < kPageKeys / 8; ++i) {
      uint32_t p[kProducts];
#pragma unroll
      for (int c = 0; c < kProducts; ++c) {
        const float weight = Exp2(scores[i][c] * step[c] - max[c]);
        sum[c] += weight;
        p[c] = __float_as_uint(weight * scales[i] + kRounder);
      }
      keys[i] = Transpose(__byte_perm(p[0], p[kProducts - 1], kProducts == 1 ? 0x1010 : 0x5410));
    }
    const int first = kProducts == 2 || g % 2 == 0 ? kUpperBytes : kLowerBytes;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      b[i / 2][0][i % 2] = __byte_perm(keys[2 * i], keys[2 * i + 1], first);
      if constexpr (kProducts == 2) {
        b[i / 2][1][i % 2] = __byte_perm(keys[2 * i], keys[2 * i + 1], kLowerBytes);
      }
    }
#pragma unroll
    for (int c = 0; c < kProducts; ++c) {
      for (int distance = 4; distance < 32; distance *= 2) {
        sum[c] += __shfl_xor_sync(~0u, sum[c], distance);
      }
    }
  }
};

// out[row, d], handed to store(c, d, four elements).
template <int D, int kProducts, typename StoreFour>
__device__ __forceinline__ void AddValues(const std::byte* values,
                                          const PageWeights<kProducts>& weights,
                                          const StoreFour& store) {
  using Page = PackedPage<D>;
  const int g = threadIdx.x % 32 / 4;
  ByteSums<kProducts> zeros;  // the same in all rows of operand A
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const uint32_t low = Page::LoadZeros(values, 32 * j),
                   high = Page::LoadZeros(values, 32 * j + 16);
    zeros.template Add<false>({low, low, high, high}, weights.b[j]);
  }
  const ByteSums<kProducts> even_start = zeros.Times(-1), odd_start = zeros.Times(-16);
#pragma unroll
  for (int chunk = 0; chunk < Page::kChunks; chunk += 2) {
    const bool single = chunk + 1 == Page::kChunks;
    ByteSums<kProducts> sums[4] = {even_start, odd_start, even_start, odd_start};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      uint32_t codes[2][4], a[4];  // elements 0 and 1, elements 2 and 3 of four
      Page::LoadValues(values, 32 * j, chunk, codes[0], codes[1]);
#pragma unroll
      for (int i = 0; i < (single ? 1 : 2); ++i) {
        MaskBytes(codes[i], kEvenNibbles, a);
        sums[2 * i].template Add<false>(a, weights.b[j]);
        MaskBytes(codes[i], kOddNibbles, a);
        sums[2 * i + 1].template Add<false>(a, weights.b[j]);
      }
    }
    const auto element = [&](int i, int h, int c) {
      return static_cast<float>(sums[i].Get(h, c)) * (i % 2 == 0 ? 1.0f : 0.0625f);
    };
#pragma unroll
    for (int c = 0; c < kProducts; ++c) {
#pragma unroll
      for (int h = 0; h < (single ? 1 : 2); ++h) {
        const int third = single ? 0 : 2, half = single ? 1 : h;
        store(c, 32 * (chunk + h) + 4 * g,
              float4{element(0, h, c), element(1, h, c), element(third, half, c),
                     element(third + 1, half, c)});
      }
    }
  }
}

}  // namespace nibble::cuda
