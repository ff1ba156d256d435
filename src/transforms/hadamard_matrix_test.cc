// SPDX-License-Identifier: Apache-2.0
#include "transforms/hadamard_matrix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <map>
#include <set>

#include "nibble/error.h"
#include "transforms/galois_field.h"
#include "transforms/prime_power_testing.h"

namespace nibble {
namespace {

constexpr std::array kKinds = {FactorKind::kSylvester, FactorKind::kPaley1, FactorKind::kPaley2,
                               FactorKind::kStored};

// H H^T = n I with rows packed to bits: the product of two rows is n - 2 * (differing entries).
// Every row_step-th row is checked against all rows before it.
void ExpectHadamard(const TransformFactor& factor, int64_t row_step = 1) {
  const std::span<const int8_t> h = HadamardMatrix(factor);
  const int64_t n = factor.order;
  ASSERT_EQ(static_cast<int64_t>(h.size()), n * n);
  const int64_t words = (n + 63) / 64;
  std::vector<uint64_t> bits(static_cast<size_t>(n * words), 0);
  for (int64_t i = 0; i < n * n; ++i) {
    ASSERT_TRUE(h[i] == 1 || h[i] == -1) << "order " << n << " entry " << i;
    if (h[i] < 0) bits[i / n * words + i % n / 64] |= uint64_t{1} << (i % n % 64);
  }
  for (int64_t a = n - 1; a >= 0; a -= row_step) {
    for (int64_t b = 0; b < a; ++b) {
      int64_t differing = 0;
      for (int64_t w = 0; w < words; ++w) {
        differing += std::popcount(bits[a * words + w] ^ bits[b * words + w]);
      }
      ASSERT_EQ(n - 2 * differing, 0) << "order " << n << " rows " << a << " and " << b;
    }
  }
}

bool HadamardShouldExist(const TransformFactor& factor) {
  const int64_t n = factor.order;
  switch (factor.kind) {
    case FactorKind::kSylvester:
      return n >= 2 && std::popcount(static_cast<uint64_t>(n)) == 1;
    case FactorKind::kPaley1:
      return n >= 4 && (n - 1) % 4 == 3 && IsPrimePower(n - 1);
    case FactorKind::kPaley2:
      return n % 2 == 0 && (n / 2 - 1) % 4 == 1 && IsPrimePower(n / 2 - 1);
    default:
      break;
  }
  return std::set<int64_t>{92, 116, 156, 172, 188}.contains(n);
}

int64_t Product(const std::vector<TransformFactor>& factors) {
  int64_t product = 1;
  for (const TransformFactor& factor : factors) product *= factor.order;
  return product;
}

int64_t Operations(const std::vector<TransformFactor>& factors) {
  int64_t sum = 0;
  for (const TransformFactor& factor : factors) sum += OperationsPerElement(factor);
  return sum;
}

TEST(GaloisField, PrimePowers) {
  for (int64_t q = -3; q < 3000; ++q) {
    const auto field = AsPrimePower(q);
    ASSERT_EQ(field.has_value(), q >= 2 && IsPrimePower(q)) << q;
    if (!field) continue;
    int64_t power = 1;
    for (int i = 0; i < field->exponent; ++i) power *= field->prime;
    EXPECT_EQ(power, q);
  }
}

TEST(GaloisField, JacobsthalMatricesHaveTheirDefiningProducts) {
  for (int64_t q : {3, 5, 7, 9, 25, 27, 49, 81, 121, 125, 243, 343, 461}) {
    const std::vector<int8_t> s = JacobsthalMatrix(*AsPrimePower(q));
    for (int64_t a = 0; a < q; ++a) {
      int64_t sum = 0;
      for (int64_t c = 0; c < q; ++c) {
        sum += s[a * q + c];
        ASSERT_EQ(s[a * q + c], (q % 4 == 1 ? 1 : -1) * s[c * q + a]);
      }
      ASSERT_EQ(sum, 0);
      for (int64_t b = 0; b < q; ++b) {  // S S^T = q I - J
        int64_t product = 0;
        for (int64_t c = 0; c < q; ++c) product += s[a * q + c] * s[b * q + c];
        ASSERT_EQ(product, a == b ? q - 1 : -1) << "q = " << q;
      }
    }
  }
}

// In a prime field Euler's criterion gives the quadratic character.
TEST(GaloisField, CharacterOfAPrimeField) {
  constexpr int64_t kPrime = 103;
  const std::vector<int8_t> s = JacobsthalMatrix({kPrime, 1});
  for (int64_t a = 1; a < kPrime; ++a) {
    int64_t power = 1;
    for (int64_t i = 0; i < (kPrime - 1) / 2; ++i) power = power * a % kPrime;
    EXPECT_EQ(s[a * kPrime], power == 1 ? 1 : -1);
  }
}

TEST(HadamardMatrix, EveryClaimedOrderUpTo1100) {
  int built = 0;
  for (int64_t order = -1; order <= 1100; ++order) {
    for (FactorKind kind : kKinds) {
      const TransformFactor factor = {order, kind};
      ASSERT_EQ(HasHadamard(factor), HadamardShouldExist(factor)) << order;
      if (!HasHadamard(factor)) continue;
      ExpectHadamard(factor);
      ++built;
    }
  }
  EXPECT_GT(built, 150);
}

TEST(HadamardMatrix, LargeOrders) {
  ExpectHadamard({1252, FactorKind::kPaley2}, 7);  // q = 5^4
  ExpectHadamard({1332, FactorKind::kPaley1}, 7);  // q = 11^3
  ExpectHadamard({1684, FactorKind::kPaley2}, 7);  // q = 29^2
  ExpectHadamard({2188, FactorKind::kPaley1}, 7);  // q = 3^7
  ExpectHadamard({2188, FactorKind::kPaley2}, 7);  // q = 1093
  ExpectHadamard({4092, FactorKind::kPaley1}, 7);  // q = 4091, the largest
}

TEST(HadamardMatrix, RefusesWhatItLacks) {
  for (const TransformFactor& factor :
       {TransformFactor{428, FactorKind::kStored}, TransformFactor{428, FactorKind::kPaley1},
        TransformFactor{92, FactorKind::kPaley1}, TransformFactor{12, FactorKind::kSylvester},
        TransformFactor{8192, FactorKind::kSylvester}, TransformFactor{0, FactorKind::kPaley2},
        TransformFactor{-4, FactorKind::kSylvester}}) {
    EXPECT_THROW(HadamardMatrix(factor), Error) << factor.order;
  }
}

TEST(HadamardMatrix, SylvesterIsTheNaturalOrder) {
  const std::span<const int8_t> h = HadamardMatrix({4, FactorKind::kSylvester});
  EXPECT_EQ(std::vector<int8_t>(h.begin(), h.end()),
            (std::vector<int8_t>{1, 1, 1, 1, 1, -1, 1, -1, 1, 1, -1, -1, 1, -1, -1, 1}));
}

// The matrices are part of the checkpoint format. These sums were computed when the format was
// made; a change here makes every stored checkpoint unreadable.
TEST(HadamardMatrix, MatricesAreFrozen) {
  const auto fingerprint = [](const TransformFactor& factor) {
    uint64_t hash = 0xCBF29CE484222325;  // FNV-1a
    for (int8_t entry : HadamardMatrix(factor)) {
      hash = (hash ^ static_cast<uint8_t>(entry)) * 0x100000001B3;
    }
    return hash;
  };
  EXPECT_EQ(fingerprint({12, FactorKind::kPaley1}), 0xD8EA49F40C293C85u);
  EXPECT_EQ(fingerprint({28, FactorKind::kPaley1}), 0x080D708A204567C5u);
  EXPECT_EQ(fingerprint({28, FactorKind::kPaley2}), 0x1AA6F89EE8C7DD85u);
  EXPECT_EQ(fingerprint({36, FactorKind::kPaley2}), 0x252839178859B1C5u);
  EXPECT_EQ(fingerprint({52, FactorKind::kPaley2}), 0x3C87470317CE2045u);
  EXPECT_EQ(fingerprint({172, FactorKind::kStored}), 0x1FF6A88C09CDD7F5u);
  EXPECT_EQ(fingerprint({188, FactorKind::kStored}), 0x253DE46843972545u);
  EXPECT_EQ(fingerprint({344, FactorKind::kPaley1}), 0x3ED845EFC47AC835u);
}

TEST(FactorHadamardTest, NothingForOrdersWithoutOne) {
  for (int64_t n : {-4, 0, 1, 3, 6, 14, 114, 428, 2060, 1 << 25}) {
    EXPECT_TRUE(FactorHadamard(n).empty()) << n;
  }
}

// Fewest operations by dynamic programming over products of all base orders.
TEST(FactorHadamardTest, CheapestUpTo2000) {
  constexpr int64_t kLimit = 2000;
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max() / 2;
  std::vector<int64_t> cheapest(kLimit + 1, kNone);
  for (int64_t m = 0; (1 << m) <= kLimit; ++m) cheapest[1 << m] = m;
  for (int64_t f = 4; f <= kLimit; ++f) {
    if (std::popcount(static_cast<uint64_t>(f)) == 1) continue;
    if (!HadamardShouldExist({f, FactorKind::kPaley1}) &&
        !HadamardShouldExist({f, FactorKind::kPaley2}) &&
        !HadamardShouldExist({f, FactorKind::kStored})) {
      continue;
    }
    for (int64_t n = f; n <= kLimit; n += f) {
      cheapest[n] = std::min(cheapest[n], cheapest[n / f] + f);
    }
  }
  for (int64_t n = 2; n <= kLimit; ++n) {
    const std::vector<TransformFactor> factors = FactorHadamard(n);
    if (cheapest[n] >= kNone) {
      EXPECT_TRUE(factors.empty()) << n;
      continue;
    }
    EXPECT_EQ(Product(factors), n);
    EXPECT_EQ(Operations(factors), cheapest[n]) << n;
    for (size_t i = 0; i < factors.size(); ++i) {
      EXPECT_TRUE(HasHadamard(factors[i])) << n;
      if (i + 1 == factors.size()) continue;
      EXPECT_NE(factors[i].kind, FactorKind::kSylvester) << n;
      if (factors[i + 1].kind != FactorKind::kSylvester) {
        EXPECT_GE(factors[i].order, factors[i + 1].order) << n;
      }
    }
  }
}

TEST(FactorHadamardTest, WidthsOfModels) {
  const std::map<int64_t, std::vector<int64_t>> expected = {
      {64, {64}},
      {24, {12, 2}},
      {40, {20, 2}},
      {56, {28, 2}},
      {1376, {172, 8}},
      {688, {172, 4}},
      {896, {28, 32}},
      {3072, {12, 256}},
      {3584, {28, 128}},
      {4096, {4096}},
      {4864, {76, 64}},
      {5120, {20, 256}},
      {5632, {44, 128}},
      {8960, {28, 20, 16}},
      {9728, {76, 128}},
      {11008, {172, 64}},
      {13824, {12, 12, 12, 8}},
      {14336, {28, 512}},
      {17408, {68, 256}},
      {17920, {28, 20, 32}},
      {18944, {148, 128}},
      {25600, {20, 20, 64}},
      {27648, {12, 12, 12, 16}},
      {28672, {28, 1024}},
      {29568, {44, 28, 12, 2}},
  };
  for (const auto& [n, orders] : expected) {
    std::vector<int64_t> found;
    for (const TransformFactor& factor : FactorHadamard(n)) found.push_back(factor.order);
    EXPECT_EQ(found, orders) << n;
  }
}

// The documented choice where several constructions or lists cost the same.
TEST(FactorHadamardTest, TiesAreBrokenAsDocumented) {
  using enum FactorKind;
  using Factors = std::vector<TransformFactor>;
  EXPECT_EQ(FactorHadamard(28), (Factors{{28, kPaley1}}));  // q = 27; Paley II has q = 13
  EXPECT_EQ(FactorHadamard(36), (Factors{{36, kPaley2}}));
  EXPECT_EQ(FactorHadamard(688), (Factors{{172, kStored}, {4, kSylvester}}));
  // 108 + 100 + 44 = 132 + 60 + 60.
  EXPECT_EQ(FactorHadamard(475200), (Factors{{132, kPaley1}, {60, kPaley1}, {60, kPaley1}}));
  // 140 + 108 + 52 = 156 + 84 + 60.
  EXPECT_EQ(FactorHadamard(786240), (Factors{{156, kStored}, {84, kPaley1}, {60, kPaley1}}));
}

TEST(FactorHadamardTest, LargeWidthsAreFast) {
  for (int64_t n = (1 << 20) - 400; n <= 1 << 20; ++n) {
    const std::vector<TransformFactor> factors = FactorHadamard(n);
    if (!factors.empty()) {
      EXPECT_EQ(Product(factors), n);
    }
  }
}

}  // namespace
}  // namespace nibble
