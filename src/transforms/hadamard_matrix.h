// SPDX-License-Identifier: Apache-2.0
// Hadamard matrices of single orders and the choice of Kronecker factors for a given width.
// Constructions: Sylvester (2^m), Paley I (q + 1, q = 3 mod 4 a prime power), Paley II (2 (q + 1),
// q = 1 mod 4; both Paley, On orthogonal matrices, 1933) and a few stored ones.
//
// Checkpoints store factors, whose matrix is folded into their weights: neither a construction nor
// the rule of FactorHadamard may change without a new name.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "transforms/transform_factor.h"

namespace nibble {

inline constexpr int64_t kMaxSylvester = int64_t{1} << 24;

// Returns whether this program can construct the factor and the factor is a Hadamard matrix.
bool HasHadamard(const TransformFactor& factor);

// The factors of order n with the fewest operations per element, slowest first: dense factors by
// falling order, then the Sylvester one, if any. Ties go to fewer dense factors, then to the larger
// first differing one; of several constructions the first in FactorKind is used. Empty for n = 1
// and where there is none (6, 428, ...).
std::vector<TransformFactor> FactorHadamard(int64_t n);

// Multiply-adds (dense factor: its order) or additions (Sylvester: log2 of it) per element. Of a
// Fourier factor: twice the sum of the prime factors of half its order, and two for the phase.
int64_t OperationsPerElement(const TransformFactor& factor);

// [order, order], entries +1 and -1, orders up to kMaxFactorOrder. Built at the first call and
// kept for the life of the program. Throws where HasHadamard is false.
std::span<const int8_t> HadamardMatrix(const TransformFactor& factor);

}  // namespace nibble
