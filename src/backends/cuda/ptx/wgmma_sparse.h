// SPDX-License-Identifier: Apache-2.0
// The products of wgmma.h for 2:4 sparse A, wgmma.m64n128k64: D[64, 256] += A[64, 128] B[256,
// 128]^T, where two of every four in a row of A are not 0.
//
// A thread's a[0..7] are the fragments of these as if they were a matrix [64, 64]; a[8 + s] has the
// places of MmaSparseS8 (ptx.h) for inputs 64 s and further.
#pragma once

#include "backends/cuda/ptx/wgmma.h"

namespace nibble::cuda {

using SparseFragments = uint32_t[10];

// clang-format off
#define NIBBLE_R8(r, i) "+r"(r[i]), "+r"(r[i + 1]), "+r"(r[i + 2]), "+r"(r[i + 3]), \
                        "+r"(r[i + 4]), "+r"(r[i + 5]), "+r"(r[i + 6]), "+r"(r[i + 7])
#define NIBBLE_R10(r) NIBBLE_R8(r, 0), "+r"(r[8]), "+r"(r[9])
#define NIBBLE_R32(r) NIBBLE_R8(r, 0), NIBBLE_R8(r, 8), NIBBLE_R8(r, 16), NIBBLE_R8(r, 24)
#define NIBBLE_R64(r) NIBBLE_R32(r), NIBBLE_R8(r, 32), NIBBLE_R8(r, 40), NIBBLE_R8(r, 48), NIBBLE_R8(r, 56)
#define NIBBLE_A10(a) "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]), \
                      "r"(a[6]), "r"(a[7]), "r"(a[8]), "r"(a[9])
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
// Columns d (+)= A B: `a` names four fragments, `b` the tile, `places` theirs, `p` whether D is kept.
#define NIBBLE_SPARSE(n, d, a, b, places, p) \
  "wgmma.mma_async.sp.sync.aligned.m64n" n "k64.s32.s8.s8 {" d "}, {" a "}, " b ", " places ", 0, " p ";\n"

__device__ __forceinline__ void MultiplyAsync(Sums& d, const SparseFragments& a,
                                              SparseFragments& previous, uint64_t b0, uint64_t b1,
                                              int accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %152, 0;\n"
      "wgmma.fence.sync.aligned;\n"
      NIBBLE_SPARSE("128", NIBBLE_D0, "%138, %139, %140, %141", "%148", "%146", "p")
      NIBBLE_SPARSE("128", NIBBLE_D1, "%138, %139, %140, %141", "%149", "%146", "p")
      NIBBLE_SPARSE("128", NIBBLE_D0, "%142, %143, %144, %145", "%150", "%147", "1")
      NIBBLE_SPARSE("128", NIBBLE_D1, "%142, %143, %144, %145", "%151", "%147", "1")
      "wgmma.commit_group.sync.aligned;\n"
      "wgmma.wait_group.sync.aligned 1;\n"
      "}"
      : NIBBLE_R64(d[0]), NIBBLE_R64(d[1]), NIBBLE_R10(previous)
      : NIBBLE_A10(a), "l"(b0), "l"(b1), "l"(b0 + 4), "l"(b1 + 4), "r"(accumulate)
      : "memory");
}

__device__ __forceinline__ void MultiplyHalf(int32_t (&d)[64], const SparseFragments& a,
                                             SparseFragments& previous, uint64_t b,
                                             int accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %86, 0;\n"
      "wgmma.fence.sync.aligned;\n"
      NIBBLE_SPARSE("128", NIBBLE_D0, "%74, %75, %76, %77", "%84", "%82", "p")
      NIBBLE_SPARSE("128", NIBBLE_D0, "%78, %79, %80, %81", "%85", "%83", "1")
      "wgmma.commit_group.sync.aligned;\n"
      "wgmma.wait_group.sync.aligned 1;\n"
      "}"
      : NIBBLE_R64(d), NIBBLE_R10(previous)
      : NIBBLE_A10(a), "l"(b), "l"(b + 4), "r"(accumulate)
      : "memory");
}
__device__ __forceinline__ void MultiplyHalf(int32_t (&d)[32], const SparseFragments& a,
                                             SparseFragments& previous, uint64_t b,
                                             int accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %54, 0;\n"
      "wgmma.fence.sync.aligned;\n"
      NIBBLE_SPARSE("64", NIBBLE_D_HALF, "%42, %43, %44, %45", "%52", "%50", "p")
      NIBBLE_SPARSE("64", NIBBLE_D_HALF, "%46, %47, %48, %49", "%53", "%51", "1")
      "wgmma.commit_group.sync.aligned;\n"
      "wgmma.wait_group.sync.aligned 1;\n"
      "}"
      : NIBBLE_R32(d), NIBBLE_R10(previous)
      : NIBBLE_A10(a), "l"(b), "l"(b + 4), "r"(accumulate)
      : "memory");
}

__device__ __forceinline__ void MultiplyLast(Sums& d, SparseFragments& a,
                                             const SparseFragments& a2, uint64_t b2_0, uint64_t b1,
                                             uint64_t b2_1) {
  asm volatile(
      "{\n"
      "wgmma.fence.sync.aligned;\n"
      NIBBLE_SPARSE("128", NIBBLE_D0, "%138, %139, %140, %141", "%148", "%146", "1")
      NIBBLE_SPARSE("128", NIBBLE_D0, "%142, %143, %144, %145", "%149", "%147", "1")
      "wgmma.commit_group.sync.aligned;\n"
      NIBBLE_SPARSE("128", NIBBLE_D1, "%128, %129, %130, %131", "%150", "%136", "1")
      NIBBLE_SPARSE("128", NIBBLE_D1, "%132, %133, %134, %135", "%151", "%137", "1")
      NIBBLE_SPARSE("128", NIBBLE_D1, "%138, %139, %140, %141", "%152", "%146", "1")
      NIBBLE_SPARSE("128", NIBBLE_D1, "%142, %143, %144, %145", "%153", "%147", "1")
      "wgmma.commit_group.sync.aligned;\n"
      "wgmma.wait_group.sync.aligned 1;\n"
      "}"
      : NIBBLE_R64(d[0]), NIBBLE_R64(d[1]), NIBBLE_R10(a)
      : NIBBLE_A10(a2), "l"(b2_0), "l"(b2_0 + 4), "l"(b1), "l"(b1 + 4), "l"(b2_1), "l"(b2_1 + 4)
      : "memory");
}

template <int kCount>
__device__ __forceinline__ void MultiplyEnd(int32_t (&d)[kCount], SparseFragments& a,
                                            SparseFragments& a2) {
  static_assert(kCount == 32 || kCount == 64);
  if constexpr (kCount == 64) {
    asm volatile("wgmma.wait_group.sync.aligned 0;"
                 : NIBBLE_R64(d), NIBBLE_R10(a), NIBBLE_R10(a2)::"memory");
  } else {
    asm volatile("wgmma.wait_group.sync.aligned 0;"
                 : NIBBLE_R32(d), NIBBLE_R10(a), NIBBLE_R10(a2)::"memory");
  }
}
// clang-format on

#undef NIBBLE_R8
#undef NIBBLE_R10
#undef NIBBLE_R32
#undef NIBBLE_R64
#undef NIBBLE_A10
#undef NIBBLE_D_HALF
#undef NIBBLE_D0
#undef NIBBLE_D1
#undef NIBBLE_SPARSE

}  // namespace nibble::cuda
