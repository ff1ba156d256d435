// SPDX-License-Identifier: Apache-2.0
// The fp16 products of a warpgroup, wgmma.m64nNk16 with operand A in registers and B in shared
// memory: D[64, N] (+)= A[64, 16 k] B[16 k, N], N = 64, 96 or 160, fp32 sums. A thread holds, of
// row 16 warp + lane / 4 + 8 h,
//
//   d[4 j + 2 h + e]  column 8 j + 2 (lane % 4) + e
//   a[4 s + 2 u + h]  columns 16 s + 8 u + 2 (lane % 4) and the next
//
// So pairs of D are operand A of a next product as they are.
#pragma once

#include <cuda_fp16.h>

#include "backends/cuda/ptx/ptx.h"

namespace nibble::cuda {

// Operand B is [N / width, rows, width], width 64 if N = 64, else 32: rows of 128 or 64 bytes, from
// a multiple of 1024 bytes on, 16 bytes i of row r at 16 (i ^ r % 8) or 16 (i ^ r / 2 % 4).
//
// This is the lower half of its descriptor; the upper one is constant.
__device__ __forceinline__ uint32_t OperandB(const void* b, uint32_t rows, uint32_t width) {
  return (SharedAddress(b) & 0x3FFFF) >> 4 | (rows * width * 2 >> 4) << 16;
}

// clang-format off
#define NIBBLE_D8(c, d, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3]), \
                           c(d[i + 4]), c(d[i + 5]), c(d[i + 6]), c(d[i + 7])
#define NIBBLE_D16(c, d, i) NIBBLE_D8(c, d, i), NIBBLE_D8(c, d, i + 8)
#define NIBBLE_D32(c, d) NIBBLE_D16(c, d, 0), NIBBLE_D16(c, d, 16)
#define NIBBLE_D48(c, d) NIBBLE_D32(c, d), NIBBLE_D16(c, d, 32)
#define NIBBLE_D80(c, d) NIBBLE_D48(c, d), NIBBLE_D16(c, d, 48), NIBBLE_D16(c, d, 64)
#define NIBBLE_NAMES32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NIBBLE_NAMES48 NIBBLE_NAMES32 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define NIBBLE_NAMES80 NIBBLE_NAMES48 \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63" \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
// `count` registers of D, then the four of A and B's descriptor.
#define NIBBLE_MULTIPLY(name, c, accumulate, count, columns, layout, a_names, b_name)         \
  __device__ __forceinline__ void name(float(&d)[count], const uint32_t* a, uint32_t b) {      \
    asm volatile(                                                                              \
        "{\n"                                                                                  \
        ".reg .pred p;\n"                                                                      \
        ".reg .b64 rows;\n"                                                                    \
        "setp.ne.b32 p, " accumulate ", 0;\n"                                                  \
        "mov.b64 rows, {" b_name ", " layout "};\n"                                            \
        "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32.f16.f16 "                         \
        "{" NIBBLE_NAMES##count "}, {" a_names "}, rows, p, 1, 1, 1;\n"                        \
        "}"                                                                                    \
        : NIBBLE_D##count(c, d)                                                                \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));                                 \
  }
// The first product of a chain overwrites D, so that D needs no registers before.
#define NIBBLE_PRODUCTS(count, columns, layout, a_names, b_name)                        \
  NIBBLE_MULTIPLY(MultiplyFirst, "=f", "0", count, columns, layout, a_names, b_name)    \
  NIBBLE_MULTIPLY(MultiplyNext, "+f", "1", count, columns, layout, a_names, b_name)     \
  __device__ __forceinline__ void MultiplyEnd(float (&d)[count]) {                      \
    asm volatile("wgmma.wait_group.sync.aligned 0;" : NIBBLE_D##count("+f", d)::"memory"); \
  }
NIBBLE_PRODUCTS(32, "64", "0x40000040", "%32, %33, %34, %35", "%36")
NIBBLE_PRODUCTS(48, "96", "0x80000020", "%48, %49, %50, %51", "%52")
NIBBLE_PRODUCTS(80, "160", "0x80000020", "%80, %81, %82, %83", "%84")
// clang-format on

// Starts D = A B, or D += A B if the first step is not 0; returns while it runs and all that was
// started before has ended. MultiplyEnd waits for it.
template <int kSteps, int kCount>
__device__ __forceinline__ void MultiplyAsync(float (&d)[kCount], const uint32_t (&a)[4 * kSteps],
                                              uint32_t b, int first_step) {
  constexpr uint32_t kNextStep = 16 * (kCount == 32 ? 128 : 64) >> 4;
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

#undef NIBBLE_PRODUCTS
#undef NIBBLE_MULTIPLY
#undef NIBBLE_NAMES80
#undef NIBBLE_NAMES48
#undef NIBBLE_NAMES32
#undef NIBBLE_D80
#undef NIBBLE_D48
#undef NIBBLE_D32
#undef NIBBLE_D16
#undef NIBBLE_D8

}  // namespace nibble::cuda
