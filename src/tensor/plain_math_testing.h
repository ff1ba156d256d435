// SPDX-License-Identifier: Apache-2.0
// Arithmetic in fp64 for the oracles of tests, in plain loops.
#pragma once

#include <vector>

#include "tensor/tensor.h"

namespace nibble::plain {

using Vector = std::vector<double>;

// W x
inline Vector Times(const Matrix<double>& w, const Vector& x) {
  Vector y;
  for (int64_t n = 0; n < w.rows; ++n) {
    y.push_back(0);
    for (size_t k = 0; k < x.size(); ++k) y.back() += w.row(n)[k] * x[k];
  }
  return y;
}

inline void Add(const Vector& a, Vector& to) {
  for (size_t i = 0; i < a.size(); ++i) to[i] += a[i];
}

}  // namespace nibble::plain
