// SPDX-License-Identifier: Apache-2.0
// The rotation R of the residual stream, which is folded into the weights and never applied at run
// time, so it may be any orthogonal matrix: a Hadamard matrix with random signs (the default) or a
// dense random one (for comparison; QuaRot reports perplexity 7.45 against 6.10 on Llama-2-7B).
#pragma once

#include <cstdint>
#include <vector>

#include "base/rng.h"
#include "tensor/tensor.h"
#include "transforms/hadamard.h"

namespace nibble {

// [n, n], uniformly (Haar) distributed: the orthogonal part of a Gaussian matrix, with the signs
// chosen so that the triangular part has a positive diagonal (Mezzadri, How to generate random
// matrices from the classical compact groups, 2007).
Matrix<double> RandomOrthogonal(int64_t n, Rng& rng);

Matrix<double> IdentityMatrix(int64_t n);

// Returns whether q is square and Q^T Q x = x, to 1e-6 an element, for two random x of ones and
// minus ones: matrices that are not orthogonal, or not finite, pass by chance alone.
bool IsOrthogonal(const Matrix<double>& q);

// R = dense if that is not empty, else R = M diag(signs) with M of `hadamard`.
struct ResidualRotation {
  TransformSpec hadamard = {};
  std::vector<int8_t> signs = {};  // [hadamard.width()]
  Matrix<double> dense = {};       // [width, width] or empty

  int64_t width() const { return dense.data.empty() ? hadamard.width() : dense.rows; }
  void ApplyToRows(Matrix<double>& w) const;     // W <- W R^T: readers of the residual stream
  void ApplyToColumns(Matrix<double>& w) const;  // W <- R W: writers; a bias is a column
};

}  // namespace nibble
