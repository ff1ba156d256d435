// SPDX-License-Identifier: Apache-2.0
// One panel of codewords of a lattice against up to four tokens. Words of a block of 32 inputs are
// looked up for all outputs and tokens; int16 sums of half a panel (8 outputs) are widened behind
// every block. Second codes have sums of their own.
#include "backends/cpu/avx2/avx2_u4.inl.h"
#include "backends/cpu/gemm/int_kernels.h"

namespace nibble::cpu {
namespace {

constexpr int64_t kBlock = 32;  // inputs
static_assert(kBlock / 4 == kPartials);

template <int kBits>
struct Codewords {
  static constexpr int kCodes = kBits == 2 ? 1 : 2;
  static constexpr int64_t kBytes = kBits * 64;  // of a block
  // Factors of the sums of the first and of the second codes' numbers.
  static constexpr int16_t kFactors[2] = {kBits == 4 ? 8 : 2, kBits == 3 ? 1 : 2};

  alignas(64) uint32_t words[kCodes][4 * kPanel];

  Codewords(const LatticeWords& table, const uint8_t* b) {
    e8p_words(table, b + (kBits - 2) * 64, words[0]);
    if constexpr (kBits == 3) short_words(table, b, words[1]);
    if constexpr (kBits == 4) e8p_words(table, b, words[1]);
  }
};

// Outputs from `first` on, eight of them: c[R, kTileOutputs] += sums of a block
template <int kBits, int R>
void AddHalf(const Codewords<kBits>& codewords, int64_t first, const int8_t* a, int64_t a_stride,
             int32_t* c) {
  constexpr int kCodes = Codewords<kBits>::kCodes;
  __m256i sums[R][kCodes];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int i = 0; i < kCodes; ++i) sums[r][i] = _mm256_setzero_si256();
  }
#pragma GCC unroll 4
  for (int code = 0; code < 4; ++code) {
#pragma GCC unroll 2
    for (int i = 0; i < kCodes; ++i) {
      const __m256i words = Load(codewords.words[i] + code * kPanel + first);
      const __m256i low = Low(words), high = High(words);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const int8_t* x = a + r * a_stride + 8 * code;
        Add16(sums[r][i], low, Broadcast(x));
        Add16(sums[r][i], high, Broadcast(x + 4));
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int i = 0; i < kCodes; ++i) {
      Widen(c + r * kTileOutputs + first, sums[r][i], Codewords<kBits>::kFactors[i]);
    }
  }
}

template <int kBits, int R>
void Group(const GemvTile& t, const int8_t* a, const uint8_t* b, int32_t* c) {
  for (int64_t k = 0; k < t.k; k += kBlock, a += kBlock, b += Codewords<kBits>::kBytes) {
    const Codewords<kBits> codewords(*t.words, b);
    AddHalf<kBits, R>(codewords, 0, a, t.a_stride, c);
    AddHalf<kBits, R>(codewords, 8, a, t.a_stride, c);
  }
}

template <int kBits>
void Run(const GemvTile& t) {
  constexpr void (*kGroups[])(const GemvTile&, const int8_t*, const uint8_t*, int32_t*) = {
      Group<kBits, 1>, Group<kBits, 2>, Group<kBits, 3>, Group<kBits, 4>};
  Clear(t.c, t.groups * t.rows * kTileOutputs);
  for (int64_t panel = 0; panel < 2; ++panel) {
    for (int64_t g = 0; g < t.groups; ++g) {
      kGroups[t.rows - 1](t, t.a + g * t.k,
                          t.b + panel * t.b_stride + g * t.k / kBlock * Codewords<kBits>::kBytes,
                          t.c + g * t.rows * kTileOutputs + panel * kPanel);
    }
  }
}

}  // namespace

void avx2_gemv_p2s8(const GemvTile& tile) {
  Run<2>(tile);
}
void avx2_gemv_p3s8(const GemvTile& tile) {
  Run<3>(tile);
}
void avx2_gemv_p4s8(const GemvTile& tile) {
  Run<4>(tile);
}

}  // namespace nibble::cpu
