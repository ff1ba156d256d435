// SPDX-License-Identifier: Apache-2.0
// Products of 4-bit weights with AVX2. vpmaddubsw adds two u8 * s8 products in int16: with weights
// of at most 15 that is at most 2 * 15 * 128 = 3840, so kPartials of them fit (30720) before they
// are widened. A byte weight is two nibbles: u = lo + 16 * hi.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "backends/cpu/gemm/int_kernels.h"

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

inline int32_t SumOf(const int8_t* codes, int64_t count) {
  int32_t sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += codes[i];
  return sum;
}

// Sums of nibbles become those of bytes: a product with nibble * scale + start is scale times that
// with the nibble, and start times the activation. Calls multiply(k, inputs, sums [rows,
// kTileOutputs]) for the inputs of each step and adds to c.
template <int64_t kMaxRows, typename F>
inline void AddLevels(const int8_t* a, int64_t a_stride, int64_t rows, int64_t inputs,
                      const LevelSteps& levels, int32_t* c, const F& multiply) {
  int32_t sums[kMaxRows * kTileOutputs];
  for (int64_t k = 0, count; k < inputs; k += count) {
    const int64_t step = (levels.first + k) / levels.cols;
    count = (step + 1) * levels.cols - levels.first - k;
    if (count > inputs - k) count = inputs - k;
    multiply(k, count, sums);
    for (int64_t r = 0; r < rows; ++r) {
      const __m256i x = _mm256_set1_epi32(SumOf(a + r * a_stride + k, count));
      for (int64_t n = 0; n < kTileOutputs; n += 8) {
        const uint16_t* of = levels.steps + n / kPanel * levels.stride + step * kPanel + n % kPanel;
        const __m256i pairs =
            _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(of)));
        const __m256i scale = _mm256_and_si256(pairs, _mm256_set1_epi32(255));
        const __m256i start = _mm256_srli_epi32(pairs, 8);
        const int64_t at = r * kTileOutputs + n;
        const __m256i more = _mm256_add_epi32(_mm256_mullo_epi32(scale, Load(sums + at)),
                                              _mm256_mullo_epi32(start, x));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(c + at),
                            _mm256_add_epi32(Load(c + at), more));
      }
    }
  }
}

}  // namespace
}  // namespace nibble::cpu
