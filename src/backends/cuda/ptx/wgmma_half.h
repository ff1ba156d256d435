// SPDX-License-Identifier: Apache-2.0
// The fp16 products of a warpgroup, wgmma.m64n64k16 with operand A in registers and B in shared
// memory: D[64, 64] (+)= A[64, 16 k] B[16 k, 64], fp32 sums. A thread holds, of row 16 warp + lane
// / 4 + 8 h,
//
//   d[4 j + 2 h + e]  column 8 j + 2 (lane % 4) + e
//   a[4 s + 2 u + h]  columns 16 s + 8 u + 2 (lane % 4) and the next
//
// So pairs of D are operand A of a next product as they are.
#pragma once

#include <cuda_fp16.h>

#include "backends/cuda/ptx/ptx.h"

namespace nibble::cuda {

// Operand B: rows of 64 values, 128 bytes each, 16 bytes i of row r at (i ^ r % 8) * 16, from a
// multiple of 1024 bytes on. This is the lower half of its descriptor; the upper one is constant.
__device__ __forceinline__ uint32_t RowsOf64(const void* rows) {
  return (SharedAddress(rows) & 0x3FFFF) >> 4 | 1024 >> 4 << 16;
}

// clang-format off
#define NIBBLE_D8(c, d, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3]), \
                           c(d[i + 4]), c(d[i + 5]), c(d[i + 6]), c(d[i + 7])
#define NIBBLE_D32(c, d) NIBBLE_D8(c, d, 0), NIBBLE_D8(c, d, 8), NIBBLE_D8(c, d, 16), \
                         NIBBLE_D8(c, d, 24)
// The first product of a chain overwrites D, so that D needs no registers before.
#define NIBBLE_MULTIPLY(name, c, accumulate)                                                     \
  __device__ __forceinline__ void name(float(&d)[32], const uint32_t* a, uint32_t b) {           \
    asm volatile(                                                                                \
        "{\n"                                                                                    \
        ".reg .pred p;\n"                                                                        \
        ".reg .b64 rows;\n"                                                                      \
        "setp.ne.b32 p, " accumulate ", 0;\n"                                                    \
        "mov.b64 rows, {%36, 0x40000040};\n"                                                     \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "                                    \
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "      \
        "{%32, %33, %34, %35}, rows, p, 1, 1, 1;\n"                                               \
        "}"                                                                                      \
        : NIBBLE_D32(c, d)                                                                       \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));                                   \
  }
NIBBLE_MULTIPLY(MultiplyFirst, "=f", "0")
NIBBLE_MULTIPLY(MultiplyNext, "+f", "1")
// clang-format on

// Starts D = A B, or D += A B if the first step is not 0; returns while it runs and all that was
// started before has ended.
template <int kSteps>
__device__ __forceinline__ void MultiplyAsync(float (&d)[32], const uint32_t (&a)[4 * kSteps],
                                              uint32_t b, int first_step) {
  constexpr uint32_t kNextStep = 16 * 128 >> 4;
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const uint32_t rows = b + (first_step + s) * kNextStep;
    first_step + s == 0 ? MultiplyFirst(d, a + 4 * s, rows) : MultiplyNext(d, a + 4 * s, rows);
  }
  asm volatile(
      "wgmma.commit_group.sync.aligned;\n"
      "wgmma.wait_group.sync.aligned 1;" ::
          : "memory");
}
__device__ __forceinline__ void MultiplyEnd(float (&d)[32]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" : NIBBLE_D32("+f", d)::"memory");
}

#undef NIBBLE_MULTIPLY
#undef NIBBLE_D8
#undef NIBBLE_D32

}  // namespace nibble::cuda
