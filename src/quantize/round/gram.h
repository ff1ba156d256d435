// SPDX-License-Identifier: Apache-2.0
// Sums of outer products over calibration tokens: the GPTQ Hessian X^T X and GPTAQ's cross term.
#pragma once

#include "compute/math_services.h"
#include "tensor/tensor.h"

namespace nibble {

// sum [width, width] += left^T right; left, right fp32 [tokens, width]. Where left == right only
// the diagonal and what is below it, of a sum that is symmetric; what is above has no meaning. fp32
// sums within one call (MathServices::AddGram, or BLAS), fp64 sums over calls; the result does not
// depend on the number of threads.
void AddGram(MathServices& services, const float* left, const float* right, int64_t tokens,
             Matrix<double>* sum);

}  // namespace nibble
