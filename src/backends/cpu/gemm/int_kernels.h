// SPDX-License-Identifier: Apache-2.0
// The integer products every instruction set implements. Weights are unsigned bytes u = code + 8 or
// code + 128 in panels of 16 outputs, activations are signed codes; all sums are exact int32, so
// every row gives the same bits.
//
//   byte panel    [k/4][16 outputs][4 k]: 64 bytes per four inputs. One row is an AMX B-tile row, a
//                 vpdpbusd operand, or two AVX2 vectors.
//   nibble panel  [k/8][16 outputs][4 k]: low nibble = inputs 8i..8i+3, high = 8i+4..8i+7.
//
// With a second level of scales a nibble stands for a byte, nibble * scale + start modulo 256, the
// same for `cols` inputs of an output: steps [k / cols][16], scale | start << 8.
//
// With floats (tensor/e2m1.h) a nibble stands for a byte, code + 12 (kFloatBytes).
//
// With a lattice, panels hold the codes themselves, for inputs in blocks of 32
// (formats/tile_order.h), and `words` decodes them to bytes: LatticeCode::offset() plus the
// codeword.
//
// This header is all that the files built with extra instruction flags may include: inline
// functions of the standard library compiled there could replace those of the whole program.
#pragma once

#include <cstdint>

#include "formats/lattice_words.h"

namespace nibble::cpu {

inline constexpr int64_t kPanel = 16;        // outputs of a panel
inline constexpr int64_t kTileOutputs = 32;  // outputs of a kernel call: two panels
inline constexpr int64_t kGemvRows = 12;  // rows of tokens in one pass over the codes, with AVX-512
inline constexpr int64_t kMaxGemvTokens = 64;

// The byte of each nibble of panels, whose sign bit is flipped.
inline constexpr uint8_t kFloatBytes[16] = {12, 11, 10, 9,  8,  6,  4,  0,
                                            12, 13, 14, 15, 16, 18, 20, 24};

// Work on the side for the vector units while the matrix unit multiplies: lines of 64 bytes of two
// nibble panels become two lines of bytes each.
struct UnpackAhead {
  const uint8_t* nibbles;
  int64_t nibble_stride;  // bytes to the second panel, likewise
  uint8_t* bytes;
  int64_t byte_stride;
  int64_t lines;  // of each panel, may be 0
};

// The second level of scales of two panels from input `first` on.
struct LevelSteps {
  const uint16_t* steps;  // of the first panel's first input
  int64_t stride;         // elements to the second panel, a multiple of 8
  int64_t cols;           // inputs of a step
  int64_t first;
};

// Sums of one or more tokens and two byte panels over k inputs.
struct GemmTile {
  const int8_t* a;    // [rows, a_stride]; matrix tiles: [rows / 16][k / 64][16 rows][64]
  int64_t a_stride;   // bytes between rows; matrix tiles: between 16 rows
  int64_t rows;       // matrix tiles: at most 32
  const uint8_t* b;   // first byte panel at the first input
  int64_t b_stride;   // bytes to the second panel
  int64_t k;          // a multiple of the row's k_step
  int32_t* c;         // [rows, kTileOutputs]; matrix tiles write rows up to a multiple of 16
  bool accumulate;    // c += instead of c =
  UnpackAhead ahead;  // matrix tiles only
  LevelSteps steps;   // of kernels with levels, whose bytes are nibbles
};
using GemmFn = void (*)(const GemmTile&);

// Sums of few tokens and two panels in their stored form, group by group.
struct GemvTile {
  const int8_t* a;  // [rows, a_stride]
  int64_t a_stride;
  int64_t rows;      // 1 up to the row's max_tokens
  const uint8_t* b;  // first panel at the first group
  int64_t b_stride;  // bytes to the second panel
  int64_t groups;
  int64_t k;                  // inputs of a group, a multiple of the row's k_step
  int32_t* c;                 // [groups, rows, kTileOutputs]
  LevelSteps steps;           // of a second level (one group), first = 0
  const LatticeWords* words;  // of a lattice
};
using GemvFn = void (*)(const GemvTile&);

void scalar_gemm_u8s8(const GemmTile& tile);
void avx2_gemm_u4s8(const GemmTile& tile);  // bytes are at most 15
void avx2_gemm_u8s8(const GemmTile& tile);
void avx2_gemm_u4s8_levels(const GemmTile& tile);
void avx2_gemm_f4s8(const GemmTile& tile);  // bytes are at most 24
void avx_vnni_gemm_u8s8(const GemmTile& tile);
void avx512_gemm_u8s8(const GemmTile& tile);
void amx_gemm_u8s8(const GemmTile& tile);  // between amx_begin and amx_end
void amx_begin();
void amx_end();

void avx2_gemv_u4s8(const GemvTile& tile);
void avx2_gemv_u8s8(const GemvTile& tile);
void avx2_gemv_u4s8_levels(const GemvTile& tile);  // with a second level of scales
void avx2_gemv_f4s8(const GemvTile& tile);
void avx_vnni_gemv_u4s8(const GemvTile& tile);
void avx_vnni_gemv_u8s8(const GemvTile& tile);
void avx_vnni_gemv_u4s8_levels(const GemvTile& tile);
void avx_vnni_gemv_f4s8(const GemvTile& tile);
void avx512_gemv_u4s8(const GemvTile& tile);
void avx512_gemv_u8s8(const GemvTile& tile);
void avx512_gemv_u4s8_levels(const GemvTile& tile);
void avx512_gemv_f4s8(const GemvTile& tile);

// Words (formats/lattice_words.h) of a block of 64 codes, from one or two planes of their bytes, as
// [4 codes][16 outputs]. One by one: vectors that gather them take longer on Zen 4.
void e8p_words(const LatticeWords& table, const uint8_t* planes, uint32_t* words);
void short_words(const LatticeWords& table, const uint8_t* plane, uint32_t* words);

// Codes of a lattice, of 2, 3 and 4 bits.
void avx2_gemv_p2s8(const GemvTile& tile);
void avx2_gemv_p3s8(const GemvTile& tile);
void avx2_gemv_p4s8(const GemvTile& tile);
void avx512_gemv_p2s8(const GemvTile& tile);  // with VBMI and BITALG
void avx512_gemv_p3s8(const GemvTile& tile);
void avx512_gemv_p4s8(const GemvTile& tile);

// Up to 16 columns of x [tokens, columns] (zero beyond) rounded to bf16: a panel [pairs of
// tokens][16 columns], the earlier token in the lower half. With AVX-512 BF16.
void avx512_pack_pairs(const float* x, int64_t stride, int64_t tokens, int64_t columns,
                       uint32_t* panel);

// c [16, kColumns] = sum over tokens of left^T right, of one panel and of three that follow each
// other; fp32 sums.
struct GramTile {
  static constexpr int64_t kColumns = 48;

