// SPDX-License-Identifier: Apache-2.0
// The online transform of an edge of the network (Ashkboos et al., QuaRot, 2024): I_outer (x) H (x)
// I_inner. A row x is [outer, order, inner]. H acts along the middle axis and is the Kronecker
// product of its factors, the first one slowest, scaled to be orthogonal:
//   y[f', j] = scale * sum_f H[f', f] x[f, j]
//
// Per head: inner = 1, outer = heads. Across heads: inner = head_dim, outer = 1. M below is the
// whole orthogonal matrix. Since (x M^T) (W M^T)^T = x W^T, activations and the input side of
// weights go through the same routine.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "tensor/tensor.h"
#include "transforms/flat_matrix.h"
#include "transforms/hadamard_matrix.h"

namespace nibble {

struct TransformSpec {
  std::vector<TransformFactor> factors = {};  // empty: identity
  int64_t outer = 1;
  int64_t inner = 1;

  bool identity() const { return factors.empty(); }
  int64_t order() const;                                     // product of the factors
  int64_t width() const { return outer * order() * inner; }  // length of a row
  double scale() const;       // makes the product of the factors orthogonal
  double operations() const;  // multiply-adds and additions per element
  auto operator<=>(const TransformSpec&) const = default;
};

// The inverse: every factor transposed.
TransformSpec Inverse(TransformSpec spec);

// H over the whole width, or in blocks of the largest order that divides it and has FlatFactors; a
// width without any is left alone.
TransformSpec FullHadamard(int64_t n);

// The Kronecker product of two random orthogonal matrices of orders as close to each other as the
// divisors of n allow, the transform of QuIP (Chee et al. 2023, section 4.2); nothing where that
// takes an order above kMaxRandomOrder. The first factor is transposed, so that two of one order
// differ.
std::optional<TransformSpec> RandomKronecker(int64_t n);

// y = M x for one row of width() elements, in place, with sums in the element type but for Fourier
// factors (fourier.h).
void ApplyTransform(const TransformSpec& spec, std::span<double> x);
void ApplyTransform(const TransformSpec& spec, std::span<float> x);

// W <- W M^T, the input side of a linear: w is [N, width()]. Parallel; same bits for any number of
// threads.
void ApplyTransformToRows(const TransformSpec& spec, Matrix<double>& w);
// W <- M W, the output side: w is [width(), K]. A bias is a column: K = 1.
void ApplyTransformToColumns(const TransformSpec& spec, Matrix<double>& w);

// The transform as people read it: "Hadamard 172 x 8", "Jacobsthal 107 x Hadamard 128", "conference
// 14 across 64", "Hadamard 128, 107 blocks", "-".
std::string TransformText(const TransformSpec& spec);

// {"factors": [{"order": 172, "kind": "stored"}, {"order": 64, "kind": "sylvester"}],
//  "outer": 1, "inner": 1}
Json ToJson(const TransformSpec& spec);
// Throws on unknown fields or kinds, sizes out of range and constructions this program lacks.
TransformSpec TransformFromJson(const Json& json, const std::string& where);

}  // namespace nibble
