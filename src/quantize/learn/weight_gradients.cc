// SPDX-License-Identifier: Apache-2.0
#include "quantize/learn/weight_gradients.h"

#include <algorithm>

namespace nibble {
namespace {

// The first of the linears that read what this one reads.
Role FirstReader(Role role) {
  if (role == Role::kK || role == Role::kV) return Role::kQ;
  return role == Role::kUp ? Role::kGate : role;
}

}  // namespace

Matrix<float> WeightGradients::Of(const Plan& plan, int64_t index, Role role,
                                  const float* y_gradients) {
  const int64_t rows = config_.outputs(index, role), cols = config_.inputs(index, role);
  math_.Multiply({.a = y_gradients,
                  .b = backprop_.Input(FirstReader(role)),
                  .transposed = DenseProduct::Transposed::kA,
                  .rows = rows,
                  .inner = tokens_,
                  .cols = cols,
                  .out = product_.Grow(rows * cols)});
  Matrix<float> gradients(rows, cols);
  math_.Store(product_.data(), gradients.data);
  const TransformSpec& after = plan.at(index, role).output_transform;
  if (after.identity()) return gradients;
  Matrix<double> whole(rows, cols);
  std::ranges::copy(gradients.data, whole.data.begin());
  ApplyTransformToColumns(Inverse(after), whole);
  std::ranges::copy(whole.data, gradients.data.begin());
  return gradients;
}

}  // namespace nibble
