// SPDX-License-Identifier: Apache-2.0
#include "quantize/gptq_steps.h"

#include <algorithm>
#include <numeric>

namespace nibble {

Order ColumnOrder(std::span<const double> diagonal, bool act_order, int64_t tail) {
  Order order(diagonal.size());
  std::iota(order.begin(), order.end(), 0);
  if (act_order) {
    std::stable_sort(order.begin(), order.end() - tail, [&](int64_t a, int64_t b) {
      return diagonal[static_cast<size_t>(a)] > diagonal[static_cast<size_t>(b)];
    });
  }
  return order;
}

[[gnu::target_clones("avx512f", "avx2", "default")]] void AddScaled(double factor,
                                                                    std::span<const double> x,
                                                                    double* y) {
  for (size_t i = 0; i < x.size(); ++i) y[i] += factor * x[i];
}

bool FixedGrids(const FormatSpec& format, const GptqOptions& options) {
  return format.group == 0 || options.act_order;
}

double MoreDamping(double damp) {
  if (!(damp <= 1e6)) {
    Fail("the calibration Hessian cannot be factored; is the calibration text empty?");
  }
  return std::max(damp * 10, 1e-4);
}

}  // namespace nibble
