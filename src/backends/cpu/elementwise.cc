// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>

#include "backends/cpu/ops.h"
#include "backends/cpu/parallel_rows.h"
#include "backends/cpu/transform_plan.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/elementwise.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/contrib/math/math-inl.h>

#include "backends/cpu/transform.inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::cpu {
namespace HWY_NAMESPACE {
namespace {

// Four chains of fused multiply-adds hide their latency.
float SumOfSquares(const float* x, int64_t width) {
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

void RmsNormRows(const float* x, const float* weight, float eps, int64_t rows, int64_t width,
                 float* y) {
  const DF d;
  for (const float* end = x + rows * width; x < end; x += width, y += width) {
    const float inverse =
        1.0f / std::sqrt(SumOfSquares(x, width) / static_cast<float>(width) + eps);
    const VF factor = hn::Set(d, inverse);
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) {
      const VF scaled = hn::Mul(hn::LoadU(d, x + i), factor);
      const VF out = weight == nullptr ? scaled : hn::Mul(scaled, hn::LoadU(d, weight + i));
      hn::StoreU(out, d, y + i);
    }
    for (; i < width; ++i) y[i] = x[i] * inverse * (weight == nullptr ? 1.0f : weight[i]);
  }
}

HWY_INLINE VF SiluTimes(VF gate, VF up) {
  const DF d;
  // e^104 is infinite already and the largest argument Exp takes.
  const VF e = hn::Exp(d, hn::Min(hn::Neg(gate), hn::Set(d, 104.0f)));
  return hn::Mul(hn::Div(gate, hn::Add(hn::Set(d, 1.0f), e)), up);
}

void SiluMulRange(const float* gate, const float* up, int64_t count, float* out) {
  const DF d;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    hn::StoreU(SiluTimes(hn::LoadU(d, gate + i), hn::LoadU(d, up + i)), d, out + i);
  }
  if (i == count) return;
  // The same instructions for the rest, so that an element does not depend on its place.
  const size_t bytes = static_cast<size_t>(count - i) * sizeof(float);
  HWY_ALIGN float gates[kLanes] = {}, ups[kLanes] = {};
  std::memcpy(gates, gate + i, bytes);
  std::memcpy(ups, up + i, bytes);
  hn::Store(SiluTimes(hn::Load(d, gates), hn::Load(d, ups)), d, gates);
  std::memcpy(out + i, gates, bytes);
}

void TransformRange(const TransformPlan& plan, float* x, int64_t rows) {
  for (int64_t row = 0; row < rows; row += plan.row_group) {
    TransformGroup(plan, x + row * plan.spec.width(), HWY_MIN(plan.row_group, rows - row));
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace nibble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::cpu {

namespace {
HWY_EXPORT(RmsNormRows);
HWY_EXPORT(SiluMulRange);
HWY_EXPORT(TransformRange);
}  // namespace

void SelectVectorIsa(bool avx512) {
  hwy::DisableTargets(avx512 ? 0 : HWY_AVX3 | HWY_AVX3_DL);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

void RmsNorm(const float* x, const float* weight, float eps, int64_t tokens, int64_t width,
             float* y) {
  ParallelRows(tokens, 4 * width, 1, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(RmsNormRows)
    (x + begin * width, weight, eps, end - begin, width, y + begin * width);
  });
}

void SiluMul(const float* gate, const float* up, int64_t count, float* out) {
  ParallelRows(count, 8, kTile, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(SiluMulRange)(gate + begin, up + begin, end - begin, out + begin);
  });
}

void TransformRows(const TransformSpec& spec, float* x, int64_t rows) {
  if (spec.identity()) return;
  const TransformPlan& plan = PlanFor(spec);
  ParallelRows(rows, plan.row_cost, plan.row_group, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(TransformRange)(plan, x + begin * spec.width(), end - begin);
  });
}

}  // namespace nibble::cpu
#endif  // HWY_ONCE
