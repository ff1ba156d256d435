// SPDX-License-Identifier: Apache-2.0
// Activations of 16 bits as integers: x = a q with one scale a row and q = 256 upper + lower, two
// rows of bytes that the integer kernels multiply like any others (docs/numerics.md).
#include <cstring>

#include "backends/cpu/acts/activations.h"
#include "backends/cpu/common/dispatch.h"
#include "backends/cpu/common/parallel_rows.h"
#include "backends/cpu/gemm/gemm_int.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/acts/planes.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "backends/cpu/acts/quantize.inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::cpu {
namespace HWY_NAMESPACE {
namespace {

// 127 * 256 + 127, the largest code whose upper byte, rounded, is one.
constexpr float kLargest = 32639;

// Returns the row's scale; sums [2] are those of the codes of `upper` and `lower`.
float SplitRow(const float* x, int64_t width, uint8_t* upper, uint8_t* lower, int32_t* sums) {
  const DF d;
  const DI di;
  const DU du;
  const DB db;
  const float scale = std::max(AbsMax(x, width) * (1 / kLargest), kMinScale);
  const VF by = hn::Set(d, 1.0f / scale), rounder = hn::Set(d, kRounder);
  const VF lo = hn::Set(d, -kLargest), hi = hn::Set(d, kLargest);
  VI upper_sum = hn::Zero(di), lower_sum = hn::Zero(di);
  ForEachVector(x, width, [&](VF v, int64_t i, int64_t used) HWY_ATTR {
    const VF steps = hn::Min(hn::Max(hn::Mul(v, by), lo), hi);
    VI code = hn::Sub(hn::BitCast(di, hn::Add(steps, rounder)), hn::Set(di, kRounderBits));
    if (used < kLanes) code = hn::IfThenElseZero(hn::FirstN(di, static_cast<size_t>(used)), code);
    const VI high = hn::ShiftRight<8>(hn::Add(code, hn::Set(di, 128)));
    const VI low = hn::Sub(code, hn::ShiftLeft<8>(high));
    upper_sum = hn::Add(upper_sum, high);
    lower_sum = hn::Add(lower_sum, low);
    // A row's stride is whole vectors, zero beyond the width.
    hn::StoreU(hn::TruncateTo(db, hn::BitCast(du, high)), db, upper + i);
    hn::StoreU(hn::TruncateTo(db, hn::BitCast(du, low)), db, lower + i);
  });
  sums[0] = hn::GetLane(hn::SumOfLanes(di, upper_sum));
  sums[1] = hn::GetLane(hn::SumOfLanes(di, lower_sum));
  return scale;
}

void SplitRows(const Activations& acts, int64_t begin, int64_t end, ActsMemory& memory) {
  for (int64_t t = begin; t < end; ++t) {
    int8_t* codes = memory.codes.data() + 2 * t * acts.stride;
    std::memset(codes, 0, static_cast<size_t>(2 * acts.stride));
    auto* bytes = reinterpret_cast<uint8_t*>(codes);
    memory.scales.data()[t] = SplitRow(acts.values + t * acts.width, acts.width, bytes,
                                       bytes + acts.stride, memory.sums.data() + 2 * t);
    if (acts.tiles == nullptr) continue;
    StoreTileRow(codes, 2 * t, acts.stride, memory.tiles.data());
    StoreTileRow(codes + acts.stride, 2 * t + 1, acts.stride, memory.tiles.data());
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace nibble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::cpu {
HWY_EXPORT(SplitRows);

Activations SplitPlanes(Isa isa, const Activations& acts, bool tiles, ActsMemory& memory) {
  Activations planes = acts;
  planes.stride = (acts.width + 63) / 64 * 64;
  const int64_t rows = 2 * acts.tokens;
  planes.codes = memory.codes.Grow(rows * planes.stride);
  planes.scales = memory.scales.Grow(acts.tokens);
  planes.sums = memory.sums.Grow(rows);
  if (tiles) {
    const int64_t tile_rows = (rows + kTileTokens - 1) / kTileTokens * kTileTokens;
    planes.tiles = memory.tiles.Grow(tile_rows * planes.stride);
  }
  ParallelRows(acts.tokens, 8 * acts.width, 1, [&](int64_t begin, int64_t end) {
    NIBBLE_DISPATCH(isa, SplitRows)(planes, begin, end, memory);
  });
  return planes;
}

}  // namespace nibble::cpu
#endif  // HWY_ONCE
