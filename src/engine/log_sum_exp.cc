// SPDX-License-Identifier: Apache-2.0
#include "engine/log_sum_exp.h"

#include <algorithm>
#include <cmath>

#include "tensor/finite.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/log_sum_exp.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace nibble {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// sum(exp(row - top)) of at most 4096 values.
float SumExp(const float* row, size_t count, float top) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  const auto shift = hn::Set(d, top);
  auto sum = hn::Zero(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    sum = hn::Add(sum, hn::Exp(d, hn::Sub(hn::LoadU(d, row + i), shift)));
  }
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < count; ++i) total += std::exp(row[i] - top);
  return total;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace nibble
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble {
HWY_EXPORT(SumExp);

double LogSumExp(std::span<const float> row) {
  constexpr size_t kPiece = 4096;
  if (!AllFinite(row)) return std::nan("");  // Highway's Exp makes 0 of NaN
  const float top = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (size_t i = 0; i < row.size(); i += kPiece) {
    sum += static_cast<double>(
        HWY_DYNAMIC_DISPATCH(SumExp)(row.data() + i, std::min(kPiece, row.size() - i), top));
  }
  return std::log(sum) + static_cast<double>(top);
}

double Divergence(std::span<const float> p, std::span<const float> q) {
  const auto log_sum = [](std::span<const float> row) {
    const auto top = static_cast<double>(*std::max_element(row.begin(), row.end()));
    double sum = 0;
    for (const float value : row) sum += std::exp(static_cast<double>(value) - top);
    return std::log(sum) + top;
  };
  const double log_p = log_sum(p), log_q = log_sum(q);
  double kl = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double log_prob = static_cast<double>(p[i]) - log_p;
    kl += std::exp(log_prob) * (log_prob - (static_cast<double>(q[i]) - log_q));
  }
  return std::max(kl, 0.0);
}

}  // namespace nibble
#endif  // HWY_ONCE
