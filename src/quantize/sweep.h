// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "quantize/code_matrix.h"

namespace nibble {

// Coordinate descent over codes (as QuantEase, Behdin et al. 2023): `passes` times, each code in
// turn becomes the one with the smallest tr(E H E^T) while all others stay. errors E [N, K] = what
// the codes mean minus the weights; K may go beyond the columns of `codes`, whose errors then count
// but stay. hessian [K, K], symmetric, no zero on its diagonal.
void SweepCodes(const Matrix<double>& hessian, int passes, Matrix<double>& errors,
                CodeMatrix& codes);

}  // namespace nibble
