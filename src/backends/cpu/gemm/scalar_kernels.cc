// SPDX-License-Identifier: Apache-2.0
// The row of the kernel table that runs everywhere, and lookups that no vectors do faster.
#include <cstring>

#include "backends/cpu/gemm/int_kernels.h"

namespace nibble::cpu {

void scalar_gemm_u8s8(const GemmTile& tile) {
  for (int64_t m = 0; m < tile.rows; ++m) {
    for (int64_t n = 0; n < kTileOutputs; ++n) {
      const uint8_t* b = tile.b + n / kPanel * tile.b_stride + n % kPanel * 4;
      int32_t& c = tile.c[m * kTileOutputs + n];
      int32_t sum = tile.accumulate ? c : 0;
      for (int64_t k = 0; k < tile.k; ++k) {
        sum += b[k / 4 * 64 + k % 4] * tile.a[m * tile.a_stride + k];
      }
      c = sum;
    }
  }
}

void e8p_words(const LatticeWords& table, const uint8_t* planes, uint32_t* words) {
  for (int64_t j = 0; j < kPanel; ++j) {
    uint32_t signs, entries;
    std::memcpy(&signs, planes + 4 * j, 4);
    std::memcpy(&entries, planes + 4 * (kPanel + j), 4);
#pragma GCC unroll 4
    for (int code = 0; code < 4; ++code) {
      words[code * kPanel + j] =
          table.signs[signs >> 8 * code & 255] ^ table.entries[entries >> 8 * code & 255];
    }
  }
}

void short_words(const LatticeWords& table, const uint8_t* plane, uint32_t* words) {
  for (int64_t j = 0; j < kPanel; ++j) {
    uint32_t codes;
    std::memcpy(&codes, plane + 4 * j, 4);
#pragma GCC unroll 4
    for (int code = 0; code < 4; ++code) {
      words[code * kPanel + j] = table.shorts[codes >> 8 * code & 255];
    }
  }
}

}  // namespace nibble::cpu
