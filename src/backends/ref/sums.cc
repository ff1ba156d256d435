// SPDX-License-Identifier: Apache-2.0
#include "backends/ref/sums.h"

#include "base/error.h"

namespace nibble {

int32_t Dot(std::span<const int8_t> a, std::span<const int8_t> b) {
  NIBBLE_CHECK(a.size() == b.size(), "{} codes, {}", a.size(), b.size());
  int32_t sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

void AddScaled(float x, std::span<const float> w, std::span<float> y) {
  NIBBLE_CHECK(w.size() == y.size(), "{} weights, {} outputs", w.size(), y.size());
  for (size_t i = 0; i < y.size(); ++i) y[i] = y[i] + x * w[i];
}

}  // namespace nibble
