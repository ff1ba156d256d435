// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "measure/peak_loops.h"

namespace nibble::cpu {

int avx2_peak_u8s8(int64_t steps) {
  __m256i acc[8];
  for (int i = 0; i < 8; ++i) acc[i] = _mm256_set1_epi32(i);
  __m256i a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(5);
  const __m256i ones = _mm256_set1_epi16(1);
  for (int64_t s = 0; s < steps; ++s) {
    asm volatile("" : "+x"(a), "+x"(b));  // new values each step, as far as the compiler knows
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      __m256i pairs = _mm256_maddubs_epi16(a, b);
      asm volatile("" : "+x"(pairs));
      acc[i] = _mm256_add_epi32(acc[i], _mm256_madd_epi16(pairs, ones));
    }
  }
  __m256i sum = acc[0];
  for (int i = 1; i < 8; ++i) sum = _mm256_add_epi32(sum, acc[i]);
  return _mm256_extract_epi32(sum, 0);
}

int avx2_peak_f32(int64_t steps) {
  __m256 acc[12];
  for (int i = 0; i < 12; ++i) acc[i] = _mm256_set1_ps(static_cast<float>(i));
  __m256 a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(0.25f);
  for (int64_t s = 0; s < steps; ++s) {
    asm volatile("" : "+x"(a), "+x"(b));
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) acc[i] = _mm256_fmadd_ps(a, b, acc[i]);
  }
  __m256 sum = acc[0];
  for (int i = 1; i < 12; ++i) sum = _mm256_add_ps(sum, acc[i]);
  return static_cast<int>(_mm256_cvtss_f32(sum));
}

int avx2_read(const uint8_t* data, int64_t bytes) {
  __m256i acc[4] = {};
  for (int64_t i = 0; i < bytes; i += 128) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      acc[j] = _mm256_xor_si256(
          acc[j], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + i + 32 * j)));
    }
  }
  acc[0] = _mm256_xor_si256(_mm256_xor_si256(acc[0], acc[1]), _mm256_xor_si256(acc[2], acc[3]));
  return _mm256_extract_epi32(acc[0], 0);
}

}  // namespace nibble::cpu
