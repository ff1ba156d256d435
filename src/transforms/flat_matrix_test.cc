// SPDX-License-Identifier: Apache-2.0
#include "transforms/flat_matrix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numbers>

#include "nibble/error.h"
#include "transforms/hadamard_matrix.h"
#include "transforms/prime_power_testing.h"

namespace nibble {
namespace {

using enum FactorKind;

constexpr FactorKind kFlatKinds[] = {kConference, kJacobsthal, kHartley};

bool FlatShouldExist(const TransformFactor& factor) {
  const int64_t n = factor.order;
  if (factor.kind == kConference) return (n - 1) % 4 == 1 && IsPrimePower(n - 1);
  if (factor.kind == kJacobsthal) return n % 2 != 0 && IsPrimePower(n);
  return n >= 2;
}

// The table in the header.
double Flatness(const TransformFactor& factor) {
  const auto n = static_cast<double>(factor.order);
  if (factor.kind == kConference) return std::sqrt(n / (n - 1));
  if (factor.order % 4 == 1) return 1 + 1 / std::sqrt(n);
  return std::sqrt(n / (n + 1)) * (1 + (std::sqrt(n + 1) - 1) / n);
}

// Every row_step-th row against all rows before it and itself; entries up to mu, which is reached.
void ExpectFlat(const TransformFactor& factor, int64_t row_step) {
  const int64_t n = factor.order;
  const std::span<const double> m = FactorMatrix(factor);
  ASSERT_EQ(static_cast<int64_t>(m.size()), n * n);
  const auto length = static_cast<double>(SquaredLength(factor));
  double largest = 0;
  for (const double entry : m) largest = std::max(largest, std::abs(entry));
  const double mu = std::sqrt(static_cast<double>(n) / length) * largest;
  if (factor.kind == kHartley) {
    ASSERT_LE(mu, std::numbers::sqrt2 + 1e-13) << n;
  } else {
    ASSERT_NEAR(mu, Flatness(factor), 1e-13) << n;
  }
  for (int64_t a = n - 1; a >= 0; a -= row_step) {
    for (int64_t b = 0; b <= a; ++b) {
      double product = 0;
      for (int64_t k = 0; k < n; ++k) product += m[a * n + k] * m[b * n + k];
      ASSERT_NEAR(product / length, a == b ? 1 : 0, 1e-13)
          << "order " << n << " kind " << static_cast<int>(factor.kind) << " rows " << a << ", "
          << b;
    }
  }
}

TEST(FlatMatrix, EveryOrderUpTo400IsOrthogonalAndFlat) {
  int built = 0;
  for (int64_t order = -1; order <= 400; ++order) {
    for (const FactorKind kind : kFlatKinds) {
      ASSERT_EQ(HasFactor({order, kind}), FlatShouldExist({order, kind})) << order;
      if (!HasFactor({order, kind})) continue;
      ExpectFlat({order, kind}, order <= 110 ? 1 : 23);
      ++built;
    }
  }
  EXPECT_GT(built, 500);
}

TEST(FlatMatrix, FlatnessOfTheOrdersThatModelsHave) {
  const std::map<int64_t, double> expected = {
      {6, 1.095},  {14, 1.038}, {18, 1.029}, {30, 1.017}, {5, 1.447},  {9, 1.333},   {13, 1.277},
      {17, 1.243}, {3, 1.155},  {7, 1.180},  {11, 1.172}, {19, 1.153}, {107, 1.083}, {15, 1.414}};
  for (const auto& [n, mu] : expected) {
    const std::vector<TransformFactor> factors = FlatFactors(n);
    ASSERT_EQ(factors.size(), 1u) << n;
    double largest = 0;
    for (const double entry : FactorMatrix(factors[0])) {
      largest = std::max(largest, std::abs(entry));
    }
    const auto length = static_cast<double>(SquaredLength(factors[0]));
    EXPECT_NEAR(largest * std::sqrt(static_cast<double>(n) / length), mu, n == 15 ? 0.02 : 5e-4)
        << n;
  }
}

// Conference entries are whole, those of Jacobsthal's are +-1 and zeros shifted by one constant;
// for a prime q the signs are those of the squares modulo q.
TEST(FlatMatrix, EntriesAreThoseOfTheSquares) {
  for (const int64_t q : {5, 7, 13, 19, 107}) {
    std::vector<int> character(static_cast<size_t>(q), -1);
    character[0] = 0;
    for (int64_t x = 1; x < q; ++x) character[x * x % q] = 1;
    const std::span<const double> m = FactorMatrix({q, kJacobsthal});
    const double shift = (m[1] + m[q - 1] - character[1] - character[q - 1]) / 2;
    for (int64_t a = 0; a < q; ++a) {
      for (int64_t b = 0; b < q; ++b) {
        const int entry = a == b && q % 4 == 3 ? 1 : character[(a - b + q) % q];
        ASSERT_NEAR(m[a * q + b], entry + shift, 1e-15) << q;
        if (q % 4 == 3) continue;
        ASSERT_EQ(FactorMatrix({q + 1, kConference})[(a + 1) * (q + 1) + b + 1], entry);
      }
    }
  }
}

// An angle of up to 2 pi has two roundings, sine, cosine and their sum half a one each.
TEST(FlatMatrix, HartleysEntriesAreShiftedCosines) {
  for (const int64_t n : {2, 15, 21, 100, 389}) {
    const std::span<const double> m = FactorMatrix({n, kHartley});
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t k = 0; k < n; ++k) {
        const long double turns = static_cast<long double>(j * k % n) / static_cast<long double>(n);
        const long double angle = (2 * turns - 0.25L) * std::numbers::pi_v<long double>;
        ASSERT_NEAR(m[j * n + k],
                    static_cast<double>(std::numbers::sqrt2_v<long double> * std::cos(angle)),
                    3e-15);
      }
    }
  }
}

