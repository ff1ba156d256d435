// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "measure/peak_loops.h"

namespace nibble::cpu {

int avx_vnni_peak_u8s8(int64_t steps) {
  __m256i acc[12];
  for (int i = 0; i < 12; ++i) acc[i] = _mm256_set1_epi32(i);
  __m256i a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(5);
  for (int64_t s = 0; s < steps; ++s) {
    asm volatile("" : "+x"(a), "+x"(b));  // new values each step, as far as the compiler knows
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) acc[i] = _mm256_dpbusd_avx_epi32(acc[i], a, b);
  }
  __m256i sum = acc[0];
  for (int i = 1; i < 12; ++i) sum = _mm256_add_epi32(sum, acc[i]);
  return _mm256_extract_epi32(sum, 0);
}

}  // namespace nibble::cpu
