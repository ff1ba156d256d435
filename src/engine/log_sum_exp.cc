// SPDX-License-Identifier: Apache-2.0
#include "engine/log_sum_exp.h"

#include <algorithm>
#include <cmath>

#include "compute/likely.h"
#include "tensor/finite.h"

namespace nibble {

double LogSumExp(std::span<const float> row) {
  if (!AllFinite(row)) return std::nan("");  // Highway's Exp makes 0 of NaN
  const float top = *std::max_element(row.begin(), row.end());
  return std::log(SumExp(row, top)) + static_cast<double>(top);
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
