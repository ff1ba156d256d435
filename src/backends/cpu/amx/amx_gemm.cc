// SPDX-License-Identifier: Apache-2.0
// 32 tokens x 32 outputs in four C tiles: per 64 inputs two A tiles and two B tiles feed four
// tdpbsud (A signed, B unsigned). The byte panel is the B tile as it lies in memory: 16 rows (four
// inputs each) of 64 bytes. A comes from L2 past L1, where B must stay.
#include <immintrin.h>

#include "backends/cpu/amx/tile_config.h"
#include "backends/cpu/gemm/int_kernels.h"
#include "backends/cpu/gemm/prefetch.inl.h"

namespace nibble::cpu {
namespace {

constexpr int64_t kTileBytes = 64, kTile = 16 * kTileBytes;
constexpr int64_t kCStride = kTileOutputs * 4;  // bytes

void UnpackLine(const uint8_t* nibbles, uint8_t* bytes) {
  PrefetchAhead<64>(nibbles);
  const __m512i mask = _mm512_set1_epi8(15), pair = _mm512_loadu_si512(nibbles);
  _mm512_store_si512(bytes, _mm512_and_si512(pair, mask));
  _mm512_store_si512(bytes + 64, _mm512_and_si512(_mm512_srli_epi16(pair, 4), mask));
}

// The share of `steps` equal steps in t.ahead, one step a call.
class Ahead {
 public:
  Ahead(const UnpackAhead& t, int64_t steps) : t_(t), per_step_((t.lines + steps - 1) / steps) {}
  inline __attribute__((always_inline)) void Step() {
    for (int64_t i = 0; i < per_step_ && line_ < t_.lines; ++i, ++line_) {
      const uint8_t* first = t_.nibbles + line_ * 64;
      const uint8_t* second = first + t_.nibble_stride;
      UnpackLine(first, t_.bytes + line_ * 128);
      UnpackLine(second, t_.bytes + t_.byte_stride + line_ * 128);
    }
  }

 private:
  const UnpackAhead& t_;
  const int64_t per_step_;
  int64_t line_ = 0;
};

// Tiles: 0..3 = C (0, 1 the upper tokens; 2, 3 the lower), 4, 5 = A upper and lower, 6, 7 = B.
// kLower: more than 16 tokens.
template <bool kLower>
void Block(const GemmTile& t) {
  int32_t* lower = t.c + 16 * kTileOutputs;
  if (t.accumulate) {
    _tile_loadd(0, t.c, kCStride);
    _tile_loadd(1, t.c + kPanel, kCStride);
    if (kLower) _tile_loadd(2, lower, kCStride);
    if (kLower) _tile_loadd(3, lower + kPanel, kCStride);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    if (kLower) _tile_zero(2);
    if (kLower) _tile_zero(3);
  }
  Ahead ahead(t.ahead, t.k / kTileBytes);
  const int8_t* a = t.a;
  for (int64_t k = 0; k < t.k; k += kTileBytes, a += kTile) {
    _tile_loadd(6, t.b + k * kPanel, kTileBytes);
    _tile_stream_loadd(4, a, kTileBytes);
    _tile_dpbsud(0, 4, 6);
    _tile_loadd(7, t.b + t.b_stride + k * kPanel, kTileBytes);
    _tile_dpbsud(1, 4, 7);
    if (kLower) {
      _tile_stream_loadd(5, a + t.a_stride, kTileBytes);
      _tile_dpbsud(2, 5, 6);
      _tile_dpbsud(3, 5, 7);
    }
    ahead.Step();
  }
  _tile_stored(0, t.c, kCStride);
  _tile_stored(1, t.c + kPanel, kCStride);
  if (kLower) _tile_stored(2, lower, kCStride);
  if (kLower) _tile_stored(3, lower + kPanel, kCStride);
}

}  // namespace

void amx_begin() {
  LoadTileConfig({});
}

void amx_end() {
  _tile_release();  // a thread that keeps live tiles makes every context switch save 8 KiB
}

void amx_gemm_u8s8(const GemmTile& tile) {
  // The compiler does not know that tile loads and stores touch memory.
  asm volatile("" ::: "memory");
  if (tile.rows > 16) {
    Block<true>(tile);
  } else {
    Block<false>(tile);
  }
  asm volatile("" ::: "memory");
}

}  // namespace nibble::cpu