// Rows are orthogonal to rounding, and entries as those of a Haar matrix: their fourth moment,
// where the second one is 1, is 3 n / (n + 2), with a standard deviation of less than 9 / n.
TEST(FlatMatrix, RandomRowsAreOrthogonal) {
  for (const int64_t n : {2, 3, 9, 24, 64, 127, 300}) {
    const TransformFactor factor = {n, kRandom};
    ASSERT_TRUE(HasFactor(factor)) << n;
    const std::span<const double> m = FactorMatrix(factor);
    const auto length = static_cast<double>(SquaredLength(factor));
    double fourth = 0;
    for (int64_t a = 0; a < n; ++a) {
      for (int64_t b = 0; b <= a; ++b) {
        double product = 0;
        for (int64_t k = 0; k < n; ++k) product += m[a * n + k] * m[b * n + k];
        ASSERT_NEAR(product / length, a == b ? 1 : 0, 1e-14 * std::sqrt(n)) << n;
      }
      for (int64_t k = 0; k < n; ++k) fourth += std::pow(m[a * n + k], 4);
    }
    const auto order = static_cast<double>(n);
    if (n >= 24) {
      EXPECT_NEAR(fourth / (order * order), 3 * order / (order + 2), 36 / order) << n;
    }
  }
}

TEST(FlatMatrix, TransposedIsTheTransposed) {
  for (const int64_t n : {7, 12, 107}) {
    const TransformFactor factor = FlatFactors(n)[0];
    const std::span<const double> m = FactorMatrix(factor),
                                  t = FactorMatrix({n, factor.kind, true});
    bool symmetric = true;
    for (int64_t i = 0; i < n * n; ++i) {
      ASSERT_EQ(t[i], m[i % n * n + i / n]);
      symmetric = symmetric && t[i] == m[i];
    }
    EXPECT_FALSE(symmetric) << n;
  }
}

TEST(FlatMatrix, RefusesWhatItLacks) {
  for (const TransformFactor& factor :
       {TransformFactor{8, kConference}, TransformFactor{22, kConference},
        TransformFactor{15, kJacobsthal}, TransformFactor{8, kJacobsthal},
        TransformFactor{1, kRandom}, TransformFactor{513, kRandom}, TransformFactor{1, kHartley},
        TransformFactor{4097, kHartley}, TransformFactor{-3, kJacobsthal},
        TransformFactor{12, kSylvester}}) {
    EXPECT_FALSE(HasFactor(factor)) << factor.order;
    EXPECT_THROW(FactorMatrix(factor), Error) << factor.order;
  }
}

