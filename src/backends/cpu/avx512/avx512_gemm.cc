// SPDX-License-Identifier: Apache-2.0
// 12 tokens x 32 outputs in 24 accumulators: per four inputs 2 weight loads and 12 broadcasts feed
// 24 vpdpbusd, so neither load port nor latency limits. The weights (unsigned) sit in registers,
// the activations (signed) are broadcast from memory, as vpdpbusd wants them.
#include <immintrin.h>

#include "backends/cpu/gemm/int_kernels.h"

namespace nibble::cpu {
namespace {

constexpr int kRows = 12;

template <int R>
void Block(const GemmTile& t, int64_t row) {
  const int64_t stride = t.a_stride;
  const int8_t* a = t.a + row * stride;
  const uint8_t* b0 = t.b;
  const uint8_t* b1 = t.b + t.b_stride;
  int32_t* c = t.c + row * kTileOutputs;
  __m512i acc[R][2];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    acc[r][0] = t.accumulate ? _mm512_loadu_si512(c + r * kTileOutputs) : _mm512_setzero_si512();
    acc[r][1] =
        t.accumulate ? _mm512_loadu_si512(c + r * kTileOutputs + 16) : _mm512_setzero_si512();
  }
  for (int64_t k = 0; k < t.k; k += 4) {
    const __m512i w0 = _mm512_loadu_si512(b0 + k * kPanel);
    const __m512i w1 = _mm512_loadu_si512(b1 + k * kPanel);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const __m512i x = _mm512_set1_epi32(
          *reinterpret_cast<const int32_t __attribute__((may_alias))*>(a + r * stride + k));
      acc[r][0] = _mm512_dpbusd_epi32(acc[r][0], w0, x);
      acc[r][1] = _mm512_dpbusd_epi32(acc[r][1], w1, x);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    _mm512_storeu_si512(c + r * kTileOutputs, acc[r][0]);
    _mm512_storeu_si512(c + r * kTileOutputs + 16, acc[r][1]);
  }
}

using BlockFn = void (*)(const GemmTile&, int64_t);
constexpr BlockFn kBlocks[kRows] = {Block<1>, Block<2>, Block<3>, Block<4>,  Block<5>,  Block<6>,
                                    Block<7>, Block<8>, Block<9>, Block<10>, Block<11>, Block<12>};

}  // namespace

void avx512_gemm_u8s8(const GemmTile& tile) {
  // Blocks of nearly equal height: 13 rows are 7 + 6, not 12 + 1, whose one row would wait for its
  // own latency.
  int64_t blocks = (tile.rows + kRows - 1) / kRows;
  for (int64_t row = 0; blocks > 0; --blocks) {
    const int64_t height = (tile.rows - row + blocks - 1) / blocks;
    kBlocks[height - 1](tile, row);
    row += height;
  }
}

}  // namespace nibble::cpu