  const uint32_t *left, *right;
  int64_t pairs;
  float* c;
};
void avx512_gram_bf16(const GramTile& tile);

// Wide products on AMX: c [rows, kTileOutputs] = sum of the products of bf16 terms a_j b_i with
// i + j < a_terms, largest b first. Those left out are of the size of what the terms lack.
struct Bf16Tile {
  const uint16_t* a;  // tiles [rows / 16][k / 32][a_terms][16 rows][32]
  int64_t a_terms;
  int64_t rows;
  const uint16_t* b;  // a panel of PackBf16 (gemm_f32.h)
  int64_t b_terms;    // at most a_terms
  int64_t k;          // a multiple of 32
  float* c;
};
void amx_gemm_bf16(const Bf16Tile& tile);

// Up to 16 rows of x [rows, columns] as the tiles of Bf16Tile::a, zero beyond `columns`; what is
// beyond `rows` is not written.
void amx_split_rows(const float* x, int64_t rows, int64_t columns, int64_t terms, uint16_t* tiles);

// 32 rows of 16 columns of x (zero beyond `rows` and `columns`) as two bf16 terms, each a B tile
// [16 pairs of rows][16 columns][2].
void amx_cut_terms(const float* x, int64_t stride, int64_t rows, int64_t columns, uint16_t* first,
                   uint16_t* second);

// x[f, j] <- sum over i < order of h[f, i] x[i, j] for kTileOutputs columns j, on AMX. h is exact
// in bf16 and x goes in as three terms, so the products are those of fp32.
struct SignProduct {
  const uint16_t* h;  // bf16 tiles [order / 16][order / 32][16 rows][32], zero filled
  int64_t order;
  float* x;  // [order, stride]
  int64_t stride;
  uint16_t* terms;  // memory for [3][order / 32][2][16][32] values, rounded up
};
void amx_sign_product(const SignProduct& product);

}  // namespace nibble::cpu
