// SPDX-License-Identifier: Apache-2.0
// 32 tokens x 32 outputs in four C tiles; per 64 inputs two A tiles and two B tiles feed four
// tdpbsud (A signed, B unsigned). The byte panel is the B tile as it lies in memory: 16 rows (four
// inputs each) of 64 bytes. A comes from L2 and B from L1 (the caller's blocking).
#include <immintrin.h>

#include "backends/cpu/amx/tile_config.h"
#include "backends/cpu/int_kernels.h"

namespace nibble::cpu {
namespace {

constexpr int64_t kTileRows = 16, kTileBytes = 64;
constexpr int64_t kCStride = kTileOutputs * 4;  // bytes

// Tiles of `upper` and `lower` tokens (1..16): 0..3 = C (0, 1 the upper tokens; 2, 3 the lower),
// 4, 5 = A upper and lower, 6, 7 = B.
void Configure(int64_t upper, int64_t lower) {
  TileConfig config;
  config.rows[0] = config.rows[1] = config.rows[4] = static_cast<uint8_t>(upper);
  config.rows[2] = config.rows[3] = config.rows[5] = static_cast<uint8_t>(lower);
  LoadTileConfig(config);
}

// More than 16 tokens: both rows of tiles.
void TwoByTwo(const GemmTile& t, const int8_t* a, int32_t* c) {
  const int8_t* a_lower = a + kTileRows * t.a_stride;
  int32_t* c_lower = c + kTileRows * kTileOutputs;
  if (t.accumulate) {
    _tile_loadd(0, c, kCStride);
    _tile_loadd(1, c + kPanel, kCStride);
    _tile_loadd(2, c_lower, kCStride);
    _tile_loadd(3, c_lower + kPanel, kCStride);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t k = 0; k < t.k; k += kTileBytes) {
    _tile_loadd(6, t.b + k * kPanel, kTileBytes);
    _tile_loadd(4, a + k, t.a_stride);
    _tile_dpbsud(0, 4, 6);
    _tile_loadd(7, t.b + t.b_stride + k * kPanel, kTileBytes);
    _tile_dpbsud(1, 4, 7);
    _tile_loadd(5, a_lower + k, t.a_stride);
    _tile_dpbsud(2, 5, 6);
    _tile_dpbsud(3, 5, 7);
  }
  _tile_stored(0, c, kCStride);
  _tile_stored(1, c + kPanel, kCStride);
  _tile_stored(2, c_lower, kCStride);
  _tile_stored(3, c_lower + kPanel, kCStride);
}

// At most 16 tokens.
void OneByTwo(const GemmTile& t, const int8_t* a, int32_t* c) {
  if (t.accumulate) {
    _tile_loadd(0, c, kCStride);
    _tile_loadd(1, c + kPanel, kCStride);
  } else {
    _tile_zero(0);
    _tile_zero(1);
  }
  for (int64_t k = 0; k < t.k; k += kTileBytes) {
    _tile_loadd(4, a + k, t.a_stride);
    _tile_loadd(6, t.b + k * kPanel, kTileBytes);
    _tile_loadd(7, t.b + t.b_stride + k * kPanel, kTileBytes);
    _tile_dpbsud(0, 4, 6);
    _tile_dpbsud(1, 4, 7);
  }
  _tile_stored(0, c, kCStride);
  _tile_stored(1, c + kPanel, kCStride);
}

}  // namespace

void amx_gemm_u8s8(const GemmTile& tile) {
  // _tile_loadd names no memory operand; what the caller wrote must be in memory before.
  asm volatile("" ::: "memory");
  constexpr int64_t kBlock = 2 * kTileRows;
  const int64_t whole = tile.rows / kBlock * kBlock;
  if (whole > 0) Configure(kTileRows, kTileRows);
  for (int64_t row = 0; row < whole; row += kBlock) {
    TwoByTwo(tile, tile.a + row * tile.a_stride, tile.c + row * kTileOutputs);
  }
  const int64_t rest = tile.rows - whole;
  if (rest > 0) {
    const int8_t* a = tile.a + whole * tile.a_stride;
    int32_t* c = tile.c + whole * kTileOutputs;
    if (rest > kTileRows) {
      Configure(kTileRows, rest - kTileRows);
      TwoByTwo(tile, a, c);
    } else {
      Configure(rest, kTileRows);
      OneByTwo(tile, a, c);
    }
  }
  _tile_release();  // a thread that keeps live tiles makes every context switch save 8 KiB
}

}  // namespace nibble::cpu
