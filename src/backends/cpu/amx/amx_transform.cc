// SPDX-License-Identifier: Apache-2.0
// The dense +-1 factor of a transform: 32 rows x 32 columns of the result in four C tiles; per 32
// inputs two tiles of signs meet two tiles of each term of x. The terms are cut first, so the
// result may replace x.
#include <immintrin.h>

#include <cstring>

#include "backends/cpu/amx/bf16_terms.h"
#include "backends/cpu/amx/tile_config.h"
#include "backends/cpu/gemm/int_kernels.h"

namespace nibble::cpu {
namespace {

constexpr int64_t kTileValues = 16 * 32;
constexpr int64_t kTerms = 3;  // of 8 bits each: all of a float

// Row pairs of x to B tiles: terms [kTerms][steps][2 column tiles][16 pairs][16 columns][2].
void CutTerms(const SignProduct& p, int64_t steps) {
  const int64_t plane = steps * 2 * kTileValues;
  for (int64_t pair = 0; pair < steps * 16; ++pair) {
    for (int64_t half = 0; half < 2; ++half) {
      const auto row = [&](int64_t i) __attribute__((always_inline)) {
        if (i >= p.order) return _mm512_setzero_ps();
        return _mm512_loadu_ps(p.x + i * p.stride + half * 16);
      };
      __m512 even = row(2 * pair), odd = row(2 * pair + 1);
      uint16_t* out = p.terms + (pair / 16 * 2 + half) * kTileValues + pair % 16 * 32;
      for (int64_t term = 0; term < kTerms; ++term) {
        const __m512i low = _mm512_srli_epi32(CutTerm(even), 16);
        _mm512_store_si512(out + term * plane, _mm512_or_si512(low, CutTerm(odd)));
      }
    }
  }
}

// Two C tiles, the upper (0, 1) or the lower ones (2, 3), to out [16 rows, stride].
template <bool kUpper>
void StoreTiles(float* out, int64_t stride) {
  if (kUpper) {
    _tile_stored(0, out, stride * 4);
    _tile_stored(1, out + 16, stride * 4);
  } else {
    _tile_stored(2, out, stride * 4);
    _tile_stored(3, out + 16, stride * 4);
  }
}

// Rows [first, first + 16) of the result.
template <bool kUpper>
void StoreRows(const SignProduct& p, int64_t first) {
  float* out = p.x + first * p.stride;
  if (first + 16 <= p.order) return StoreTiles<kUpper>(out, p.stride);
  alignas(64) float rows[16 * kTileOutputs];  // some do not exist
  asm volatile("" ::"r"(rows) : "memory");
  StoreTiles<kUpper>(rows, kTileOutputs);
  asm volatile("" ::: "memory");
  for (int64_t r = 0; first + r < p.order; ++r) {
    std::memcpy(out + r * p.stride, rows + r * kTileOutputs, kTileOutputs * sizeof(float));
  }
}

// Rows [first, first + 32) of the result, or 16 when no more exist. Tiles: 0..3 = C, 4, 5 = signs,
// 6, 7 = x.
void Rows(const SignProduct& p, int64_t first, int64_t steps) {
  const bool lower = first + 16 < p.order;
  const uint16_t* h = p.h + first / 16 * steps * kTileValues;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t step = 0; step < steps; ++step, h += kTileValues) {
    _tile_loadd(4, h, 64);
    if (lower) _tile_loadd(5, h + steps * kTileValues, 64);
    for (int64_t term = 0; term < kTerms; ++term) {
      const uint16_t* x = p.terms + (term * steps + step) * 2 * kTileValues;
      _tile_loadd(6, x, 64);
      _tile_loadd(7, x + kTileValues, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      if (!lower) continue;
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  StoreRows<true>(p, first);
  if (lower) StoreRows<false>(p, first + 16);
}

}  // namespace

void amx_sign_product(const SignProduct& p) {
  const int64_t steps = (p.order + 31) / 32;
  CutTerms(p, steps);
  // The compiler does not know that tile loads and stores touch memory.
  asm volatile("" ::: "memory");
  LoadTileConfig({});
  for (int64_t first = 0; first < p.order; first += 32) Rows(p, first, steps);
  _tile_release();  // a thread that keeps live tiles makes every context switch save 8 KiB
  asm volatile("" ::: "memory");
}

}  // namespace nibble::cpu
