// SPDX-License-Identifier: Apache-2.0
// Normally distributed values.
#pragma once

#include <vector>

#include "base/rng.h"
#include "tensor/tensor.h"

namespace nibble {

inline std::vector<float> RandomFloats(Rng& rng, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(rng.Normal());
  return values;
}

inline Matrix<double> RandomMatrix(int64_t rows, int64_t cols, Rng& rng) {
  Matrix<double> matrix(rows, cols);
  for (double& value : matrix.data) value = rng.Normal();
  return matrix;
}

}  // namespace nibble
