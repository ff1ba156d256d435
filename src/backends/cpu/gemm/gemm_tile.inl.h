// SPDX-License-Identifier: Apache-2.0
// The register tile of every fp32 product of the CPU backend (GemmF32, Q K^T, P V), per target:
//
//   C[r, n] = (resume ? C[r, n] : 0) + sum_k A[r, k] B[k, n]      r < rows, n < cols
//
// Each output is one chain of fused multiply-adds over ascending k, whatever `rows` is, and C is
// fp32 between calls, so cutting K into several calls does not change a bit.
//
// Up to kTileRows rows share two vectors of B: 12 x 2 accumulators of AVX-512's 32 registers, 6 x 2
// of AVX2's 16. One or two rows take four vectors, or they would wait for their own multiply-adds.

// One inclusion per target (foreach_target.h): the guard toggles instead of closing.
#if defined(NIBBLE_BACKENDS_CPU_GEMM_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NIBBLE_BACKENDS_CPU_GEMM_TILE_INL_H_
#undef NIBBLE_BACKENDS_CPU_GEMM_TILE_INL_H_
#else
#define NIBBLE_BACKENDS_CPU_GEMM_TILE_INL_H_
#endif

#include <array>
#include <cstdint>
#include <utility>

#include "backends/cpu/common/lanes.inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::cpu::HWY_NAMESPACE {
namespace {

constexpr int kTileRows = kLanes == 16 ? 12 : 6;
constexpr int64_t kTileCols = 32;

struct TileArgs {
  const float* a;  // row r at a + r * kAStride
  const float* b;  // row k at b + k * b_stride
  int64_t b_stride;
  int64_t depth;  // K
  float* c;       // row r at c + r * c_stride
  int64_t c_stride;
  int64_t cols;  // rounded up to a multiple of kTileCols or less
  bool resume;
};

// kVectors vectors of columns from `col` on. kAStride is a constant so that one register addresses
// all rows of A.
template <int kRows, int kVectors, int64_t kAStride>
HWY_INLINE void RegisterStrip(const TileArgs& t, int64_t col) {
  const DF d;
  VF sums[kRows][kVectors];
  float* c = t.c + col;
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = t.resume ? hn::LoadU(d, c + r * t.c_stride + v * kLanes) : hn::Zero(d);
    }
  }
  const float* b = t.b + col;
  for (const float *a = t.a, *end = a + t.depth; a != end; ++a, b += t.b_stride) {
    VF columns[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) columns[v] = hn::LoadU(d, b + v * kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const VF x = hn::Set(d, a[r * kAStride]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::MulAdd(x, columns[v], sums[r][v]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      hn::StoreU(sums[r][v], d, c + r * t.c_stride + v * kLanes);
    }
  }
}

template <int kRows, int64_t kAStride>
void RegisterTile(const TileArgs& t) {
  int64_t col = 0;
  if constexpr (kRows <= 2) {
    for (; col + 4 * kLanes <= t.cols; col += 4 * kLanes) RegisterStrip<kRows, 4, kAStride>(t, col);
  }
  for (; col < t.cols; col += 2 * kLanes) RegisterStrip<kRows, 2, kAStride>(t, col);
}

template <int64_t kAStride, int... kRows>
constexpr auto TileTable(std::integer_sequence<int, kRows...>) {
  return std::array{&RegisterTile<kRows + 1, kAStride>...};
}

template <int64_t kAStride>
HWY_INLINE void MultiplyTile(int64_t rows, const TileArgs& args) {
  static constexpr auto kTiles = TileTable<kAStride>(std::make_integer_sequence<int, kTileRows>());
  kTiles[rows - 1](args);
}

}  // namespace
}  // namespace nibble::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
