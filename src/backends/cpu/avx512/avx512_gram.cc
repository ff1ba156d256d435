// SPDX-License-Identifier: Apache-2.0
// Sums over tokens of outer products, two tokens in an instruction (int_kernels.h, GramTile).
#include <immintrin.h>

#include "backends/cpu/gemm/int_kernels.h"

namespace nibble::cpu {

void avx512_pack_pairs(const float* x, int64_t stride, int64_t tokens, int64_t columns,
                       uint32_t* panel) {
  const auto mask = static_cast<__mmask16>(columns >= kPanel ? 0xFFFF : (1 << columns) - 1);
  const __m512i half = _mm512_set1_epi32(0x8000);
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xFFFF0000));
  for (int64_t t = 0; t < tokens; t += 2, panel += kPanel) {
    const auto rounded = [&](int64_t token) __attribute__((always_inline)) {
      const __m512i bits =
          token < tokens ? _mm512_castps_si512(_mm512_maskz_loadu_ps(mask, x + token * stride))
                         : _mm512_setzero_si512();
      return _mm512_add_epi32(bits, half);
    };
    const __m512i even = _mm512_maskz_srli_epi32(0xFFFF, rounded(t), 16);
    _mm512_store_si512(panel, _mm512_or_si512(even, _mm512_and_si512(rounded(t + 1), upper)));
  }
}

// 8 rows at a time: 24 sums and 3 vectors of `right` are registers.
void avx512_gram_bf16(const GramTile& t) {
  constexpr int kRows = 8, kPanels = GramTile::kColumns / kPanel;
  for (int64_t first = 0; first < kPanel; first += kRows) {
    __m512 sums[kRows][kPanels];
    for (auto& row : sums) {
      for (__m512& sum : row) sum = _mm512_setzero_ps();
    }
    const uint32_t* left = t.left + first;
    const uint32_t* right = t.right;
    for (int64_t p = 0; p < t.pairs; ++p, left += kPanel, right += kPanel) {
      __m512bh b[kPanels];
#pragma GCC unroll 3
      for (int j = 0; j < kPanels; ++j) {
        b[j] = (__m512bh)_mm512_load_si512(right + j * t.pairs * kPanel);
      }
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        const auto a = (__m512bh)_mm512_set1_epi32(static_cast<int>(left[i]));
#pragma GCC unroll 3
        for (int j = 0; j < kPanels; ++j) sums[i][j] = _mm512_dpbf16_ps(sums[i][j], a, b[j]);
      }
    }
    float* c = t.c + first * GramTile::kColumns;
    for (int i = 0; i < kRows; ++i, c += GramTile::kColumns) {
      for (int j = 0; j < kPanels; ++j) _mm512_storeu_ps(c + j * kPanel, sums[i][j]);
    }
  }
}

}  // namespace nibble::cpu
