// SPDX-License-Identifier: Apache-2.0
// Attention of a few rows over a packed page or half of one, by one warp, on integers, q rounded to
// 16 bits and p = weight * s_key, too:
//   score[key, row] = s_key step_row (n_key . q_row - z_key sum(q_row))
//   out[row, d]     = sum over keys of p[key, row] (n_key[d] - z_key)
//
// Both sums are exact products u8 x 8 bits -> int32 of the tensor cores. Operand A are the codes,
// of nibbles times 1 or 16, operand B q or p, its upper and lower bytes apart. Codes may lie in any
// order that q (for K) and the outputs (for V) share; V goes through ldmatrix.trans, which pairs
// keys.
//
// Operand B has 8 columns. kProducts = 1: of up to four rows, columns 2 r and 2 r + 1 are upper and
// lower bytes. kProducts = 2: up to eight rows, a product for either byte. Lane 4 g + t works on
// rows kProducts * t + c of keys or elements g and g + 8.
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
  static constexpr int kRows = 4 * kProducts;
  // Sums of q times codes of 8 bits are int32; the upper byte, rounded, is at most 127.
  static constexpr float kLargest = D > 256 ? 64 * 256 : 127 * 256;

  // Bytes of the elements of a column; columns of the second product lie behind those of the first.
  // Sixteen bytes more keep columns in different banks.
  alignas(16) uint32_t columns[8 * kProducts][D / 4 + 4];
  float step[kRows];  // of q, times scale * log2(e)
  float sums[kRows];  // of q

  // A whole warp calls this. A row that does not exist becomes zeros.
  __device__ __forceinline__ void Store(const AttentionArguments& a, const Tile& tile, int row) {
    constexpr int kPieces = (D + 255) / 256;
    const int lane = threadIdx.x % 32;
    float x[kPieces][8] = {}, max = 1e-30f;
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const int d = 256 * p + 8 * lane;
      if (d < a.kv.head_dim && row < tile.rows) LoadQuery(a, tile, row, d, x[p]);
#pragma unroll
      for (const float v : x[p]) max = fmaxf(max, fabsf(v));
    }
    max = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(max)));
    const float inverse = __fdividef(kLargest, max);
    uint32_t* const upper = columns[kProducts == 1 ? 2 * row : row];
    uint32_t* const lower = columns[kProducts == 1 ? 2 * row + 1 : 8 + row];
    int sum = 0;
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      uint32_t words[2][2] = {};  // of the upper bytes, of the lower ones
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int q = __float2int_rn(x[p][i] * inverse), shift = i % 4 * 8;
        sum += q;
        words[0][i / 4] |= ((q + 128) >> 8 & 0xFF) << shift;
        words[1][i / 4] |= (q & 0xFF) << shift;
      }
      const int word = 64 * p + 2 * lane;
      if (4 * word >= D) continue;
      *reinterpret_cast<uint2*>(upper + word) = {words[0][0], words[0][1]};
      *reinterpret_cast<uint2*>(lower + word) = {words[1][0], words[1][1]};
    }
    sum = __reduce_add_sync(~0u, sum);
    if (lane != 0) return;
    step[row] = max * (a.scale * kLog2E / kLargest);
    sums[row] = static_cast<float>(sum);
  }

  // Operands B of step i of a part's products.
  template <typename Part>
  __device__ void Load(int i, uint32_t (&b)[kProducts][2]) const {
    const int g = threadIdx.x % 32 / 4;
#pragma unroll
    for (int p = 0; p < kProducts; ++p) Part::LoadQuery(columns[8 * p + g], i, b[p]);
  }
};

// Scores of these keys, divided by the row's step: key 16 j + 8 h + g at [2 j + h].
template <int kKeys, int kProducts>
using KeyScores = float[kKeys / 8][kProducts];

template <typename Part, int D, int kProducts>
__device__ __forceinline__ void Score(const std::byte* keys, const Query<D, kProducts>& query,
                                      KeyScores<Part::kKeys, kProducts>& scores) {
  constexpr int kSteps = Part::kSteps;
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  uint32_t q[kSteps][kProducts][2];
  float q_sums[kProducts];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) query.template Load<Part>(i, q[i]);
#pragma unroll
  for (int c = 0; c < kProducts; ++c) q_sums[c] = query.sums[kProducts * t + c];
#pragma unroll
  for (int j = 0; j < Part::kKeys / 16; ++j) {
    uint32_t a[kSteps][4];
    Part::LoadKeys(keys, 16 * j, a);
    ByteSums<kProducts> sums[2];  // of 4 bits the second ones are 16 times as large
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      sums[Part::kBits == 8 ? 0 : i % 2].template Add<true>(a[i], q[i]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float2 params = Part::Params(keys, 16 * j + 8 * h + g);
#pragma unroll
      for (int c = 0; c < kProducts; ++c) {
        const float sum =
            Part::kBits == 8
                ? static_cast<float>(sums[0].Get(h, c))
                : static_cast<float>(16 * sums[0].Get(h, c) + sums[1].Get(h, c)) * 0.0625f;
        scores[2 * j + h][c] = params.x * (sum - params.y * q_sums[c]);
      }
    }
  }
}

