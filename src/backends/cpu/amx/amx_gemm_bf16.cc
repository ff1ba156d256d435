// SPDX-License-Identifier: Apache-2.0
// 32 tokens x 32 outputs in four C tiles over the whole K, three or six bf16 products per 32 inputs
// (int_kernels.h, Bf16Tile).
#include <immintrin.h>

#include <algorithm>
#include <array>

#include "backends/cpu/amx/bf16_terms.h"
#include "backends/cpu/amx/tile_config.h"
#include "backends/cpu/gemm/int_kernels.h"

namespace nibble::cpu {
namespace {

constexpr int64_t kTileRows = 16, kTileValues = 16 * 32;
constexpr int64_t kCStride = kTileOutputs * 4;  // bytes

// bf16 values in 16 rows of A.
int64_t BlockValues(const Bf16Tile& t) {
  return t.k / 32 * t.a_terms * kTileValues;
}

// Tiles: 0..3 = C (0, 1 the upper tokens; 2, 3 the lower), 4, 5 = A upper and lower, 6, 7 = B.
template <bool kLower>
void Block(const Bf16Tile& t, const uint16_t* a, float* c) {
  _tile_zero(0);
  _tile_zero(1);
  if (kLower) _tile_zero(2);
  if (kLower) _tile_zero(3);
  const uint16_t* b = t.b;
  const int64_t lower = BlockValues(t), step = t.a_terms * kTileValues;
  const auto multiply = [&](const uint16_t* term) __attribute__((always_inline)) {
    _tile_loadd(4, term, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (!kLower) return;
    _tile_loadd(5, term + lower, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  };
  for (int64_t k = 0; k < t.k; k += 32, a += step) {
    for (int64_t i = 0; i < t.b_terms; ++i, b += 2 * kTileValues) {
      _tile_loadd(6, b, 64);
      _tile_loadd(7, b + kTileValues, 64);
      for (int64_t j = 0; i + j < t.a_terms; ++j) multiply(a + j * kTileValues);
    }
  }
  _tile_stored(0, c, kCStride);
  _tile_stored(1, c + kPanel, kCStride);
  if (kLower) _tile_stored(2, c + kTileRows * kTileOutputs, kCStride);
  if (kLower) _tile_stored(3, c + kTileRows * kTileOutputs + kPanel, kCStride);
}

void Configure(int64_t upper, int64_t lower) {
  TileConfig config;
  config.rows[0] = config.rows[1] = config.rows[4] = static_cast<uint8_t>(upper);
  config.rows[2] = config.rows[3] = config.rows[5] = static_cast<uint8_t>(lower);
  LoadTileConfig(config);
}

}  // namespace

void amx_gemm_bf16(const Bf16Tile& t) {
  // The compiler does not know that tile loads and stores touch memory.
  asm volatile("" ::: "memory");
  Configure(kTileRows, kTileRows);
  int64_t row = 0;
  for (; row + 2 * kTileRows <= t.rows; row += 2 * kTileRows) {
    Block<true>(t, t.a + row / kTileRows * BlockValues(t), t.c + row * kTileOutputs);
  }
  const int64_t rest = t.rows - row;
  const uint16_t* a = t.a + row / kTileRows * BlockValues(t);
  float* c = t.c + row * kTileOutputs;
  if (rest > kTileRows) {
    Configure(kTileRows, rest - kTileRows);
    Block<true>(t, a, c);
  } else if (rest > 0) {
    Configure(rest, kTileRows);
    Block<false>(t, a, c);
  }
  _tile_release();
  asm volatile("" ::: "memory");
}

void amx_split_rows(const float* x, int64_t rows, int64_t columns, int64_t terms, uint16_t* tiles) {
  alignas(64) static constexpr auto kUpperHalves = [] {
    std::array<uint16_t, 32> words{};
    for (uint16_t i = 0; i < 32; ++i) words[i] = static_cast<uint16_t>(2 * i + 1);
    return words;
  }();
  const __m512i upper_halves = _mm512_load_si512(kUpperHalves.data());
  const auto load = [&](const float* from, int64_t left) __attribute__((always_inline)) {
    const auto mask = static_cast<__mmask16>((1u << std::clamp<int64_t>(left, 0, 16)) - 1);
    return _mm512_maskz_loadu_ps(mask, from);
  };
  for (int64_t k = 0; k < columns; k += 32, tiles += terms * kTileValues) {
    for (int64_t r = 0; r < rows; ++r) {
      const float* from = x + r * columns + k;
      __m512 front = load(from, columns - k), back = load(from + 16, columns - k - 16);
      for (int64_t term = 0; term < terms; ++term) {
        const __m512i low = CutTerm(front), high = CutTerm(back);
        _mm512_store_si512(tiles + term * kTileValues + r * 32,
                           _mm512_permutex2var_epi16(low, upper_halves, high));
      }
    }
  }
}

void amx_cut_terms(const float* x, int64_t stride, int64_t rows, int64_t columns, uint16_t* first,
                   uint16_t* second) {
  const auto mask = static_cast<__mmask16>(columns >= 16 ? 0xFFFF : (1 << columns) - 1);
  uint16_t* const terms[] = {first, second};
  for (int64_t pair = 0; pair < 16; ++pair) {
    const auto row = [&](int64_t i) __attribute__((always_inline)) {
      return i < rows ? _mm512_maskz_loadu_ps(mask, x + i * stride) : _mm512_setzero_ps();
    };
    __m512 even = row(2 * pair), odd = row(2 * pair + 1);
    for (uint16_t* term : terms) {
      const __m512i low = _mm512_srli_epi32(CutTerm(even), 16);
      _mm512_store_si512(term + pair * 32, _mm512_or_si512(low, CutTerm(odd)));
    }
  }
}

}  // namespace nibble::cpu
