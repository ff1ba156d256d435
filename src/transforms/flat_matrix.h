// SPDX-License-Identifier: Apache-2.0
// Orthogonal matrices whose entries have nearly one size, for orders n without a Hadamard matrix.
// Flatness mu = sqrt(n) times the largest entry of the orthogonal matrix; a Hadamard matrix has 1.
// As with Hadamard matrices, a checkpoint stores its list of factors: no construction may change
// without a new name.
//
// Two kinds consist of Jacobsthal's matrix Q of GF(q) (galois_field.h), which has Q Q^T = q I - J
// and Q J = 0, and J, all ones:
//
//   conference  n = q + 1, q = 1 mod 4: Q bordered with ones, zero diagonal; mu sqrt(n/(n-1))
//   jacobsthal  n = q = 1 mod 4: Q + J/sqrt(q); mu 1 + 1/sqrt(q)
//               n = q = 3 mod 4: Q + I + gJ, g = (sqrt(q+1)-1)/q; mu < 1.19
//
// For any n from 2:
//   hartley     cas(2 pi j k / n), cas = cos + sin; mu <= sqrt(2)
//
// Not flat, but as QuIP (Chee et al. 2023) has them, orders from 2 to kMaxRandomOrder:
//   random      sqrt(n) times an orthogonal matrix, Haar distributed, one for each order: the rows
//               of n x n normal numbers of Rng(n), each less its parts along the rows before it
//
// The complex matrix of kFourier (fourier.h) is flat, too, its real form up to sqrt(2).
//
// Sources: Paley, On orthogonal matrices, 1933; Belevitch, Theory of 2n-terminal networks with
// application to conference telephony, 1950; Hartley, A more symmetrical Fourier analysis applied
// to transmission problems, 1942.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "transforms/transform_factor.h"

namespace nibble {

inline constexpr int64_t kMaxRandomOrder = 512;  // whose rows take half a second

// Returns whether this program can construct the factor, be it a Hadamard matrix or another.
bool HasFactor(const TransformFactor& factor);

// The squared length of each row and column of FactorMatrix.
int64_t SquaredLength(const TransformFactor& factor);

// [order, order], rows orthogonal to each other; orders up to kMaxFactorOrder. Built at the first
// call and kept for the life of the program. Throws where HasFactor is false.
std::span<const double> FactorMatrix(const TransformFactor& factor);

// FactorHadamard(n) if there is such a list. If not, a matrix above, the first by FactorKind and
// then by order, and the factors of FactorHadamard for the rest of n. Orders end at 176, behind
// which each element costs more multiply-adds than that. Empty for n = 1 and where there is no such
// list either.
std::vector<TransformFactor> FlatFactors(int64_t n);

}  // namespace nibble
