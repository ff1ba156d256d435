// SPDX-License-Identifier: Apache-2.0
// The quantizers of formats/quantizer.h on vectors, compiled once per instruction set: the same
// fp32 expressions in the same order, so the same codes bit for bit. Codes are clamped before they
// are rounded, which is the same because the limits are integers; adding kRounder rounds to even
// and leaves the code in the low bits.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/half.h"
#include "formats/quantizer.h"

#if defined(NIBBLE_CPU_QUANTIZE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef NIBBLE_CPU_QUANTIZE_INL_H
#undef NIBBLE_CPU_QUANTIZE_INL_H
#else
#define NIBBLE_CPU_QUANTIZE_INL_H
#endif

#include "backends/cpu/common/lanes.inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::cpu {
namespace HWY_NAMESPACE {
namespace {

using DU = hn::RebindToUnsigned<DF>;
constexpr float kRounder = 0x1.8p23f;
constexpr int32_t kRounderBits = 0x4B400000;

// Calls f(vector, first index, used lanes) over x; unused lanes repeat x[0].
template <typename F>
HWY_INLINE void ForEachVector(const float* x, int64_t count, const F& f) {
  const DF d;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) f(hn::LoadU(d, x + i), i, kLanes);
  if (i == count) return;
  HWY_ALIGN float tail[kLanes];
  hn::Store(hn::Set(d, x[0]), d, tail);
  std::memcpy(tail, x + i, static_cast<size_t>(count - i) * sizeof(float));
  f(hn::Load(d, tail), i, count - i);
}

HWY_INLINE float AbsMax(const float* x, int64_t count) {
  const DF d;
  VF max = hn::Zero(d);
  ForEachVector(x, count, [&](VF v, int64_t, int64_t) HWY_ATTR { max = hn::Max(max, hn::Abs(v)); });
  return hn::GetLane(hn::MaxOfLanes(d, max));
}

struct Range {
  float lo, hi;
};

HWY_INLINE Range RangeOf(const float* x, int64_t count) {
  const DF d;
  VF lo = hn::Set(d, x[0]), hi = lo;
  ForEachVector(x, count, [&](VF v, int64_t, int64_t) HWY_ATTR {
    lo = hn::Min(lo, v);
    hi = hn::Max(hi, v);
  });
  return {hn::GetLane(hn::MinOfLanes(d, lo)), hn::GetLane(hn::MaxOfLanes(d, hi))};
}

HWY_INLINE float ClipPerStep(const FormatSpec& format) {
  return static_cast<float>(format.clip) / static_cast<float>((1 << (format.bits - 1)) - 1);
}

// codes[i] = rne(clamp((x[i] - offset) * inverse, lo, hi)) + shift, low 8 bits; returns their sum.
HWY_INLINE int32_t Encode(const float* x, int64_t count, float offset, float inverse, Range limits,
                          int32_t shift, uint8_t* codes) {
  const DF d;
  const DI di;
  const DU du;
  const DB db;
  const VF from = hn::Set(d, offset), by = hn::Set(d, inverse), rounder = hn::Set(d, kRounder);
  const VF lo = hn::Set(d, limits.lo), hi = hn::Set(d, limits.hi);
  // This may wrap around: rows that are not finite have any shift, and their logits are refused.
  // Lanes of `sums` of all other rows stay far below the bound.
  const VI to_code = hn::Sub(hn::Set(di, shift), hn::Set(di, kRounderBits));
  VI sums = hn::Zero(di);
  ForEachVector(x, count, [&](VF v, int64_t i, int64_t used) HWY_ATTR {
    const VF steps = hn::Min(hn::Max(hn::Mul(hn::Sub(v, from), by), lo), hi);
    const VI code = hn::Add(hn::BitCast(di, hn::Add(steps, rounder)), to_code);
    const auto bytes = hn::TruncateTo(db, hn::BitCast(du, code));
    if (used == kLanes) {
      sums = hn::Add(sums, code);
      hn::StoreU(bytes, db, codes + i);
    } else {
      sums = hn::Add(sums, hn::IfThenElseZero(hn::FirstN(di, static_cast<size_t>(used)), code));
      HWY_ALIGN uint8_t tail[kLanes];
      hn::Store(bytes, db, tail);
      std::memcpy(codes + i, tail, static_cast<size_t>(used));
    }
  });
  const VI bound = hn::Set(di, 1 << 26);
  return hn::GetLane(hn::SumOfLanes(di, hn::Min(hn::Max(sums, hn::Neg(bound)), bound)));
}

HWY_INLINE void ActivationGroup(const float* x, int64_t count, const FormatSpec& format,
                                int8_t* codes, float* scale, float* zero_offset, int32_t* sum) {
  const float half = static_cast<float>(1 << (format.bits - 1));
  auto* bytes = reinterpret_cast<uint8_t*>(codes);
  if (format.symmetric) {
    if (format.signed_scale) {
      const Range range = RangeOf(x, count);
      const float max = range.hi >= -range.lo ? range.hi : range.lo;
      *scale = -max * (static_cast<float>(format.clip) / half);
      if (std::fabs(*scale) < kMinScale) *scale = kMinScale;
    } else {
      *scale = std::max(AbsMax(x, count) * ClipPerStep(format), kMinScale);
    }
    *sum = Encode(x, count, 0.0f, 1.0f / *scale, {-half, half - 1}, 0, bytes);
    return;
  }
  const Range range = RangeOf(x, count);
  const float clip = static_cast<float>(format.clip);
  const float lo = range.lo * clip, hi = range.hi * clip;
  const float top = 2 * half - 1;
  *scale = std::max((hi - lo) / top, kMinScale);
  const float inverse = 1.0f / *scale;
  *sum = Encode(x, count, lo, inverse, {0, top}, -static_cast<int32_t>(half), bytes);
  *zero_offset = lo * inverse + half;
}

// Codes 0..2^bits-1 of one group of a cache row, one byte each, and its {s, z}.
HWY_INLINE void CacheGroup(const float* x, int64_t count, const FormatSpec& format, uint8_t* codes,
                           uint16_t* params) {
  const float top = static_cast<float>((1 << format.bits) - 1);
  float step, lo = 0;
  if (format.symmetric) {
    step = AbsMax(x, count) * ClipPerStep(format);
  } else {
    const Range range = RangeOf(x, count);
    const float clip = static_cast<float>(format.clip);
    lo = std::min(range.lo, 0.0f) * clip;
    step = (std::max(range.hi, 0.0f) * clip - lo) / top;
  }
  params[0] = F16FromF32(std::clamp(step, kMinKvScale, kMaxKvScale));
  const float inverse = 1.0f / F32FromF16(params[0]);
  const float zero = format.symmetric
                         ? static_cast<float>(1 << (format.bits - 1))
                         : std::min(std::max(std::nearbyintf(0.0f - lo * inverse), 0.0f), top);
  params[1] = F16FromF32(zero);
  Encode(x, count, 0.0f, inverse, {-zero, top - zero}, static_cast<int32_t>(zero), codes);
}

// packed[i] = codes[2 i] | codes[2 i + 1] << 4; count is even.
HWY_INLINE void PackNibbles(const uint8_t* codes, int64_t count, uint8_t* packed) {
  const hn::ScalableTag<uint16_t> d;
  const hn::Rebind<uint8_t, decltype(d)> d_out;
  constexpr int64_t kPairs = HWY_MAX_BYTES / 2;
  int64_t i = 0;
  for (; i + kPairs <= count / 2; i += kPairs) {
    const auto pair = hn::BitCast(d, hn::LoadU(hn::ScalableTag<uint8_t>(), codes + 2 * i));
    const auto both = hn::Or(pair, hn::ShiftRight<4>(pair));
    hn::StoreU(hn::TruncateTo(d_out, both), d_out, packed + i);
  }
  for (; i < count / 2; ++i) {
    packed[i] = static_cast<uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace nibble::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
