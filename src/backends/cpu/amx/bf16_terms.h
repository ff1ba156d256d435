// SPDX-License-Identifier: Apache-2.0
// A float as a sum of bf16 terms of eight bits each.
#pragma once

#include <immintrin.h>

namespace nibble::cpu {
namespace {

// The upper half of x rounded to nearest, in place as the bits of a float; the rest stays in x.
inline __attribute__((always_inline)) __m512i CutTerm(__m512& x) {
  const __m512i rounded = _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
  const __m512i term = _mm512_and_si512(rounded, _mm512_set1_epi32(static_cast<int>(0xFFFF0000)));
  x = _mm512_sub_ps(x, _mm512_castsi512_ps(term));
  return term;
}

}  // namespace
}  // namespace nibble::cpu
