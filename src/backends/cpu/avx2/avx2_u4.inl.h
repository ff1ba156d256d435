// SPDX-License-Identifier: Apache-2.0
// The one trick of the AVX2 kernels: products of 4-bit weights. vpmaddubsw adds two u8 * s8
// products in int16; with weights of at most 15 that is at most 2 * 15 * 128 = 3840, so kPartials
// of them fit in int16 (30720) before they are widened. A byte weight is two nibbles: u = lo + 16 *
// hi.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace nibble::cpu {
namespace {

constexpr int64_t kPartials = 8;

inline __m256i Broadcast(const int8_t* a) {
  return _mm256_set1_epi32(*reinterpret_cast<const int32_t __attribute__((may_alias))*>(a));
}

inline __m256i Load(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

inline __m256i Low(__m256i w) {
  return _mm256_and_si256(w, _mm256_set1_epi8(15));
}
inline __m256i High(__m256i w) {
  return Low(_mm256_srli_epi16(w, 4));
}

// sum += w * x, int16
inline void Add16(__m256i& sum, __m256i w, __m256i x) {
  sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(w, x));
  asm("" : "+x"(sum));  // one register per sum: GCC 12 otherwise copies and spills them
}

// c[8] += factor * (pairs of sum16)
inline void Widen(int32_t* c, __m256i sum16, int16_t factor) {
  const __m256i sum32 = _mm256_madd_epi16(sum16, _mm256_set1_epi16(factor));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(c), _mm256_add_epi32(Load(c), sum32));
}

inline void Clear(int32_t* c, int64_t count) {  // count: a multiple of 8
  for (int64_t i = 0; i < count; i += 8) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(c + i), _mm256_setzero_si256());
  }
}

}  // namespace
}  // namespace nibble::cpu
