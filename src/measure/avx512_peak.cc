// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "measure/peak_loops.h"

namespace nibble::cpu {

int avx512_peak_u8s8(int64_t steps) {
  __m512i acc[16];
  for (int i = 0; i < 16; ++i) acc[i] = _mm512_set1_epi32(i);
  __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);
  for (int64_t s = 0; s < steps; ++s) {
    asm volatile("" : "+v"(a), "+v"(b));  // new values each step, as far as the compiler knows
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) acc[i] = _mm512_dpbusd_epi32(acc[i], a, b);
  }
  __m512i sum = acc[0];
  for (int i = 1; i < 16; ++i) sum = _mm512_add_epi32(sum, acc[i]);
  return _mm512_cvtsi512_si32(sum);
}

int avx512_peak_f32(int64_t steps) {
  __m512 acc[16];
  for (int i = 0; i < 16; ++i) acc[i] = _mm512_set1_ps(static_cast<float>(i));
  __m512 a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(0.25f);
  for (int64_t s = 0; s < steps; ++s) {
    asm volatile("" : "+v"(a), "+v"(b));
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) acc[i] = _mm512_fmadd_ps(a, b, acc[i]);
  }
  __m512 sum = acc[0];
  for (int i = 1; i < 16; ++i) sum = _mm512_add_ps(sum, acc[i]);
  return static_cast<int>(_mm512_cvtss_f32(sum));
}

int avx512_read(const uint8_t* data, int64_t bytes) {
  __m512i acc[4] = {};
  for (int64_t i = 0; i < bytes; i += 256) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      acc[j] = _mm512_xor_si512(acc[j], _mm512_loadu_si512(data + i + 64 * j));
    }
  }
  acc[0] = _mm512_xor_si512(_mm512_xor_si512(acc[0], acc[1]), _mm512_xor_si512(acc[2], acc[3]));
  return _mm512_cvtsi512_si32(acc[0]);
}

}  // namespace nibble::cpu
