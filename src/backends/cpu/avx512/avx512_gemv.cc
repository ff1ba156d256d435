// SPDX-License-Identifier: Apache-2.0
// Two panels against twelve tokens at a time, straight from the stored codes: each byte is read
// once from memory and never written back. Every step takes eight inputs, so nibble and byte panels
// share the loop, and every broadcast activation serves both panels.
#include <immintrin.h>

#include "backends/cpu/gemm/int_kernels.h"
#include "backends/cpu/gemm/prefetch.inl.h"

namespace nibble::cpu {
namespace {

struct NibblePanel {
  static constexpr int64_t kStep = 64;  // bytes per eight inputs
  static constexpr bool kLevels = false;
  void Load(const uint8_t* b, __m512i& lo, __m512i& hi) const {
    const __m512i mask = _mm512_set1_epi8(15);
    const __m512i w = _mm512_loadu_si512(b);
    lo = _mm512_and_si512(w, mask);
    hi = _mm512_and_si512(_mm512_srli_epi16(w, 4), mask);
  }
};

// The table's 16 bytes stand in every quarter.
struct FloatPanel : NibblePanel {
  void Load(const uint8_t* b, __m512i& lo, __m512i& hi) const {
    const __m512i bytes = _mm512_maskz_broadcast_i32x4(
        0xFFFF, _mm_loadu_si128(reinterpret_cast<const __m128i*>(kFloatBytes)));
    NibblePanel::Load(b, lo, hi);
    lo = _mm512_shuffle_epi8(bytes, lo);
    hi = _mm512_shuffle_epi8(bytes, hi);
  }
};

struct BytePanel {
  static constexpr int64_t kStep = 128;
  static constexpr bool kLevels = false;
  void Load(const uint8_t* b, __m512i& lo, __m512i& hi) const {
    lo = _mm512_loadu_si512(b);
    hi = _mm512_loadu_si512(b + 64);
  }
};

// A nibble times its scale is below 256, so pairs of bytes are multiplied at once.
struct LevelPanel {
  static constexpr int64_t kStep = 64;
  static constexpr bool kLevels = true;
  __m512i scales, starts;  // 2 and 4 times for each output

  void Start(const uint16_t* steps) {
    // Masked: GCC 12 takes the plain one's result for uninitialized.
    const __m512i step = _mm512_maskz_cvtepu16_epi32(
        0xFFFF, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(steps)));
    scales = _mm512_shuffle_epi8(
        step, _mm512_set4_epi32(static_cast<int>(0x800C800Cu), static_cast<int>(0x80088008u),
                                static_cast<int>(0x80048004u), static_cast<int>(0x80008000u)));
    starts = _mm512_shuffle_epi8(step,
                                 _mm512_set4_epi32(0x0D0D0D0D, 0x09090909, 0x05050505, 0x01010101));
  }
  void Load(const uint8_t* b, __m512i& lo, __m512i& hi) const {
    NibblePanel().Load(b, lo, hi);
    lo = _mm512_add_epi8(_mm512_mullo_epi16(lo, scales), starts);
    hi = _mm512_add_epi8(_mm512_mullo_epi16(hi, scales), starts);
  }
};

__m512i Broadcast(const int8_t* a) {
  return _mm512_set1_epi32(*reinterpret_cast<const int32_t __attribute__((may_alias))*>(a));
}

// Sums kept per token and panel; the more, the less a vpdpbusd waits for the one before.
constexpr int Chains(int rows) {
  return rows == 1 ? 4 : rows <= 4 ? 2 : 1;
}

// R of the tile's rows.
template <typename Panel, int R>
void Run(const GemvTile& t) {
  constexpr int kChains = Chains(R);
  const uint8_t* b = t.b;
  const int8_t* a = t.a;
  Panel panels[2];
  for (int64_t g = 0; g < t.groups; ++g) {
    __m512i acc[R][2][kChains];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int i = 0; i < kChains; ++i) acc[r][0][i] = acc[r][1][i] = _mm512_setzero_si512();
    }
    const auto step = [&](int chain) __attribute__((always_inline)) {
      __m512i lo[2], hi[2];
      PrefetchAhead<Panel::kStep>(b);
      PrefetchAhead<Panel::kStep>(b + t.b_stride);
      panels[0].Load(b, lo[0], hi[0]);
      panels[1].Load(b + t.b_stride, lo[1], hi[1]);
      const int next = (chain + 1) % kChains;
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const __m512i x0 = Broadcast(a + r * t.a_stride), x1 = Broadcast(a + r * t.a_stride + 4);
        acc[r][0][chain] = _mm512_dpbusd_epi32(acc[r][0][chain], lo[0], x0);
        acc[r][1][chain] = _mm512_dpbusd_epi32(acc[r][1][chain], lo[1], x0);
        acc[r][0][next] = _mm512_dpbusd_epi32(acc[r][0][next], hi[0], x1);
        acc[r][1][next] = _mm512_dpbusd_epi32(acc[r][1][next], hi[1], x1);
      }
      b += Panel::kStep;
      a += 8;
    };
    const auto run = [&](int64_t steps) __attribute__((always_inline)) {
      if constexpr (kChains == 4) {
        for (; steps >= 2; steps -= 2) {
          step(0);
          step(2);
        }
      }
      for (; steps > 0; --steps) step(0);
    };
    if constexpr (Panel::kLevels) {
      const uint16_t* steps = t.steps.steps;
      for (int64_t left = t.k; left > 0; left -= t.steps.cols, steps += kPanel) {
        panels[0].Start(steps);
        panels[1].Start(steps + t.steps.stride);
        run((left < t.steps.cols ? left : t.steps.cols) / 8);
      }
    } else {
      run(t.k / 8);
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int p = 0; p < 2; ++p) {
        __m512i sum = acc[r][p][0];
#pragma GCC unroll 4
        for (int i = 1; i < kChains; ++i) sum = _mm512_add_epi32(sum, acc[r][p][i]);
        _mm512_storeu_si512(t.c + (g * t.rows + r) * kTileOutputs + p * kPanel, sum);
      }
    }
  }
}

template <typename Panel>
void Dispatch(const GemvTile& t) {
  constexpr void (*kRuns[])(const GemvTile&) = {
      Run<Panel, 1>, Run<Panel, 2>, Run<Panel, 3>, Run<Panel, 4>,  Run<Panel, 5>,  Run<Panel, 6>,
      Run<Panel, 7>, Run<Panel, 8>, Run<Panel, 9>, Run<Panel, 10>, Run<Panel, 11>, Run<Panel, 12>};
  if (t.rows <= kGemvRows) return kRuns[t.rows - 1](t);
  const int64_t blocks = (t.rows + kGemvRows - 1) / kGemvRows;
  GemvTile some = t;
  for (int64_t i = 0, left = t.rows; i < blocks; ++i) {
    const int64_t rows = left / (blocks - i);
    kRuns[rows - 1](some);
    some.a += rows * t.a_stride, some.c += rows * kTileOutputs, left -= rows;
  }
}

}  // namespace

void avx512_gemv_u4s8(const GemvTile& tile) {
  Dispatch<NibblePanel>(tile);
}
void avx512_gemv_u8s8(const GemvTile& tile) {
  Dispatch<BytePanel>(tile);
}
void avx512_gemv_f4s8(const GemvTile& tile) {
  Dispatch<FloatPanel>(tile);
}
void avx512_gemv_u4s8_levels(const GemvTile& tile) {
  Dispatch<LevelPanel>(tile);
}

}  // namespace nibble::cpu
