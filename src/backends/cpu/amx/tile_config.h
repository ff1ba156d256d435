// SPDX-License-Identifier: Apache-2.0
// The shapes of the eight matrix tiles (Intel's manual, "LDTILECFG", palette 1).
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace nibble::cpu {
namespace {

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

inline void LoadTileConfig(const TileConfig& config) {
  // GCC 12 tells the compiler that ldtilecfg reads 8 bytes only and would drop the other stores.
  asm volatile("" ::"r"(&config) : "memory");
  _tile_loadconfig(&config);
}

}  // namespace
}  // namespace nibble::cpu
