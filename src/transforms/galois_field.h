// SPDX-License-Identifier: Apache-2.0
// The little of finite field arithmetic that Paley's Hadamard matrices and flat_matrix.h need. The
// integer a_0 + a_1 p + ... stands for the element a_0 + a_1 x + ... of GF(p^k), modulo the
// primitive polynomial x^k + ... + c_1 x + c_0 whose integer c_0 + c_1 p + ... is smallest.
//
// The choice is part of the checkpoint format: another polynomial gives another matrix.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace nibble {

struct PrimePower {
  int64_t prime;
  int exponent;
};

// q = prime^exponent, or nothing.
std::optional<PrimePower> AsPrimePower(int64_t q);

// Jacobsthal's matrix of GF(q), q odd: [q, q], entry (a, b) = +1 if a - b is a nonzero square,
// -1 if it is no square, 0 on the diagonal.
std::vector<int8_t> JacobsthalMatrix(PrimePower field);

// [q + 1, q + 1]: a first row of ones, a first column of `border`, zero corner, the same inside.
std::vector<int8_t> BorderedJacobsthal(PrimePower field, int8_t border);

}  // namespace nibble
