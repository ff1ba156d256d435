// SPDX-License-Identifier: Apache-2.0
// The kernels on vpdpbusd with AVX-512.
#include <immintrin.h>

#include "backends/cpu/gemm/vnni_gemm.inl.h"
#include "backends/cpu/gemm/vnni_gemv.inl.h"

namespace nibble::cpu {
namespace {

struct Zmm {
  using V = __m512i;
  static constexpr int64_t kOutputs = 16;
  static constexpr int kRows = 12, kGemvRows = 12;
  static constexpr int Chains(int rows) { return rows == 1 ? 4 : rows <= 4 ? 2 : 1; }

  static V Zero() { return _mm512_setzero_si512(); }
  static V Load(const void* p) { return _mm512_loadu_si512(p); }
  static void Store(int32_t* p, V v) { _mm512_storeu_si512(p, v); }
  static V Broadcast(const int8_t* a) {
    return _mm512_set1_epi32(*reinterpret_cast<const int32_t __attribute__((may_alias))*>(a));
  }
  static V Dot(V sum, V w, V x) { return _mm512_dpbusd_epi32(sum, w, x); }
  static V Add32(V a, V b) { return _mm512_add_epi32(a, b); }
  static V Add8(V a, V b) { return _mm512_add_epi8(a, b); }
  static V Multiply16(V a, V b) { return _mm512_mullo_epi16(a, b); }
  static V LowNibbles(V w) { return _mm512_and_si512(w, _mm512_set1_epi8(15)); }
  static V HighNibbles(V w) { return LowNibbles(_mm512_srli_epi16(w, 4)); }
  static V Shuffle(V bytes, V order) { return _mm512_shuffle_epi8(bytes, order); }
  // Masked: GCC 12 takes the plain ones' results for uninitialized.
  static V Repeat(const uint8_t* bytes) {  // 16 of them in every quarter
    return _mm512_maskz_broadcast_i32x4(0xFFFF,
                                        _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
  }
  static V Widen(const uint16_t* values) {  // to 32 bits
    return _mm512_maskz_cvtepu16_epi32(
        0xFFFF, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values)));
  }
};

}  // namespace

void avx512_gemm_u8s8(const GemmTile& tile) {
  VnniGemm<Zmm>(tile);
}
void avx512_gemv_u4s8(const GemvTile& tile) {
  VnniGemv<Zmm, NibbleCodes>(tile);
}
void avx512_gemv_u8s8(const GemvTile& tile) {
  VnniGemv<Zmm, ByteCodes>(tile);
}
void avx512_gemv_f4s8(const GemvTile& tile) {
  VnniGemv<Zmm, FloatCodes>(tile);
}
void avx512_gemv_u4s8_levels(const GemvTile& tile) {
  VnniGemv<Zmm, LevelCodes>(tile);
}

}  // namespace nibble::cpu
