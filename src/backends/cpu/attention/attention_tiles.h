// SPDX-License-Identifier: Apache-2.0
// Attention of some rows (token, query head) over one page of a quantized cache on matrix tiles.
// The codes of K and V are small integers, exact in bf16; queries and probabilities are rounded to
// bf16, 2^-9 of each, which is little beside the rounding of 4-bit keys and values:
//
//   S[r, t] = s_t (Q[r] . (c_t - b) - (z_t - b) sum Q[r])            b = the middle of the codes
//   O[r]    = sum_t P[r, t] s_t (c_t - b)  -  sum_t P[r, t] s_t (z_t - b)
//
// Like int_kernels.h, this is all that a file built with extra instruction flags may include.
#pragma once

#include <cstdint>

namespace nibble::cpu {

inline constexpr int64_t kTileAttentionRows = 192;
inline constexpr int64_t kTileAttentionHeadDim = 512;  // at most, and a multiple of 32
inline constexpr int64_t kTileAttentionKeys = 64;      // of a page

inline constexpr float kFirstMaximum = -1e29f;  // before any key; masked scores are -1e30

// The result of a row over a span of keys: O (not divided by l) [head_dim], then l and m.
inline constexpr int64_t kPartialSum = kTileAttentionHeadDim, kPartialMax = kPartialSum + 1;
inline constexpr int64_t kPartialStride = kTileAttentionHeadDim + 16;

// Rows of one kv head and their sums over the keys so far.
struct AttentionTiles {
  alignas(64) uint16_t q[kTileAttentionRows * kTileAttentionHeadDim];  // bf16 [rows][head_dim]
  alignas(64) float o[kTileAttentionRows * kTileAttentionHeadDim];     // [rows][head_dim], per 32
                                                                    // columns the even ones first
  alignas(64) float l[kTileAttentionRows * 16];      // sum of P, per lane
  alignas(64) float shift[kTileAttentionRows * 16];  // sum of P s (z - b), per lane
  float m[kTileAttentionRows];                       // largest score so far
  float q_sum[kTileAttentionRows];
  int64_t rows, head_dim;
  // K and V of the current page as bf16 tiles; always finite.
  alignas(64) uint16_t k[kTileAttentionKeys * kTileAttentionHeadDim] = {};
  alignas(64) uint16_t v[kTileAttentionKeys * kTileAttentionHeadDim] = {};
};

struct AttentionPage {
  const uint32_t* k_dwords;  // [head_dim * k_bits / 32][64 keys], codes along head_dim in a dword
  const uint8_t* v_codes;    // [64 keys][head_dim * v_bits / 8]
  int k_bits, v_bits;        // 4 or 8
  int k_middle, v_middle;    // b; 8 for nibbles
  const float *k_scales, *k_zeros, *v_scales, *v_zeros;  // [64]
  int64_t tokens;               // keys that exist; what lies behind them may be anything
  const int32_t *first, *last;  // [rows]: the row sees keys [first, last)
};

// Row `row` starts over with factor * q; q [head_dim], result [kPartialStride].
void amx_attention_load(const float* q, float factor, int64_t row, AttentionTiles& tiles);
void amx_attention_page(const AttentionPage& page, AttentionTiles& tiles);
void amx_attention_finish(const AttentionTiles& tiles, int64_t row, float* result);

}  // namespace nibble::cpu
