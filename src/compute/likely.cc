// SPDX-License-Identifier: Apache-2.0
#include "compute/likely.h"

#include <algorithm>
#include <cmath>

#include "tensor/finite.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/likely.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace nibble {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// SumExp of at most 4096 values.
float SumExpOfPiece(const float* row, size_t count, float top, float cold) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  const auto shift = hn::Set(d, top), factor = hn::Set(d, cold);
  auto sum = hn::Zero(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto x = hn::Mul(hn::Sub(hn::LoadU(d, row + i), shift), factor);
    sum = hn::Add(sum, hn::Exp(d, x));
  }
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < count; ++i) total += std::exp((row[i] - top) * cold);
  return total;
}

float Largest(const float* row, size_t count) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  auto largest = hn::Set(d, row[0]);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) largest = hn::Max(largest, hn::LoadU(d, row + i));
  float top = hn::GetLane(hn::MaxOfLanes(d, largest));
  for (; i < count; ++i) top = std::max(top, row[i]);
  return top;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace nibble
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble {
HWY_EXPORT(SumExpOfPiece);
HWY_EXPORT(Largest);

double SumExp(std::span<const float> row, float top, float cold) {
  constexpr size_t kPiece = 4096;
  double sum = 0;
  for (size_t i = 0; i < row.size(); i += kPiece) {
    sum += static_cast<double>(HWY_DYNAMIC_DISPATCH(SumExpOfPiece)(
        row.data() + i, std::min(kPiece, row.size() - i), top, cold));
  }
  return sum;
}

Likely FindLikely(std::span<const float> logits, const LikelyQuery& query) {
  constexpr size_t kPiece = 1024;  // most of them have nothing to list
  const auto piece = [&](size_t i) {
    return logits.subspan(i * kPiece, std::min(kPiece, logits.size() - i * kPiece));
  };
  std::vector<float> tops((logits.size() + kPiece - 1) / kPiece);
  for (size_t i = 0; i < tops.size(); ++i) {
    tops[i] = HWY_DYNAMIC_DISPATCH(Largest)(piece(i).data(), piece(i).size());
  }
  const float top = *std::ranges::max_element(tops), least = top - query.window;
  Likely likely = {.finite = AllFinite(logits), .tokens = {}};
  if (query.cold > 0) likely.total = SumExp(logits, top, query.cold);
  for (size_t i = 0; i < tops.size() && likely.complete; ++i) {
    if (tops[i] < least) continue;
    for (const float& logit : piece(i)) {
      if (logit < least) continue;
      likely.complete = likely.tokens.size() < kMaxLikely;
      if (!likely.complete) break;
      likely.tokens.push_back({static_cast<int32_t>(&logit - logits.data()), logit});
    }
  }
  std::ranges::sort(likely.tokens, [](const auto& a, const auto& b) { return a.before(b); });
  return likely;
}

}  // namespace nibble
#endif  // HWY_ONCE
