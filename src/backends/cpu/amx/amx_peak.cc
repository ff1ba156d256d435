// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "backends/cpu/amx/tile_config.h"
#include "backends/cpu/peak_loops.h"

namespace nibble::cpu {
namespace {

// Tiles 0..3 = C, 4, 5 = A, 6, 7 = B, all zero: the unit takes the same time for any values.
void Begin() {
  LoadTileConfig({});
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
}

}  // namespace

int amx_peak_u8s8(int64_t steps) {
  Begin();
  for (int64_t s = 0; s < steps; ++s) {
    _tile_dpbsud(0, 4, 6);
    _tile_dpbsud(1, 4, 7);
    _tile_dpbsud(2, 5, 6);
    _tile_dpbsud(3, 5, 7);
  }
  _tile_release();
  return 0;
}

int amx_peak_bf16(int64_t steps) {
  Begin();
  for (int64_t s = 0; s < steps; ++s) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return 0;
}

}  // namespace nibble::cpu
