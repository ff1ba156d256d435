// SPDX-License-Identifier: Apache-2.0
#include "transforms/orthogonal.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tensor/random_testing.h"

namespace nibble {
namespace {

// Both kinds of rotation as a plain matrix: column j is R e_j.
Matrix<double> AsMatrix(const ResidualRotation& rotation) {
  Matrix<double> identity = IdentityMatrix(rotation.width());
  rotation.ApplyToColumns(identity);
  return identity;
}

// Householder QR is backward stable: the error of an element of Q^T Q is below a small multiple of
// n eps; 10 n eps leaves room for the blocked variants and is far below any real fault.
double OrthogonalTolerance(int64_t n) {
  return 10 * static_cast<double>(n) * 0x1p-52;
}

void ExpectOrthogonal(const Matrix<double>& q) {
  for (int64_t a = 0; a < q.rows; ++a) {
    for (int64_t b = 0; b <= a; ++b) {
      double sum = 0;
      for (int64_t j = 0; j < q.cols; ++j) sum += q.row(a)[j] * q.row(b)[j];
      ASSERT_NEAR(sum, a == b ? 1.0 : 0.0, OrthogonalTolerance(q.rows)) << a << ", " << b;
    }
  }
}

TEST(IsOrthogonal, FindsWhatIsNot) {
  Rng rng(4);
  const Matrix<double> q = RandomOrthogonal(40, rng);
  EXPECT_TRUE(IsOrthogonal(q));
  EXPECT_TRUE(IsOrthogonal(IdentityMatrix(3)));
  const auto changed = [&](const auto& change) {
    Matrix<double> other = q;
    change(other.data);
    return IsOrthogonal(other);
  };
  EXPECT_FALSE(changed([](auto& v) { v[7] += 1e-3; }));
  EXPECT_FALSE(changed([](auto& v) { v[7] = -v[7]; }));
  EXPECT_FALSE(changed([](auto& v) { v[0] = std::nan(""); }));
  EXPECT_FALSE(changed([](auto& v) { v.assign(v.size(), 0); }));
  EXPECT_FALSE(changed([](auto& v) {
    for (double& x : v) x *= 1.01;
  }));
  EXPECT_FALSE(IsOrthogonal(Matrix<double>(2, 3)));
}

TEST(RandomOrthogonalTest, IsOrthogonalAndReproducible) {
  for (int64_t n : {1, 2, 7, 96, 250}) {
    Rng rng(n), again(n), other(n + 1);
    const Matrix<double> q = RandomOrthogonal(n, rng);
    ExpectOrthogonal(q);
    EXPECT_EQ(q.data, RandomOrthogonal(n, again).data);
    if (n > 1) {
      EXPECT_NE(q.data, RandomOrthogonal(n, other).data);
    }
  }
}

// Under the Haar measure entries have mean 0 and variance 1/n, the trace mean 0 and variance 1.
// Without the sign fix the trace of Householder's Q is biased. 400 samples: 5 standard errors.
TEST(RandomOrthogonalTest, DistributionIsHaar) {
  constexpr int64_t kN = 6;
  constexpr int kSamples = 400;
  Rng rng(42);
  double trace = 0, trace_squared = 0, first = 0;
  for (int s = 0; s < kSamples; ++s) {
    const Matrix<double> q = RandomOrthogonal(kN, rng);
    double t = 0;
    for (int64_t i = 0; i < kN; ++i) t += q.row(i)[i];
    trace += t / kSamples;
    trace_squared += t * t / kSamples;
    first += q.row(0)[0] / kSamples;
  }
  EXPECT_NEAR(trace, 0, 5 / std::sqrt(kSamples));
  EXPECT_NEAR(trace_squared, 1, 5 * std::sqrt(2.0 / kSamples));  // the trace is nearly Gaussian
  EXPECT_NEAR(first, 0, 5 / std::sqrt(kN * kSamples));
}

class ResidualRotationTest : public testing::TestWithParam<bool> {
 protected:
  static constexpr int64_t kWidth = 96;
  ResidualRotation Rotation(Rng& rng) const {
    if (GetParam()) return {.dense = RandomOrthogonal(kWidth, rng)};
    return {.hadamard = FullHadamard(kWidth), .signs = rng.Signs(kWidth)};
  }
};

TEST_P(ResidualRotationTest, MatchesItsMatrix) {
  Rng rng(7);
  const ResidualRotation rotation = Rotation(rng);
  ASSERT_EQ(rotation.width(), kWidth);
  const Matrix<double> r = AsMatrix(rotation);
  ExpectOrthogonal(r);
  const Matrix<double> readers = RandomMatrix(11, kWidth, rng);
  const Matrix<double> writers = RandomMatrix(kWidth, 13, rng);
  Matrix<double> rotated_readers = readers, rotated_writers = writers;
  rotation.ApplyToRows(rotated_readers);
  rotation.ApplyToColumns(rotated_writers);
  // Sums of 96 products of a unit vector with normal numbers: |error| < 2 * 96 eps * 96 * 6.
  constexpr double kTolerance = 2 * 96 * 0x1p-52 * 96 * 6;
  for (int64_t i = 0; i < kWidth; ++i) {
    for (int64_t n = 0; n < readers.rows; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < kWidth; ++k) sum += readers.row(n)[k] * r.row(i)[k];
      EXPECT_NEAR(rotated_readers.row(n)[i], sum, kTolerance);
    }
    for (int64_t n = 0; n < writers.cols; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < kWidth; ++k) sum += r.row(i)[k] * writers.row(k)[n];
      EXPECT_NEAR(rotated_writers.row(i)[n], sum, kTolerance);
    }
  }
}

TEST_P(ResidualRotationTest, ReaderOfWriterIsUnchanged) {
  Rng rng(8);
  const ResidualRotation rotation = Rotation(rng);
  Matrix<double> reader = RandomMatrix(4, kWidth, rng), writer = RandomMatrix(kWidth, 5, rng);
  const auto product = [&](int64_t i, int64_t j) {
    double sum = 0;
    for (int64_t k = 0; k < kWidth; ++k) sum += reader.row(i)[k] * writer.row(k)[j];
    return sum;
  };
  std::vector<double> before, after;
  for (int64_t i = 0; i < 20; ++i) before.push_back(product(i / 5, i % 5));
  rotation.ApplyToRows(reader);
  rotation.ApplyToColumns(writer);
  for (int64_t i = 0; i < 20; ++i) after.push_back(product(i / 5, i % 5));
  // Two rotations with relative error below 2 * 96 eps each on vectors of norm below 20.
  for (int64_t i = 0; i < 20; ++i) EXPECT_NEAR(after[i], before[i], 4 * 96 * 0x1p-52 * 400);
}

INSTANTIATE_TEST_SUITE_P(Kinds, ResidualRotationTest, testing::Bool(),
                         [](const auto& kind) { return kind.param ? "Dense" : "Hadamard"; });

}  // namespace
}  // namespace nibble
