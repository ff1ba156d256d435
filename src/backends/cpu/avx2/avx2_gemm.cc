// SPDX-License-Identifier: Apache-2.0
// Four tokens by two weight vectors in eight int16 accumulators, widened into c every 32 inputs.
// The two vectors are the halves of a panel (4-bit weights) or the two nibbles of one half (8-bit).
#include "backends/cpu/avx2/avx2_u4.inl.h"
#include "backends/cpu/gemm/int_kernels.h"

namespace nibble::cpu {
namespace {

constexpr int kRows = 4;

struct NibbleBytes {
  static constexpr int64_t kOutputs = 16;       // of one strip
  static constexpr int64_t kQuads = kPartials;  // between two widenings
  static void LoadPair(const uint8_t* b, __m256i& w0, __m256i& w1) {
    w0 = Load(b);
    w1 = Load(b + 32);
  }
  static void WidenPair(int32_t* c, __m256i sum0, __m256i sum1) {
    Widen(c, sum0, 1);
    Widen(c + 8, sum1, 1);
  }
};

// Bytes of at most 24: 2 * 24 * 128 = 6144 in a partial sum.
struct FloatBytes : NibbleBytes {
  static constexpr int64_t kQuads = 4;
};

struct FullBytes {
  static constexpr int64_t kOutputs = 8;
  static constexpr int64_t kQuads = kPartials;
  static void LoadPair(const uint8_t* b, __m256i& w0, __m256i& w1) {
    const __m256i w = Load(b);
    w0 = Low(w);
    w1 = High(w);
  }
  static void WidenPair(int32_t* c, __m256i sum0, __m256i sum1) {
    Widen(c, sum0, 1);
    Widen(c, sum1, 16);
  }
};

// c += sums of `quads` (1..kQuads) times four inputs
template <typename Weights, int R>
inline __attribute__((always_inline)) void Segment(const int8_t* a, int64_t stride,
                                                   const uint8_t* b, int64_t quads, int32_t* c) {
  __m256i sum[R][2];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = _mm256_setzero_si256();
#pragma GCC unroll 1
  for (int64_t q = 0; q < quads; ++q, a += 4, b += 64) {
    __m256i w0, w1;
    Weights::LoadPair(b, w0, w1);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const __m256i x = Broadcast(a + r * stride);
      Add16(sum[r][0], w0, x);
      Add16(sum[r][1], w1, x);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) Weights::WidenPair(c + r * kTileOutputs, sum[r][0], sum[r][1]);
}

template <typename Weights, int R>
void Strip(const GemmTile& t, const int8_t* a, const uint8_t* b, int32_t* c) {
  int64_t k = 0;
  // A constant count lets GCC 12 keep all eight sums in registers.
  for (; k + 4 * Weights::kQuads <= t.k; k += 4 * Weights::kQuads) {
    Segment<Weights, R>(a + k, t.a_stride, b + k * kPanel, Weights::kQuads, c);
  }
  if (k < t.k) Segment<Weights, R>(a + k, t.a_stride, b + k * kPanel, (t.k - k) / 4, c);
}

template <typename Weights>
void Run(const GemmTile& t) {
  constexpr void (*kStrips[kRows])(const GemmTile&, const int8_t*, const uint8_t*, int32_t*) = {
      Strip<Weights, 1>, Strip<Weights, 2>, Strip<Weights, 3>, Strip<Weights, 4>};
  if (!t.accumulate) Clear(t.c, t.rows * kTileOutputs);
  for (int64_t row = 0; row < t.rows; row += kRows) {
    const int64_t height = t.rows - row < kRows ? t.rows - row : kRows;
    const int8_t* a = t.a + row * t.a_stride;
    for (int64_t n = 0; n < kTileOutputs; n += Weights::kOutputs) {
      const uint8_t* b = t.b + n / kPanel * t.b_stride + n % kPanel * 4;
      int32_t* c = t.c + row * kTileOutputs + n;
      kStrips[height - 1](t, a, b, c);
    }
  }
}

}  // namespace

void avx2_gemm_u4s8(const GemmTile& tile) {
  Run<NibbleBytes>(tile);
}
void avx2_gemm_u4s8_levels(const GemmTile& tile) {
  if (!tile.accumulate) Clear(tile.c, tile.rows * kTileOutputs);
  for (int64_t row = 0; row < tile.rows; row += kRows) {
    GemmTile part = tile;
    part.rows = tile.rows - row < kRows ? tile.rows - row : kRows;
    part.accumulate = false;
    const int8_t* const a = tile.a + row * tile.a_stride;
    AddLevels<kRows>(a, tile.a_stride, part.rows, tile.k, tile.steps, tile.c + row * kTileOutputs,
                     [&](int64_t k, int64_t inputs, int32_t* sums) {
                       part.a = a + k, part.b = tile.b + k * kPanel;
                       part.k = inputs, part.c = sums;
                       Run<NibbleBytes>(part);
                     });
  }
}
void avx2_gemm_f4s8(const GemmTile& tile) {
  Run<FloatBytes>(tile);
}
void avx2_gemm_u8s8(const GemmTile& tile) {
  Run<FullBytes>(tile);
}

}  // namespace nibble::cpu
