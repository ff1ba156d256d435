// SPDX-License-Identifier: Apache-2.0
// Sums of outer products over calibration tokens: the GPTQ Hessian X^T X and GPTAQ's cross term.
#pragma once

#include "tensor/tensor.h"

namespace nibble {

class Gram {
 public:
  explicit Gram(int64_t width) : sum_(width, width) {}

  // sum += left^T right; left, right fp32 [tokens, width]. left == right computes half of it.
  // fp32 products within one call, fp64 sums over calls; tiles are independent, so the result does
  // not depend on the number of threads.
  void Add(const float* left, const float* right, int64_t tokens);

  const Matrix<double>& sum() const { return sum_; }

 private:
  Matrix<double> sum_;  // [width, width]
};

}  // namespace nibble
