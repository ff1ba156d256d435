// SPDX-License-Identifier: Apache-2.0
// The row of the kernel table that runs everywhere.
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

}  // namespace nibble::cpu
