// SPDX-License-Identifier: Apache-2.0
// The kernels on vpdpbusd with AVX-VNNI: sixteen registers, which is why fewer tokens share the
// weights than with AVX-512.
#include <immintrin.h>

#include "backends/cpu/gemm/vnni_gemm.inl.h"
#include "backends/cpu/gemm/vnni_gemv.inl.h"

namespace nibble::cpu {
namespace {

struct Ymm {
  using V = __m256i;
  static constexpr int64_t kOutputs = 8;
  static constexpr int kRows = 6, kGemvRows = 4;
  static constexpr int Chains(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }

  static V Zero() { return _mm256_setzero_si256(); }
  static V Load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static void Store(int32_t* p, V v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
  static V Broadcast(const int8_t* a) {
    return _mm256_set1_epi32(*reinterpret_cast<const int32_t __attribute__((may_alias))*>(a));
  }
  static V Dot(V sum, V w, V x) { return _mm256_dpbusd_avx_epi32(sum, w, x); }
  static V Add32(V a, V b) { return _mm256_add_epi32(a, b); }
  static V Add8(V a, V b) { return _mm256_add_epi8(a, b); }
  static V Multiply16(V a, V b) { return _mm256_mullo_epi16(a, b); }
  static V LowNibbles(V w) { return _mm256_and_si256(w, _mm256_set1_epi8(15)); }
  static V HighNibbles(V w) { return LowNibbles(_mm256_srli_epi16(w, 4)); }
  static V Shuffle(V bytes, V order) { return _mm256_shuffle_epi8(bytes, order); }
  static V Repeat(const uint8_t* bytes) {  // 16 of them in both halves
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
  }
  static V Widen(const uint16_t* values) {  // to 32 bits
    return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values)));
  }
};

}  // namespace

void avx_vnni_gemm_u8s8(const GemmTile& tile) {
  VnniGemm<Ymm>(tile);
}
void avx_vnni_gemv_u4s8(const GemvTile& tile) {
  VnniGemv<Ymm, NibbleCodes>(tile);
}
void avx_vnni_gemv_u8s8(const GemvTile& tile) {
  VnniGemv<Ymm, ByteCodes>(tile);
}
void avx_vnni_gemv_f4s8(const GemvTile& tile) {
  VnniGemv<Ymm, FloatCodes>(tile);
}
void avx_vnni_gemv_u4s8_levels(const GemvTile& tile) {
  VnniGemv<Ymm, LevelCodes>(tile);
}

}  // namespace nibble::cpu
