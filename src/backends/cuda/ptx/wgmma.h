// SPDX-License-Identifier: Apache-2.0
// The s8 products of a warpgroup, wgmma.m64n128k32 with operand A in registers and B in shared
// memory: D[64, 256] += A[64, 128] B[256, 128]^T, D in halves of 128 columns. A thread holds, of
// row 16 warp + lane / 4 + 8 h,
//
//   d[c / 128][c % 128 / 2 + 2 h + e]  column c + 2 (lane % 4) + e, c a multiple of 8
//   a[4 s + 2 u + h]                   inputs 32 s + 16 u + 4 (lane % 4) .. + 3
//
// A function starts products and returns while its last group of them runs and all before it have
// ended: then their A, `previous`, may be overwritten and their D read. Each is one statement with
// `previous` as an operand: if registers of a running product could be touched, ptxas would run one
// product after the other.
#pragma once

#include "backends/cuda/ptx/ptx.h"

namespace nibble::cuda {

using Fragments = uint32_t[16];
using Sums = int32_t[2][64];

// B: rows of 128 bytes in the order of a 128-byte swizzle; it starts at a multiple of 1024 bytes.
// Eight rows are 1024 bytes apart.
__device__ __forceinline__ uint64_t SwizzledTile(const void* tile) {
  const uint64_t address = (SharedAddress(tile) & 0x3FFFF) >> 4;
  return address | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

// clang-format off
#define NIBBLE_R8(r, i) "+r"(r[i]), "+r"(r[i + 1]), "+r"(r[i + 2]), "+r"(r[i + 3]), \
                        "+r"(r[i + 4]), "+r"(r[i + 5]), "+r"(r[i + 6]), "+r"(r[i + 7])
#define NIBBLE_R16(r) NIBBLE_R8(r, 0), NIBBLE_R8(r, 8)
#define NIBBLE_R32(r) NIBBLE_R8(r, 0), NIBBLE_R8(r, 8), NIBBLE_R8(r, 16), NIBBLE_R8(r, 24)
#define NIBBLE_R64(r) NIBBLE_R32(r), NIBBLE_R8(r, 32), NIBBLE_R8(r, 40), NIBBLE_R8(r, 48), NIBBLE_R8(r, 56)
#define NIBBLE_A16(a) "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]), \
                      "r"(a[6]), "r"(a[7]), "r"(a[8]), "r"(a[9]), "r"(a[10]), "r"(a[11]), \
                      "r"(a[12]), "r"(a[13]), "r"(a[14]), "r"(a[15])
#define NIBBLE_WGMMA(d) "wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 {" d "}, "
#define NIBBLE_WGMMA_64(d) "wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {" d "}, "
#define NIBBLE_WGMMA_BF16(d) "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" d "}, "
#define NIBBLE_A4(a, i) "r"(a[i]), "r"(a[i + 1]), "r"(a[i + 2]), "r"(a[i + 3])
#define NIBBLE_PIECE(a, b, p) NIBBLE_WGMMA(NIBBLE_D0) "{" a "}, " b ", " p ";\n"
#define NIBBLE_D_HALF \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NIBBLE_D0 NIBBLE_D_HALF ", " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NIBBLE_D1 \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// D (+)= A B, rows 0..127 of B at `b0`, the others at `b1`. `accumulate` = 0 overwrites D.
__device__ __forceinline__ void MultiplyAsync(Sums& d, const Fragments& a, Fragments& previous,
                                              uint64_t b0, uint64_t b1, int accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      ".reg .b64 b1, b2, b3, c1, c2, c3;\n"
      "setp.ne.b32 p, %162, 0;\n"
      "add.s64 b1, %160, 2;\n"
      "add.s64 b2, %160, 4;\n"
      "add.s64 b3, %160, 6;\n"
      "add.s64 c1, %161, 2;\n"
      "add.s64 c2, %161, 4;\n"
      "add.s64 c3, %161, 6;\n"
      "wgmma.fence.sync.aligned;\n"
      NIBBLE_WGMMA(NIBBLE_D0) "{%144, %145, %146, %147}, %160, p;\n"
      NIBBLE_WGMMA(NIBBLE_D1) "{%144, %145, %146, %147}, %161, p;\n"
      NIBBLE_WGMMA(NIBBLE_D0) "{%148, %149, %150, %151}, b1, 1;\n"
      NIBBLE_WGMMA(NIBBLE_D1) "{%148, %149, %150, %151}, c1, 1;\n"
      NIBBLE_WGMMA(NIBBLE_D0) "{%152, %153, %154, %155}, b2, 1;\n"
      NIBBLE_WGMMA(NIBBLE_D1) "{%152, %153, %154, %155}, c2, 1;\n"
      NIBBLE_WGMMA(NIBBLE_D0) "{%156, %157, %158, %159}, b3, 1;\n"
      NIBBLE_WGMMA(NIBBLE_D1) "{%156, %157, %158, %159}, c3, 1;\n"
      "wgmma.commit_group.sync.aligned;\n"
      "wgmma.wait_group.sync.aligned 1;\n"
      "}"
      : NIBBLE_R64(d[0]), NIBBLE_R64(d[1]), NIBBLE_R16(previous)
      : NIBBLE_A16(a), "l"(b0), "l"(b1), "r"(accumulate)
      : "memory");
}

// Half of that: 128 columns, or half of these, of which d has `count` registers. The operands follow
// d and the 16 registers of `previous`.
#define NIBBLE_MULTIPLY_HALF(count, registers, product, a0, a1, a2, a3, b, accumulates)        \
  __device__ __forceinline__ void MultiplyHalf(int32_t (&d)[count], const Fragments& a,        \
                                               Fragments& previous, uint64_t b0,               \
                                               int accumulate) {                               \
    asm volatile(                                                                              \
        "{\n"                                                                                  \
        ".reg .pred p;\n"                                                                      \
        ".reg .b64 b1, b2, b3;\n"                                                              \
        "setp.ne.b32 p, " accumulates ", 0;\n"                                                 \
        "add.s64 b1, " b ", 2;\n"                                                              \
        "add.s64 b2, " b ", 4;\n"                                                              \
        "add.s64 b3, " b ", 6;\n"                                                              \
        "wgmma.fence.sync.aligned;\n"                                                          \
        product "{" a0 "}, " b ", p;\n"                                                        \
        product "{" a1 "}, b1, 1;\n"                                                           \
        product "{" a2 "}, b2, 1;\n"                                                           \
        product "{" a3 "}, b3, 1;\n"                                                           \
        "wgmma.commit_group.sync.aligned;\n"                                                   \
        "wgmma.wait_group.sync.aligned 1;\n"                                                   \
        "}"                                                                                    \
        : registers(d), NIBBLE_R16(previous)                                                   \
        : NIBBLE_A16(a), "l"(b0), "r"(accumulate)                                              \
        : "memory");                                                                           \
  }
NIBBLE_MULTIPLY_HALF(64, NIBBLE_R64, NIBBLE_WGMMA(NIBBLE_D0), "%80, %81, %82, %83",
                     "%84, %85, %86, %87", "%88, %89, %90, %91", "%92, %93, %94, %95", "%96", "%97")
NIBBLE_MULTIPLY_HALF(32, NIBBLE_R32, NIBBLE_WGMMA_64(NIBBLE_D_HALF), "%48, %49, %50, %51",
                     "%52, %53, %54, %55", "%56, %57, %58, %59", "%60, %61, %62, %63", "%64", "%65")

// The rest: d[0] += A2 B2, then, as the last group, d[1] += A B + A2 B2. Rows 0..127 of B2 are at
// `b2_0`, the others at `b2_1`; those of B at `b1`.
__device__ __forceinline__ void MultiplyLast(Sums& d, Fragments& a, const Fragments& a2,
                                             uint64_t b2_0, uint64_t b1, uint64_t b2_1) {
  asm volatile(
      "{\n"
      ".reg .b64 b1, b2, b3, c1, c2, c3, d1, d2, d3;\n"
      "add.s64 b1, %160, 2;\n"
      "add.s64 b2, %160, 4;\n"
      "add.s64 b3, %160, 6;\n"
      "add.s64 c1, %161, 2;\n"
      "add.s64 c2, %161, 4;\n"
      "add.s64 c3, %161, 6;\n"
      "add.s64 d1, %162, 2;\n"
      "add.s64 d2, %162, 4;\n"
      "add.s64 d3, %162, 6;\n"
      "wgmma.fence.sync.aligned;\n"
      NIBBLE_WGMMA(NIBBLE_D0) "{%144, %145, %146, %147}, %160, 1;\n"
      NIBBLE_WGMMA(NIBBLE_D0) "{%148, %149, %150, %151}, b1, 1;\n"
      NIBBLE_WGMMA(NIBBLE_D0) "{%152, %153, %154, %155}, b2, 1;\n"
      NIBBLE_WGMMA(NIBBLE_D0) "{%156, %157, %158, %159}, b3, 1;\n"
      "wgmma.commit_group.sync.aligned;\n"
      NIBBLE_WGMMA(NIBBLE_D1) "{%128, %129, %130, %131}, %161, 1;\n"
      NIBBLE_WGMMA(NIBBLE_D1) "{%132, %133, %134, %135}, c1, 1;\n"
      NIBBLE_WGMMA(NIBBLE_D1) "{%136, %137, %138, %139}, c2, 1;\n"
      NIBBLE_WGMMA(NIBBLE_D1) "{%140, %141, %142, %143}, c3, 1;\n"
      NIBBLE_WGMMA(NIBBLE_D1) "{%144, %145, %146, %147}, %162, 1;\n"
      NIBBLE_WGMMA(NIBBLE_D1) "{%148, %149, %150, %151}, d1, 1;\n"
      NIBBLE_WGMMA(NIBBLE_D1) "{%152, %153, %154, %155}, d2, 1;\n"
      NIBBLE_WGMMA(NIBBLE_D1) "{%156, %157, %158, %159}, d3, 1;\n"
      "wgmma.commit_group.sync.aligned;\n"
      "wgmma.wait_group.sync.aligned 1;\n"
      "}"
      : NIBBLE_R64(d[0]), NIBBLE_R64(d[1]), NIBBLE_R16(a)
      : NIBBLE_A16(a2), "l"(b2_0), "l"(b1), "l"(b2_1)
      : "memory");
}

// Waits for the last group, of fragments `a` and `a2`.
#define NIBBLE_MULTIPLY_END(count, registers)                                                      \
  __device__ __forceinline__ void MultiplyEnd(int32_t (&d)[count], Fragments& a, Fragments& a2) {  \
    asm volatile("wgmma.wait_group.sync.aligned 0;"                                                \
                 : registers(d), NIBBLE_R16(a), NIBBLE_R16(a2)::"memory");                         \
  }
NIBBLE_MULTIPLY_END(64, NIBBLE_R64)
NIBBLE_MULTIPLY_END(32, NIBBLE_R32)

// The bf16 products wgmma.m64n128k16: D += A B + A C for 32 inputs, B being columns 0..31 of the
// tile, C those behind. a[4 s + 2 u + h], the first eight registers, has inputs 16 s + 8 u + 2
// (lane % 4) and the next. D is bits of floats; `previous` as above.
__device__ __forceinline__ void MultiplyPairs(Sums& d, const Fragments& a,
                                              Fragments& previous, uint64_t b0, uint64_t b1) {
  asm volatile(
      "{\n"
      ".reg .b64 b1, b2, b3, c1, c2, c3;\n"
      "add.s64 b1, %152, 2;\n"
      "add.s64 b2, %152, 4;\n"
      "add.s64 b3, %152, 6;\n"
      "add.s64 c1, %153, 2;\n"
      "add.s64 c2, %153, 4;\n"
      "add.s64 c3, %153, 6;\n"
      "wgmma.fence.sync.aligned;\n"
      NIBBLE_WGMMA_BF16(NIBBLE_D0) "{%144, %145, %146, %147}, %152, 1, 1, 1, 0;\n"
      NIBBLE_WGMMA_BF16(NIBBLE_D1) "{%144, %145, %146, %147}, %153, 1, 1, 1, 0;\n"
      NIBBLE_WGMMA_BF16(NIBBLE_D0) "{%148, %149, %150, %151}, b1, 1, 1, 1, 0;\n"
      NIBBLE_WGMMA_BF16(NIBBLE_D1) "{%148, %149, %150, %151}, c1, 1, 1, 1, 0;\n"
      NIBBLE_WGMMA_BF16(NIBBLE_D0) "{%144, %145, %146, %147}, b2, 1, 1, 1, 0;\n"
      NIBBLE_WGMMA_BF16(NIBBLE_D1) "{%144, %145, %146, %147}, c2, 1, 1, 1, 0;\n"
      NIBBLE_WGMMA_BF16(NIBBLE_D0) "{%148, %149, %150, %151}, b3, 1, 1, 1, 0;\n"
      NIBBLE_WGMMA_BF16(NIBBLE_D1) "{%148, %149, %150, %151}, c3, 1, 1, 1, 0;\n"
      "wgmma.commit_group.sync.aligned;\n"
      "wgmma.wait_group.sync.aligned 1;\n"
      "}"
      : NIBBLE_R64(d[0]), NIBBLE_R64(d[1]), NIBBLE_R16(previous)
      : NIBBLE_A4(a, 0), NIBBLE_A4(a, 4), "l"(b0), "l"(b1)
      : "memory");
}
__device__ __forceinline__ void MultiplyPairs(int32_t (&d)[64], const Fragments& a,
                                              Fragments& previous, uint64_t b0) {
  asm volatile(
      "{\n"
      ".reg .b64 b1, b2, b3;\n"
      "add.s64 b1, %88, 2;\n"
      "add.s64 b2, %88, 4;\n"
      "add.s64 b3, %88, 6;\n"
      "wgmma.fence.sync.aligned;\n"
      NIBBLE_WGMMA_BF16(NIBBLE_D0) "{%80, %81, %82, %83}, %88, 1, 1, 1, 0;\n"
      NIBBLE_WGMMA_BF16(NIBBLE_D0) "{%84, %85, %86, %87}, b1, 1, 1, 1, 0;\n"
      NIBBLE_WGMMA_BF16(NIBBLE_D0) "{%80, %81, %82, %83}, b2, 1, 1, 1, 0;\n"
      NIBBLE_WGMMA_BF16(NIBBLE_D0) "{%84, %85, %86, %87}, b3, 1, 1, 1, 0;\n"
      "wgmma.commit_group.sync.aligned;\n"
      "wgmma.wait_group.sync.aligned 1;\n"
      "}"
      : NIBBLE_R64(d), NIBBLE_R16(previous)
      : NIBBLE_A4(a, 0), NIBBLE_A4(a, 4), "l"(b0)
      : "memory");
}
// Half of the columns for kSteps times 32 inputs, of a's registers from kFirst on: D = A B with B at
// `b`. They only start; MultiplyEnd says when they have ended.
template <int kSteps, int kFirst>
__device__ __forceinline__ void MultiplyPiece(int32_t (&d)[64], const Fragments& a, uint64_t b) {
  static_assert(kSteps == 1 || kSteps == 2 || kSteps == 4);
  constexpr int i = kFirst;
  if constexpr (kSteps == 1) {
    asm volatile(
        "wgmma.fence.sync.aligned;\n"
        NIBBLE_PIECE("%64, %65, %66, %67", "%68", "0")
        "wgmma.commit_group.sync.aligned;\n"
        : NIBBLE_R64(d)
        : NIBBLE_A4(a, i), "l"(b)
        : "memory");
  } else if constexpr (kSteps == 2) {
    asm volatile(
        "wgmma.fence.sync.aligned;\n"
        NIBBLE_PIECE("%64, %65, %66, %67", "%72", "0")
        NIBBLE_PIECE("%68, %69, %70, %71", "%73", "1")
        "wgmma.commit_group.sync.aligned;\n"
        : NIBBLE_R64(d)
        : NIBBLE_A4(a, i), NIBBLE_A4(a, i + 4), "l"(b), "l"(b + 2)
        : "memory");
  } else {
    asm volatile(
        "wgmma.fence.sync.aligned;\n"
        NIBBLE_PIECE("%64, %65, %66, %67", "%80", "0")
        NIBBLE_PIECE("%68, %69, %70, %71", "%81", "1")
        NIBBLE_PIECE("%72, %73, %74, %75", "%82", "1")
        NIBBLE_PIECE("%76, %77, %78, %79", "%83", "1")
        "wgmma.commit_group.sync.aligned;\n"
        : NIBBLE_R64(d)
        : NIBBLE_A16(a), "l"(b), "l"(b + 2), "l"(b + 4), "l"(b + 6)
        : "memory");
  }
}
// clang-format on

#undef NIBBLE_MULTIPLY_HALF
#undef NIBBLE_MULTIPLY_END
#undef NIBBLE_A4
#undef NIBBLE_WGMMA_BF16
#undef NIBBLE_PIECE
#undef NIBBLE_R8
#undef NIBBLE_R16
#undef NIBBLE_R32
#undef NIBBLE_R64
#undef NIBBLE_A16
#undef NIBBLE_WGMMA
#undef NIBBLE_WGMMA_64
#undef NIBBLE_D_HALF
#undef NIBBLE_D0
#undef NIBBLE_D1

}  // namespace nibble::cuda
