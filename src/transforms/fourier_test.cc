// SPDX-License-Identifier: Apache-2.0
#include "transforms/fourier.h"

#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <numbers>
#include <thread>
#include <tuple>

#include "base/rng.h"
#include "nibble/error.h"
#include "transforms/hadamard.h"

namespace nibble {
namespace {

using Wide = std::complex<long double>;

constexpr FactorKind kKind = FactorKind::kFourier;

// e^(2 pi i turns)
Wide Turned(long double turns) {
  const long double angle = 2 * std::numbers::pi_v<long double> * turns;
  return {std::cos(angle), std::sin(angle)};
}

// The transform of x by the definition in the header, over sqrt(m), by sums over all j: for each
// k from 0, `step` apart.
std::vector<Wide> ByDefinition(const std::vector<double>& x, size_t step) {
  const size_t m = x.size() / 2;
  Rng rng(x.size());
  std::vector<Wide> z, roots, y;
  for (size_t j = 0; j < m; ++j) {
    z.push_back(Wide(x[2 * j], x[2 * j + 1]) * Turned(rng.Uniform()));
    roots.push_back(Turned(-static_cast<long double>(j) / static_cast<long double>(m)));
  }
  for (size_t k = 0; k < m; k += step) {
    Wide sum = 0;
    for (size_t j = 0, at = 0; j < m; ++j, at = (at + k) % m) sum += z[j] * roots[at];
    y.push_back(sum / std::sqrt(static_cast<long double>(m)));
  }
  return y;
}

std::vector<double> Normals(int64_t n, uint64_t seed) {
  Rng rng(seed, 7);
  std::vector<double> x(static_cast<size_t>(n));
  for (double& value : x) value = rng.Normal();
  return x;
}

double Length(const std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}

// An output has a term from each of n inputs, which passes at most two roundings of an addition or
// a product for each of operations(); errors of the angles, two, and of the scale are below that.
// Outputs are about as long as inputs, so that 2^-53 times the length bounds one rounding.
double FourierTolerance(const TransformSpec& spec, const std::vector<double>& x) {
  return 2 * spec.operations() * 0x1p-53 * Length(x);
}

void ExpectDefinition(int64_t n, size_t step) {
  const TransformSpec spec = {.factors = {{n, kKind}}};
  const std::vector<double> x = Normals(n, static_cast<uint64_t>(n));
  std::vector<double> y = x;
  ApplyTransform(spec, y);
  const std::vector<Wide> expected = ByDefinition(x, step);
  const double tolerance = FourierTolerance(spec, x);
  for (size_t i = 0; i < expected.size(); ++i) {
    const size_t k = 2 * i * step;
    ASSERT_NEAR(y[k], static_cast<double>(expected[i].real()), tolerance) << n << ", " << k;
    ASSERT_NEAR(y[k + 1], static_cast<double>(expected[i].imag()), tolerance) << n << ", " << k;
  }
  ASSERT_NEAR(Length(y), Length(x), tolerance) << n;
  ApplyTransform(Inverse(spec), y);
  for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(y[i], x[i], 2 * tolerance) << n;
}

TEST(Fourier, IsTheSumOfItsDefinitionForSmallOrders) {
  for (int64_t n = 2; n <= 400; n += 2) {
    ExpectDefinition(n, 1);
    ASSERT_FALSE(HasFatalFailure());
  }
}

TEST(Fourier, IsTheSumOfItsDefinitionForWidthsOfModels) {
  for (const int64_t n :
       {576,   640,   1536,  2048,  2560,  4096,  4864,  5120,  8192,     8960, 9728,
        11008, 13824, 14336, 18944, 25600, 27648, 28672, 29568, 2 * 5003, 65536}) {
    ExpectDefinition(n, n < 4096 ? 1 : 211);
    ASSERT_FALSE(HasFatalFailure());
  }
}

// Each output in fp32 is the one in fp64, rounded.
TEST(Fourier, SinglePrecisionIsRoundedOnce) {
  for (const int64_t n : {2, 86, 576, 11008}) {
    for (const bool transposed : {false, true}) {
      const TransformFactor factor = {n, kKind, transposed};
      std::vector<double> wide = Normals(4 * n, 5);
      for (double& value : wide) value = static_cast<float>(value);
      std::vector<float> x(wide.begin(), wide.end());
      ApplyFourier(factor, 2, 0.37, std::span(wide));
      ApplyFourier(factor, 2, 0.37, std::span(x));
      for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(x[i], static_cast<float>(wide[i])) << n;
    }
  }
}

// All rows of the matrix and its transposed, which FactorMatrix builds without an FFT.
TEST(Fourier, MatrixIsOrthogonalAndTheTransforms) {
  for (const int64_t n : {2, 4, 6, 16, 58, 90, 128, 172, 344}) {
    for (const bool transposed : {false, true}) {
      const TransformFactor factor = {n, kKind, transposed};
      ASSERT_EQ(SquaredLength(factor), n / 2);
      const std::span<const double> matrix = FactorMatrix(factor);
      for (int64_t j = 0; j < n; ++j) {
        std::vector<double> unit(static_cast<size_t>(n), 0);
        unit[static_cast<size_t>(j)] = 1;
        ApplyFourier(factor, 1, 1, std::span(unit));
        for (int64_t i = 0; i < n; ++i) {
          ASSERT_NEAR(matrix[i * n + j], unit[static_cast<size_t>(i)], 1e-14) << n;
          double product = 0;
          for (int64_t k = 0; k < n; ++k) product += matrix[i * n + k] * matrix[j * n + k];
          ASSERT_NEAR(product, i == j ? static_cast<double>(n) / 2 : 0, 1e-12) << n;
        }
      }
    }
  }
}

TEST(Fourier, SpreadsOneValueOverAllPairs) {
  constexpr int64_t kOrder = 11008;
  std::vector<double> x(kOrder, 0);
  x[4711] = 1;
  ApplyFourier({kOrder, kKind}, 1, 1, std::span(x));
  for (size_t k = 0; k < x.size(); k += 2) ASSERT_NEAR(std::hypot(x[k], x[k + 1]), 1, 1e-13);
}

// Threads share nothing that they write: 43 has no butterfly of its own.
TEST(Fourier, ThreadsAgree) {
  const TransformFactor factor = {2 * 43 * 8, kKind};
  const std::vector<double> x = Normals(factor.order, 3);
  std::vector<double> expected = x;
  ApplyFourier(factor, 1, 1, std::span(expected));
  std::vector<std::vector<double>> results(4, x);
  std::vector<std::thread> threads;
  for (std::vector<double>& own : results) {
    threads.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        own = x;
        ApplyFourier(factor, 1, 1, std::span(own));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<double>& own : results) EXPECT_EQ(own, expected);
}

// The phases are part of the checkpoint format: these are the first two of order 11008.
TEST(Fourier, PhasesAreFrozen) {
  const TransformFactor factor = {11008, kKind};
  for (const auto& [j, re, im] : {std::tuple{0, 0.9207825576036275, -0.3900762510239792},
                                  std::tuple{1, -0.7906937660463882, -0.612211865562388}}) {
    std::vector<double> x(11008, 0);
    x[static_cast<size_t>(2 * j)] = 1;
    ApplyFourier(factor, 1, 1, std::span(x));
    EXPECT_NEAR(x[0], re, 1e-12);
    EXPECT_NEAR(x[1], im, 1e-12);
  }
}

TEST(Fourier, RefusesOddOrdersAndLargeOnes) {
  EXPECT_TRUE(HasFactor({2, kKind}));
  EXPECT_TRUE(HasFactor({kMaxFourierOrder, kKind}));
  for (const int64_t n :
       {int64_t{-2}, int64_t{0}, int64_t{1}, int64_t{3}, int64_t{11007}, kMaxFourierOrder + 2}) {
    EXPECT_FALSE(HasFactor({n, kKind})) << n;
    EXPECT_THROW(FactorMatrix({n, kKind}), Error) << n;
  }
  EXPECT_THROW(FactorMatrix({kMaxFactorOrder + 2, kKind}), Error) << "no dense matrix";
}

}  // namespace
}  // namespace nibble
