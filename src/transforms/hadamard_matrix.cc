// SPDX-License-Identifier: Apache-2.0
#include "transforms/hadamard_matrix.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "transforms/galois_field.h"
#include "transforms/matrix_cache.h"
#include "transforms/stored_hadamards.h"

namespace nibble {
namespace {

bool IsPowerOf2(int64_t n) {
  return n > 0 && std::has_single_bit(static_cast<uint64_t>(n));
}

// The dense construction FactorHadamard uses for an order. Powers of 2 are left to Sylvester.
std::optional<FactorKind> DenseKind(int64_t order) {
  if (IsPowerOf2(order)) return std::nullopt;
  for (FactorKind kind : {FactorKind::kPaley1, FactorKind::kPaley2, FactorKind::kStored}) {
    if (HasHadamard({order, kind})) return kind;
  }
  return std::nullopt;
}

struct Factorization {
  int64_t operations = 0;
  std::vector<int64_t> dense;  // falling

  bool BetterThan(const Factorization& other) const {
    if (operations != other.operations) return operations < other.operations;
    if (dense.size() != other.dense.size()) return dense.size() < other.dense.size();
    return dense > other.dense;
  }
};

using Memo = std::map<int64_t, std::optional<Factorization>>;

// A best list without one of its factors is a best list of the quotient, so n / f is searched once
// for every n that needs it.
const std::optional<Factorization>& Search(int64_t n, Memo& memo) {
  const auto [it, is_new] = memo.try_emplace(n);
  std::optional<Factorization>& best = it->second;  // stays valid: map nodes do not move
  if (!is_new) return best;
  if (n == 1 || HasHadamard({n, FactorKind::kSylvester})) {
    best = Factorization{std::countr_zero(static_cast<uint64_t>(n)), {}};
  }
  for (int64_t f = 12; f <= std::min(n, kMaxFactorOrder); f += 4) {
    if (n % f != 0 || !DenseKind(f)) continue;
    std::optional<Factorization> candidate = Search(n / f, memo);
    if (!candidate) continue;
    candidate->operations += f;
    candidate->dense.insert(std::ranges::upper_bound(candidate->dense, f, std::greater()), f);
    if (!best || candidate->BetterThan(*best)) best = std::move(candidate);
  }
  return best;
}

int64_t SumOfPrimes(int64_t n) {
  int64_t sum = 0;
  for (int64_t p = 2; n > 1; ++p) {
    for (; n % p == 0; n /= p) sum += p;
  }
  return sum;
}

std::vector<int8_t> Sylvester(int64_t order) {
  std::vector<int8_t> matrix;
  for (int64_t i = 0; i < order; ++i) {
    for (int64_t j = 0; j < order; ++j) {
      matrix.push_back(std::popcount(static_cast<uint64_t>(i & j)) % 2 == 0 ? 1 : -1);
    }
  }
  return matrix;
}

// I + S; S is skew for q = 3 mod 4.
std::vector<int8_t> Paley1(int64_t order) {
  std::vector<int8_t> matrix = BorderedJacobsthal(*AsPrimePower(order - 1), -1);
  for (int64_t i = 0; i < order; ++i) matrix[i * order + i] = 1;
  return matrix;
}

// S (x) [1 1; 1 -1] + I (x) [1 -1; -1 -1]; S is symmetric for q = 1 mod 4.
std::vector<int8_t> Paley2(int64_t order) {
  constexpr int8_t kOffDiagonal[2][2] = {{1, 1}, {1, -1}};
  constexpr int8_t kDiagonal[2][2] = {{1, -1}, {-1, -1}};
  const int64_t half = order / 2;
  const std::vector<int8_t> s = BorderedJacobsthal(*AsPrimePower(half - 1), 1);
  std::vector<int8_t> matrix;
  for (int64_t i = 0; i < order; ++i) {
    for (int64_t j = 0; j < order; ++j) {
      const int8_t entry = s[i / 2 * half + j / 2];
      matrix.push_back(static_cast<int8_t>(entry == 0 ? kDiagonal[i % 2][j % 2]
                                                      : entry * kOffDiagonal[i % 2][j % 2]));
    }
  }
  return matrix;
}

std::vector<int8_t> BuildSigns(const TransformFactor& factor) {
  switch (factor.kind) {
    case FactorKind::kSylvester:
      return Sylvester(factor.order);
    case FactorKind::kPaley1:
      return Paley1(factor.order);
    case FactorKind::kPaley2:
      return Paley2(factor.order);
    default:
      return StoredHadamard(factor.order);
  }
}

}  // namespace

bool HasHadamard(const TransformFactor& factor) {
  const int64_t n = factor.order;
  if (factor.kind == FactorKind::kSylvester) return n >= 2 && n <= kMaxSylvester && IsPowerOf2(n);
  if (!factor.hadamard() || n < 4 || n > kMaxFactorOrder || n % 4 != 0) return false;
  switch (factor.kind) {
    case FactorKind::kPaley1:
      return AsPrimePower(n - 1).has_value();
    case FactorKind::kPaley2:
      return n / 2 % 4 == 2 && AsPrimePower(n / 2 - 1).has_value();
    default:
      return IsStoredHadamard(n);
  }
}

std::vector<TransformFactor> FactorHadamard(int64_t n) {
  Memo memo;
  std::vector<TransformFactor> factors;
  const std::optional<Factorization>& best = Search(n, memo);
  if (!best) return factors;
  for (int64_t f : best->dense) {
    factors.push_back({f, *DenseKind(f)});
    n /= f;
  }
  if (n > 1) factors.push_back({n, FactorKind::kSylvester});
  return factors;
}

int64_t OperationsPerElement(const TransformFactor& factor) {
  if (factor.kind == FactorKind::kFourier) return 2 + 2 * SumOfPrimes(factor.order / 2);
  if (factor.kind != FactorKind::kSylvester) return factor.order;
  return std::countr_zero(static_cast<uint64_t>(factor.order));
}

std::span<const int8_t> HadamardMatrix(const TransformFactor& factor) {
  if (!HasHadamard(factor) || factor.order > kMaxFactorOrder) {
    Fail("this version cannot construct a dense Hadamard matrix of order {} (kind {})",
         factor.order, static_cast<int>(factor.kind));
  }
  return CachedMatrix(factor, &BuildSigns);
}

}  // namespace nibble
