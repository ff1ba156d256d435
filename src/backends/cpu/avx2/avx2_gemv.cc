// SPDX-License-Identifier: Apache-2.0
// One panel against four tokens at a time, straight from the stored codes, half a panel (8 outputs)
// after the other; int16 sums are widened every four steps of eight inputs.
#include "backends/cpu/avx2/avx2_u4.inl.h"
#include "backends/cpu/gemm/int_kernels.h"
#include "backends/cpu/gemm/prefetch.inl.h"

namespace nibble::cpu {
namespace {

// kFlush: steps between two widenings; each adds two partial sums.
struct NibblePanel {
  static constexpr int64_t kStep = 64;  // bytes per eight inputs
  static constexpr int64_t kFlush = kPartials / 2;
  static constexpr int kSums = 1;
  static void Add(__m256i* sum, const uint8_t* b, __m256i x0, __m256i x1) {
    const __m256i w = Load(b);
    Add16(sum[0], Low(w), x0);
    Add16(sum[0], High(w), x1);
  }
  static void WidenAll(int32_t* c, const __m256i* sum) { Widen(c, sum[0], 1); }
};

// Bytes of at most 24: 2 * 24 * 128 = 6144 in a partial sum.
struct FloatPanel : NibblePanel {
  static constexpr int64_t kFlush = 2;
  static void Add(__m256i* sum, const uint8_t* b, __m256i x0, __m256i x1) {
    const __m256i w = Load(b);
    const __m256i bytes =
        _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kFloatBytes)));
    Add16(sum[0], _mm256_shuffle_epi8(bytes, Low(w)), x0);
    Add16(sum[0], _mm256_shuffle_epi8(bytes, High(w)), x1);
  }
};

struct BytePanel {
  static constexpr int64_t kStep = 128;
  static constexpr int64_t kFlush = kPartials / 2;
  static constexpr int kSums = 2;  // low and high nibbles
  static void Add(__m256i* sum, const uint8_t* b, __m256i x0, __m256i x1) {
    const __m256i w0 = Load(b), w1 = Load(b + 64);
    Add16(sum[0], Low(w0), x0);
    Add16(sum[1], High(w0), x0);
    Add16(sum[0], Low(w1), x1);
    Add16(sum[1], High(w1), x1);
  }
  static void WidenAll(int32_t* c, const __m256i* sum) {
    Widen(c, sum[0], 1);
    Widen(c, sum[1], 16);
  }
};

// One panel: c[R, kTileOutputs] += sums of so many steps.
template <typename Panel, int R>
void Add(const int8_t* a, int64_t a_stride, const uint8_t* b, int64_t steps, int32_t* c) {
  while (steps > 0) {
    int64_t count = steps < Panel::kFlush ? steps : Panel::kFlush;
    steps -= count;
    __m256i sum[R][2][Panel::kSums];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int s = 0; s < Panel::kSums; ++s) sum[r][0][s] = sum[r][1][s] = _mm256_setzero_si256();
    }
    for (; count > 0; --count, a += 8, b += Panel::kStep) {
      PrefetchAhead<Panel::kStep>(b);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const int8_t* x = a + r * a_stride;
        const __m256i x0 = Broadcast(x), x1 = Broadcast(x + 4);
        Panel::Add(sum[r][0], b, x0, x1);
        Panel::Add(sum[r][1], b + 32, x0, x1);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      Panel::WidenAll(c + r * kTileOutputs, sum[r][0]);
      Panel::WidenAll(c + r * kTileOutputs + 8, sum[r][1]);
    }
  }
}

// Codes of kChunk inputs stay in the first-level cache while four tokens after four take their
// turn.
template <typename Panel>
void Run(const GemvTile& t) {
  constexpr int64_t kChunk = 512, kRows = 4;
  constexpr void (*kAdd[])(const int8_t*, int64_t, const uint8_t*, int64_t, int32_t*) = {
      Add<Panel, 1>, Add<Panel, 2>, Add<Panel, 3>, Add<Panel, 4>};
  Clear(t.c, t.groups * t.rows * kTileOutputs);
  const int8_t* a = t.a;
  const uint8_t* b = t.b;
  for (int64_t g = 0; g < t.groups; ++g) {
    for (int64_t left = t.k; left > 0;) {
      const int64_t inputs = t.rows <= kRows || left < kChunk ? left : kChunk;
      for (int64_t r = 0; r < t.rows; r += kRows) {
        const auto add = kAdd[(t.rows - r < kRows ? t.rows - r : kRows) - 1];
        int32_t* const c = t.c + (g * t.rows + r) * kTileOutputs;
        add(a + r * t.a_stride, t.a_stride, b, inputs / 8, c);
        add(a + r * t.a_stride, t.a_stride, b + t.b_stride, inputs / 8, c + kPanel);
      }
      a += inputs, b += inputs / 8 * Panel::kStep, left -= inputs;
    }
  }
}

}  // namespace

void avx2_gemv_u4s8(const GemvTile& tile) {
  Run<NibblePanel>(tile);
}

void avx2_gemv_u4s8_levels(const GemvTile& tile) {
  Clear(tile.c, tile.rows * kTileOutputs);
  AddLevels<kMaxGemvTokens>(tile.a, tile.a_stride, tile.rows, tile.k, tile.steps, tile.c,
                            [&tile](int64_t k, int64_t inputs, int32_t* sums) {
                              GemvTile part = tile;
                              part.a += k, part.b += k / 8 * NibblePanel::kStep;
                              part.k = inputs, part.c = sums;
                              Run<NibblePanel>(part);
                            });
}

void avx2_gemv_f4s8(const GemvTile& tile) {
  Run<FloatPanel>(tile);
}
void avx2_gemv_u8s8(const GemvTile& tile) {
  Run<BytePanel>(tile);
}

}  // namespace nibble::cpu