template <int kKeys, int kProducts>
__device__ __forceinline__ void Cap(float cap, const float* steps,
                                    KeyScores<kKeys, kProducts>& scores) {
#pragma unroll
  for (int c = 0; c < kProducts; ++c) {
    const float step = steps[kProducts * (threadIdx.x % 4) + c], inverse = 1 / step;
#pragma unroll
    for (auto& keys : scores) keys[c] = Capped(keys[c] * step, cap) * inverse;
  }
}

// Keys from `first` on that a row must not see get no weight.
template <int kKeys, int kProducts>
__device__ __forceinline__ void Mask(const Tile& tile, int first,
                                     KeyScores<kKeys, kProducts>& scores) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int c = 0; c < kProducts; ++c) {
    const KeyRange visible = tile.Visible(kProducts * t + c);
#pragma unroll
    for (int i = 0; i < kKeys / 8; ++i) {
      const int key = first + 8 * i + g;
      if (key < visible.first || key >= visible.last) scores[i][c] = -INFINITY;
    }
  }
}

// The weights of keys times V's scale as operand B of products over 32 keys each.
template <int kKeys, int kProducts>
struct KeyWeights {
  uint32_t b[kKeys / 32][kProducts][2];
  // Per row: weights are 2^(score - max) * kLargest, so that the largest product with a scale, not
  // the largest weight, makes full use of 16 bits whatever the scales are.
  float max[kProducts], sum[kProducts];

  template <typename Part>
  __device__ __forceinline__ void Set(const std::byte* values, const float* steps,
                                      const KeyScores<kKeys, kProducts>& scores) {
    constexpr float kLog2Largest = 15.994353f;  // 255 * 256
    constexpr float kRounder = 0x1p23f;         // leaves the integer in the low bits
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float scales[kKeys / 8], step[kProducts];
#pragma unroll
    for (int c = 0; c < kProducts; ++c) {
      step[c] = steps[kProducts * t + c], max[c] = kNoKeys, sum[c] = 0;
    }
#pragma unroll
    for (int i = 0; i < kKeys / 8; ++i) {
      scales[i] = Part::Params(values, 8 * i + g).x;
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
    uint32_t keys[kKeys / 8];  // 2 t and 2 t + 1 of eight, column g
#pragma unroll
    for (int i = 0; i < kKeys / 8; ++i) {
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
    for (int i = 0; i < kKeys / 16; ++i) {
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

// out[row, d], handed to store(c, d, neighbours from d on: four of 4 bits, two of 8).
template <typename Part, int kProducts, typename StoreSome>
__device__ __forceinline__ void AddValues(const std::byte* values,
                                          const KeyWeights<Part::kKeys, kProducts>& weights,
                                          const StoreSome& store) {
  using Sums = ByteSums<kProducts>;
  constexpr bool kBytes = Part::kBits == 8;
  constexpr int kRuns = Part::kKeys / 32;
  const int g = threadIdx.x % 32 / 4;
  Sums zeros;  // the same in all rows of operand A
#pragma unroll
  for (int j = 0; j < kRuns; ++j) {
    const uint32_t low = Part::LoadZeros(values, 32 * j),
                   high = Part::LoadZeros(values, 32 * j + 16);
    zeros.template Add<false>({low, low, high, high}, weights.b[j]);
  }
  const Sums start = zeros.Times(-1), odd_start = kBytes ? start : zeros.Times(-16);
#pragma unroll
  for (int chunk = 0; chunk < Part::kChunks; chunk += 2) {
    const bool single = chunk + 1 == Part::kChunks;
    Sums sums[2][2] = {{start, odd_start}, {start, odd_start}};  // of both bytes, both nibbles
#pragma unroll
    for (int j = 0; j < kRuns; ++j) {
      uint32_t codes[2][4], a[4];
      Part::LoadValues(values, 32 * j, chunk, codes[0], codes[1]);
#pragma unroll
      for (int i = 0; i < (single ? 1 : 2); ++i) {
        if constexpr (kBytes) {
          sums[i][0].template Add<false>(codes[i], weights.b[j]);
        } else {
          MaskBytes(codes[i], kEvenNibbles, a);
          sums[i][0].template Add<false>(a, weights.b[j]);
          MaskBytes(codes[i], kOddNibbles, a);
          sums[i][1].template Add<false>(a, weights.b[j]);
        }
      }
    }
    const auto element = [&](int i, int nibble, int h, int c) {
      return static_cast<float>(sums[i][nibble].Get(h, c)) * (nibble == 0 ? 1.0f : 0.0625f);
    };
#pragma unroll
    for (int c = 0; c < kProducts; ++c) {
#pragma unroll
      for (int h = 0; h < (single ? 1 : 2); ++h) {
        const int i = single ? 0 : 1, half = single ? 1 : h;  // of the upper bytes
        if constexpr (kBytes) {
          store(c, 16 * (chunk + h) + 2 * g, float2{element(0, 0, h, c), element(i, 0, half, c)});
        } else {
          store(c, 32 * (chunk + h) + 4 * g,
                float4{element(0, 0, h, c), element(0, 1, h, c), element(i, 0, half, c),
                       element(i, 1, half, c)});
        }
      }
    }
  }
}

}  // namespace nibble::cuda
