// SPDX-License-Identifier: Apache-2.0
// Sums of outer products over calibration tokens: the GPTQ Hessian X^T X and GPTAQ's cross term.
#pragma once

#include <vector>

#include "backends/interface/backend.h"
#include "tensor/tensor.h"

namespace nibble {

class Gram {
 public:
  Gram(Backend& backend, int64_t width) : backend_(backend), sum_(width, width) {}

  // sum += left^T right; left, right fp32 [tokens, width] in the backend's memory. left == right
  // computes half of it.
  // fp32 sums within one call (MathServices::Gram, or BLAS), fp64 sums over calls; the result does
  // not depend on the number of threads.
  void Add(const float* left, const float* right, int64_t tokens);

  int64_t width() const { return sum_.cols; }
  const Matrix<double>& sum() const { return sum_; }

 private:
  Backend& backend_;
  Matrix<double> sum_;          // [width, width]
  std::vector<float> product_;  // of one call
};

}  // namespace nibble
