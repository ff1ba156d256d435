// SPDX-License-Identifier: Apache-2.0
// The ops of an ActsSource on one row, compiled once per instruction set.
#include <cmath>
#include <cstring>

#include "compute/backend.h"

#if defined(NIBBLE_CPU_ACTS_SOURCE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef NIBBLE_CPU_ACTS_SOURCE_INL_H
#undef NIBBLE_CPU_ACTS_SOURCE_INL_H
#else
#define NIBBLE_CPU_ACTS_SOURCE_INL_H
#endif

#include <hwy/contrib/math/math-inl.h>

#include "backends/cpu/common/lanes.inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::cpu {
namespace HWY_NAMESPACE {
namespace {

// Four chains of fused multiply-adds hide their latency.
inline float SumOfSquares(const float* x, int64_t width) {
  const DF d;
  VF sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  int64_t i = 0;
  for (; i + 4 * kLanes <= width; i += 4 * kLanes) {
    for (int64_t chain = 0; chain < 4; ++chain) {
      const VF v = hn::LoadU(d, x + i + chain * kLanes);
      sums[chain] = hn::MulAdd(v, v, sums[chain]);
    }
  }
  for (; i + kLanes <= width; i += kLanes) {
    const VF v = hn::LoadU(d, x + i);
    sums[0] = hn::MulAdd(v, v, sums[0]);
  }
  const VF sum = hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]));
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < width; ++i) total += x[i] * x[i];
  return total;
}

inline void RmsNormRow(const float* x, const float* weight, float eps, int64_t width, float* y) {
  const DF d;
  const float inverse = 1.0f / std::sqrt(SumOfSquares(x, width) / static_cast<float>(width) + eps);
  const VF factor = hn::Set(d, inverse);
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    const VF scaled = hn::Mul(hn::LoadU(d, x + i), factor);
    const VF out = weight == nullptr ? scaled : hn::Mul(scaled, hn::LoadU(d, weight + i));
    hn::StoreU(out, d, y + i);
  }
  for (; i < width; ++i) y[i] = x[i] * inverse * (weight == nullptr ? 1.0f : weight[i]);
}

// The share of normal numbers below x, by Abramowitz and Stegun's 7.1.26 for erf: off by 0.75e-7
// at most.
HWY_INLINE VF NormalShare(VF x) {
  const DF d;
  const VF z = hn::Mul(hn::Abs(x), hn::Set(d, 0.70710678f));
  const VF t = hn::Div(hn::Set(d, 1.0f), hn::MulAdd(hn::Set(d, 0.3275911f), z, hn::Set(d, 1.0f)));
  VF sum = hn::Set(d, 1.061405429f);
  for (const float factor : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f}) {
    sum = hn::MulAdd(sum, t, hn::Set(d, factor));
  }
  // e^-104 is 0 already.
  const VF square = hn::Min(hn::Mul(z, z), hn::Set(d, 104.0f));
  const VF beyond = hn::Mul(hn::Mul(sum, t), hn::Exp(d, hn::Neg(square)));
  const VF tail = hn::Mul(hn::Set(d, 0.5f), beyond);
  return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(hn::Set(d, 1.0f), tail));
}

HWY_INLINE VF GateTimes(const GateSpec& gating, VF gate, VF up) {
  using Opening = GateSpec::Opening;
  const DF d;
  if (gating.limit > 0) {
    const VF limit = hn::Set(d, gating.limit);
    gate = hn::Min(gate, limit), up = hn::Clamp(up, hn::Neg(limit), limit);
  }
  if (gating.up_offset != 0) up = hn::Add(up, hn::Set(d, gating.up_offset));
  if (gating.alone) up = hn::Set(d, 1.0f);
  if (gating.opening == Opening::kStep) return hn::Mul(hn::Max(gate, hn::Zero(d)), up);
  if (gating.opening == Opening::kNormal) return hn::Mul(hn::Mul(gate, NormalShare(gate)), up);
  // Squares stay finite, so that none times 0 is NaN.
  const VF square = hn::Min(hn::Mul(gate, gate), hn::Set(d, 1e30f));
  const VF gradient = hn::MulAdd(hn::Set(d, gating.cubic), square, hn::Set(d, gating.linear));
  // e^104 is infinite already and the largest argument Exp takes.
  const VF e = hn::Exp(d, hn::Min(hn::Neg(hn::Mul(gate, gradient)), hn::Set(d, 104.0f)));
  return hn::Mul(hn::Div(gate, hn::Add(hn::Set(d, 1.0f), e)), up);
}

inline void GatedRow(const GateSpec& gating, const float* gate, const float* up, int64_t count,
                     float* out) {
  const DF d;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    hn::StoreU(GateTimes(gating, hn::LoadU(d, gate + i), hn::LoadU(d, up + i)), d, out + i);
  }
  if (i == count) return;
  // The rest runs the same instructions, so that an element does not depend on its place.
  const size_t bytes = static_cast<size_t>(count - i) * sizeof(float);
  HWY_ALIGN float gates[kLanes] = {}, ups[kLanes] = {};
  std::memcpy(gates, gate + i, bytes);
  std::memcpy(ups, up + i, bytes);
  hn::Store(GateTimes(gating, hn::Load(d, gates), hn::Load(d, ups)), d, gates);
  std::memcpy(out + i, gates, bytes);
}

// Loads row `token` of the source.
inline void LoadRow(const ActsSource& source, int64_t token, int64_t width, float* row) {
  const int64_t first = token * width;
  switch (source.op) {
    case ActsSource::Op::kCopy:
    case ActsSource::Op::kIntermediate:
      std::memcpy(row, source.rows() + first, static_cast<size_t>(width) * sizeof(float));
      break;
    case ActsSource::Op::kRmsNorm:
      RmsNormRow(source.x + first, source.norm_weight, source.norm_eps, width, row);
      break;
    case ActsSource::Op::kGated:
      GatedRow(source.gating, reinterpret_cast<const float*>(source.gate) + first,
               reinterpret_cast<const float*>(source.up) + first, width, row);
      break;
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace nibble::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