// The matrices are part of the checkpoint format; so are GF(9)'s and GF(25)'s, which a polynomial
// decides. These sums were computed when the format got them.
TEST(FlatMatrix, MatricesAreFrozen) {
  const auto fingerprint = [](const TransformFactor& factor) {
    uint64_t hash = 0xCBF29CE484222325;  // FNV-1a
    for (const double entry : FactorMatrix(factor)) {
      hash = (hash ^ static_cast<uint64_t>(std::lround(entry * 1e6))) * 0x100000001B3;
    }
    return hash;
  };
  EXPECT_EQ(fingerprint({9, kJacobsthal}), 0x15FBB6C3B9E8A580u);
  EXPECT_EQ(fingerprint({107, kJacobsthal}), 0xCA991DC1888124BAu);
  EXPECT_EQ(fingerprint({14, kConference}), 0x8E3440D25EFF2175u);
  EXPECT_EQ(fingerprint({26, kConference}), 0xFC105074A3E1E6F5u);
  EXPECT_EQ(fingerprint({15, kHartley}), 0x01BF9FA047B4B897u);
  EXPECT_EQ(fingerprint({2, kRandom}), 0x30E196E6DE907387u);
  EXPECT_EQ(fingerprint({24, kRandom}), 0xF455D4A9F07152D5u);
  EXPECT_EQ(fingerprint({43, kRandom}), 0x0C295E268BB3EE8Eu);
}

TEST(FlatFactorsTest, HadamardFactorsWhereThereAreSome) {
  for (int64_t n = 1; n <= 3000; ++n) {
    const std::vector<TransformFactor> hadamard = FactorHadamard(n);
    if (!hadamard.empty()) {
      EXPECT_EQ(FlatFactors(n), hadamard) << n;
    }
  }
}

// The expected factor is found by trying all: the first kind that has an order dividing n with a
// Hadamard matrix of the rest.
TEST(FlatFactorsTest, OneFlatFactorWhereThereAreNone) {
  int none = 0;
  for (int64_t n = 1; n <= 3000; ++n) {
    if (!FactorHadamard(n).empty()) continue;
    std::vector<TransformFactor> expected;
    for (const FactorKind kind : kFlatKinds) {
      for (int64_t order = 176; order >= 2; --order) {
        if (n % order != 0 || !FlatShouldExist({order, kind}) || !expected.empty()) continue;
        if (order != n && FactorHadamard(n / order).empty()) continue;
        int64_t min = order;
        for (int64_t f = 2; f < order; ++f) {
          const bool rest = n % f == 0 && !FactorHadamard(n / f).empty();
          if (rest && FlatShouldExist({f, kind})) min = std::min(min, f);
        }
        expected = FactorHadamard(n / min);
        expected.insert(expected.begin(), {min, kind});
      }
    }
    ASSERT_EQ(FlatFactors(n), expected) << n;
    none += expected.empty();
  }
  EXPECT_GT(none, 0);
}

TEST(FlatFactorsTest, WidthsAndHeadsOfModels) {
  using Factors = std::vector<TransformFactor>;
  const std::map<int64_t, Factors> expected = {
      {1, {}},
      {9, {{9, kJacobsthal}}},
      {14, {{14, kConference}}},
      {15, {{15, kHartley}}},
      {45, {{45, kHartley}}},
      {28, {{28, kPaley1}}},
      {428, {{107, kJacobsthal}, {4, kSylvester}}},
      {2060, {{103, kJacobsthal}, {20, kPaley1}}},
      {13696, {{107, kJacobsthal}, {128, kSylvester}}},
      {179, {}},
      {12224, {}},  // 191 * 64
  };
  for (const auto& [n, factors] : expected) EXPECT_EQ(FlatFactors(n), factors) << n;
}

}  // namespace
}  // namespace nibble
