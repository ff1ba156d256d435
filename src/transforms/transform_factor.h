// SPDX-License-Identifier: Apache-2.0
// A Kronecker factor of an online transform: a square matrix of one order and construction, with
// orthogonal rows of equal length.
#pragma once

#include <compare>
#include <cstdint>

namespace nibble {

// Hadamard matrices (hadamard_matrix.h), then matrices of other orders (flat_matrix.h); the last is
// applied without its matrix (fourier.h).
enum class FactorKind {
  kSylvester,
  kPaley1,
  kPaley2,
  kStored,
  kConference,
  kJacobsthal,
  kHartley,
  kRandom,
  kFourier,
};
inline constexpr int64_t kFactorKinds = 9;

struct TransformFactor {
  int64_t order;
  FactorKind kind;
  bool transposed = false;

  bool hadamard() const { return kind <= FactorKind::kStored; }  // entries +1 and -1
  auto operator<=>(const TransformFactor&) const = default;
};

inline constexpr int64_t kMaxFactorOrder = 4096;  // largest order applied as a dense matrix

}  // namespace nibble
