// SPDX-License-Identifier: Apache-2.0
// One panel against up to four tokens, straight from the stored codes, half a panel (8 outputs) at
// a time; int16 sums are widened every four steps of eight inputs.
#include "backends/cpu/avx2/avx2_u4.inl.h"
#include "backends/cpu/gemm/int_kernels.h"

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

// One panel and one group: c[R, kTileOutputs] += sums
template <typename Panel, int R>
void Group(const GemvTile& t, const int8_t* a, const uint8_t* b, int32_t* c) {
  int64_t steps = t.k / 8;
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
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const int8_t* x = a + r * t.a_stride;
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

template <typename Panel>
void Run(const GemvTile& t) {
  constexpr void (*kGroups[])(const GemvTile&, const int8_t*, const uint8_t*, int32_t*) = {
      Group<Panel, 1>, Group<Panel, 2>, Group<Panel, 3>, Group<Panel, 4>};
  Clear(t.c, t.groups * t.rows * kTileOutputs);
  for (int64_t panel = 0; panel < 2; ++panel) {
    for (int64_t g = 0; g < t.groups; ++g) {
      kGroups[t.rows - 1](t, t.a + g * t.k, t.b + panel * t.b_stride + g * t.k / 8 * Panel::kStep,
                          t.c + g * t.rows * kTileOutputs + panel * kPanel);
    }
  }
}

}  // namespace

void avx2_gemv_u4s8(const GemvTile& tile) {
  Run<NibblePanel>(tile);
}
void avx2_gemv_f4s8(const GemvTile& tile) {
  Run<FloatPanel>(tile);
}
void avx2_gemv_u8s8(const GemvTile& tile) {
  Run<BytePanel>(tile);
}

}  // namespace nibble::cpu
