// SPDX-License-Identifier: Apache-2.0
#include "transforms/flat_matrix.h"

#include <cmath>
#include <numbers>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/rng.h"
#include "transforms/fourier.h"
#include "transforms/galois_field.h"
#include "transforms/hadamard_matrix.h"
#include "transforms/matrix_cache.h"

namespace nibble {
namespace {

constexpr int64_t kMaxFlatOrder = 176;  // the largest order of a flat matrix in FlatFactors

std::vector<double> Jacobsthal(int64_t q) {
  const std::vector<int8_t> characters = JacobsthalMatrix(*AsPrimePower(q));
  std::vector<double> matrix(characters.begin(), characters.end());
  const auto order = static_cast<double>(q);
  const bool skew = q % 4 == 3;
  const double constant = skew ? (std::sqrt(order + 1) - 1) / order : 1 / std::sqrt(order);
  for (double& entry : matrix) entry += constant;
  for (int64_t i = 0; skew && i < q; ++i) matrix[i * q + i] += 1;
  return matrix;
}

std::vector<double> Hartley(int64_t n) {
  std::vector<double> cas, matrix;
  for (int64_t i = 0; i < n; ++i) {
    const double angle = 2 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(n);
    cas.push_back(std::cos(angle) + std::sin(angle));
  }
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t k = 0; k < n; ++k) matrix.push_back(cas[j * k % n]);
  }
  return matrix;
}

// Gram-Schmidt, twice for each row, so that rows are orthogonal to the last bits. Written out: a
// library's factorization differs from machine to machine in bits that checkpoints depend on.
std::vector<double> RandomRows(int64_t n) {
  Rng rng(static_cast<uint64_t>(n));
  std::vector<double> matrix(static_cast<size_t>(n * n));
  for (double& entry : matrix) entry = rng.Normal();
  for (int64_t i = 0; i < n; ++i) {
    double* const row = matrix.data() + i * n;
    const auto product = [&](const double* other) {
      return std::inner_product(row, row + n, other, 0.0) / static_cast<double>(n);
    };
    for (int64_t j = 0; j < 2 * i; ++j) {
      const double* const other = matrix.data() + j % i * n;
      const double share = product(other);
      for (int64_t k = 0; k < n; ++k) row[k] -= share * other[k];
    }
    const double length = std::sqrt(product(row));
    for (int64_t k = 0; k < n; ++k) row[k] /= length;
  }
  return matrix;
}

std::vector<double> Build(const TransformFactor& factor) {
  const int64_t n = factor.order;
  switch (factor.kind) {
    case FactorKind::kConference: {
      const std::vector<int8_t> matrix = BorderedJacobsthal(*AsPrimePower(n - 1), 1);
      return {matrix.begin(), matrix.end()};
    }
    case FactorKind::kJacobsthal:
      return Jacobsthal(n);
    case FactorKind::kHartley:
      return Hartley(n);
    case FactorKind::kRandom:
      return RandomRows(n);
    case FactorKind::kFourier:
      return FourierMatrix(factor);
    default:
      const std::span<const int8_t> matrix = HadamardMatrix({n, factor.kind});
      return {matrix.begin(), matrix.end()};
  }
}

}  // namespace

bool HasFactor(const TransformFactor& factor) {
  const int64_t n = factor.order;
  if (factor.hadamard()) return HasHadamard(factor);
  if (factor.kind == FactorKind::kFourier) return n >= 2 && n % 2 == 0 && n <= kMaxFourierOrder;
  if (n < 2 || n > kMaxFactorOrder) return false;
  switch (factor.kind) {
    case FactorKind::kConference:
      return n % 4 == 2 && AsPrimePower(n - 1).has_value();
    case FactorKind::kJacobsthal:
      return n % 2 == 1 && AsPrimePower(n).has_value();
    case FactorKind::kRandom:
      return n <= kMaxRandomOrder;
    default:
      return factor.kind == FactorKind::kHartley;
  }
}

int64_t SquaredLength(const TransformFactor& factor) {
  const int64_t n = factor.order;
  if (factor.kind == FactorKind::kConference) return n - 1;
  if (factor.kind == FactorKind::kFourier) return n / 2;
  if (factor.kind == FactorKind::kJacobsthal) return n % 4 == 3 ? n + 1 : n;
  return n;
}

std::span<const double> FactorMatrix(const TransformFactor& factor) {
  if (!HasFactor(factor) || factor.order > kMaxFactorOrder) {
    Fail("this version cannot construct a dense matrix of order {} (kind {})", factor.order,
         static_cast<int>(factor.kind));
  }
  return CachedMatrix(factor, &Build);
}

std::vector<TransformFactor> FlatFactors(int64_t n) {
  std::vector<TransformFactor> factors = FactorHadamard(n);
  if (!factors.empty()) return factors;
  for (auto kind : {FactorKind::kConference, FactorKind::kJacobsthal, FactorKind::kHartley}) {
    for (int64_t order = 2; order <= std::min(n, kMaxFlatOrder); ++order) {
      if (n % order != 0 || !HasFactor({order, kind})) continue;
      factors = FactorHadamard(n / order);
      if (factors.empty() && order != n) continue;
      factors.insert(factors.begin(), {order, kind});
      return factors;
    }
  }
  return factors;
}

}  // namespace nibble
