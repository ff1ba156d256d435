// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "backends/cpu/amx/tile_config.h"
#include "measure/peak_loops.h"

namespace nibble::cpu {
namespace {

// Tiles 0..3 = C, 4, 5 = A, 6, 7 = B. Random operands: with zeros the core draws less power and
// runs at a clock that no real product sees. The sign and two upper bits of an exponent are the
// same in all bf16 values, so that nothing overflows.
void Begin(uint16_t clear, uint16_t set) {
  LoadTileConfig({});
  alignas(64) uint16_t operand[16 * 32];
  uint32_t state = 1;
  for (uint16_t& v : operand) {
    state = state * 1664525u + 1013904223u;
    v = static_cast<uint16_t>((state >> 16 & ~uint32_t{clear}) | set);
  }
  asm volatile("" ::"r"(operand) : "memory");
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, operand, 64);
  _tile_loadd(5, operand, 64);
  _tile_loadd(6, operand, 64);
  _tile_loadd(7, operand, 64);
}

}  // namespace

int amx_peak_u8s8(int64_t steps) {
  Begin(0, 0);
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
  Begin(0x4000, 0x3800);  // magnitudes of 2^-15 up to 2
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
