// SPDX-License-Identifier: Apache-2.0
#include "transforms/hadamard.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "base/rng.h"
#include "base/thread_pool.h"
#include "nibble/error.h"
#include "tensor/random_testing.h"

namespace nibble {
namespace {

using Dense = Matrix<long double>;

Dense Kronecker(const Dense& a, const Dense& b) {
  Dense product(a.rows * b.rows, a.cols * b.cols);
  for (int64_t i = 0; i < product.rows; ++i) {
    for (int64_t j = 0; j < product.cols; ++j) {
      product.row(i)[j] = a.row(i / b.rows)[j / b.cols] * b.row(i % b.rows)[j % b.cols];
    }
  }
  return product;
}

Dense Identity(int64_t n) {
  Dense matrix(n, n);
  for (int64_t i = 0; i < n; ++i) matrix.row(i)[i] = 1;
  return matrix;
}

// M, by the definition in the header.
Dense DenseTransform(const TransformSpec& spec) {
  Dense matrix = Identity(spec.outer);
  for (const TransformFactor& factor : spec.factors) {
    Dense h(factor.order, factor.order);
    const std::span<const double> entries = FactorMatrix(factor);
    long double squared = 0;  // length of the first row, and so of each
    for (int64_t i = 0; i < factor.order; ++i) {
      squared += static_cast<long double>(entries[i]) * entries[i];
    }
    for (size_t i = 0; i < entries.size(); ++i) h.data[i] = entries[i] / std::sqrt(squared);
    matrix = Kronecker(matrix, h);
  }
  return Kronecker(matrix, Identity(spec.inner));
}

template <typename T>
std::vector<T> RandomValues(size_t n, Rng& rng) {
  std::vector<T> values(n);
  for (T& value : values) value = static_cast<T>(rng.Normal());
  return values;
}

// An element is a sum of signed inputs times one scale. An input passes at most operations()
// roundings of additions, one of the scale and one of the product. Entries that are not whole add
// two for each factor. 1.01 covers higher powers of eps and the reference's own rounding.
// absolute_sum is sum |M| |x|.
template <typename T>
double Tolerance(const TransformSpec& spec, long double absolute_sum) {
  const double roundings = spec.operations() + 2 + 2 * static_cast<double>(spec.factors.size());
  return static_cast<double>(1.01L * roundings * std::numeric_limits<T>::epsilon() / 2 *
                             absolute_sum);
}

const std::vector<TransformSpec>& Specs() {
  using enum FactorKind;
  static const std::vector<TransformSpec> specs = {
      {.factors = {{2, kSylvester}}},
      {.factors = {{64, kSylvester}}, .outer = 3},
      {.factors = {{8, kSylvester}}, .outer = 2, .inner = 5},
      {.factors = {{12, kPaley1}}},
      {.factors = {{28, kPaley1}}, .inner = 16},
      {.factors = {{36, kPaley2}, {4, kSylvester}}},
      {.factors = {{20, kPaley1}, {12, kPaley1}, {2, kSylvester}}},
      {.factors = {{12, kPaley1}, {20, kPaley1}}, .outer = 2, .inner = 3},
      {.factors = {{92, kStored}, {8, kSylvester}}},
      {.factors = {{172, kStored}}, .outer = 2, .inner = 2},
      {.factors = {{188, kStored}, {4, kSylvester}}},
      {.factors = {{9, kJacobsthal}}, .inner = 64},
      {.factors = {{14, kConference}}, .outer = 2, .inner = 7},
      {.factors = {{7, kJacobsthal}, {12, kPaley1}, {2, kSylvester}}},
      {.factors = {{15, kHartley}}, .outer = 3},
      *RandomKronecker(36),
      {.factors = {{2, kFourier}}, .outer = 2, .inner = 3},
      {.factors = {{86, kFourier}}, .outer = 2},
      {.factors = {{7, kJacobsthal}, {12, kFourier, true}, {4, kSylvester}}, .inner = 2},
      {.factors = {{7, kJacobsthal, true}, {5, kJacobsthal}}, .inner = 3},
      {.outer = 7},
  };
  return specs;
}

template <typename T>
void ExpectMatchesDense(const TransformSpec& spec, Rng& rng) {
  const Dense m = DenseTransform(spec);
  ASSERT_EQ(m.rows, spec.width());
  const std::vector<T> x = RandomValues<T>(static_cast<size_t>(m.rows), rng);
  std::vector<T> y = x;
  ApplyTransform(spec, y);
  for (int64_t i = 0; i < m.rows; ++i) {
    long double sum = 0, absolute_sum = 0;
    for (int64_t j = 0; j < m.cols; ++j) {
      sum += m.row(i)[j] * x[j];
      absolute_sum += std::abs(m.row(i)[j] * x[j]);
    }
    ASSERT_NEAR(y[i], static_cast<double>(sum), Tolerance<T>(spec, absolute_sum))
        << ToJson(spec).dump() << " element " << i;
  }
}

TEST(TransformTest, MatchesTheDenseKroneckerProduct) {
  Rng rng(1);
  for (const TransformSpec& spec : Specs()) {
    ExpectMatchesDense<double>(spec, rng);
    ExpectMatchesDense<float>(spec, rng);
  }
}

// Integers come out exactly where 1 / sqrt(order) is a power of 2, so nothing can hide behind a
// tolerance: y = H x / 16 for order 256 and H = H_4 (x) H_64.
TEST(TransformTest, ExactOnIntegers) {
  const TransformSpec spec = {.factors = {{256, FactorKind::kSylvester}}};
  Rng rng(2);
  std::vector<double> x(256);
  for (double& value : x) value = static_cast<double>(rng.Below(2001)) - 1000;
  std::vector<double> y = x;
  ApplyTransform(spec, y);
  const std::span<const int8_t> h = HadamardMatrix(spec.factors[0]);
  for (int i = 0; i < 256; ++i) {
    double sum = 0;
    for (int j = 0; j < 256; ++j) sum += h[i * 256 + j] * x[j];
    EXPECT_EQ(y[i], sum / 16);
  }
}

TEST(TransformTest, RowsAreTransformedOneByOne) {
  Rng rng(3);
  for (const TransformSpec& spec : Specs()) {
    Matrix<double> w = RandomMatrix(5, spec.width(), rng);
    const Matrix<double> original = w;
    ApplyTransformToRows(spec, w);
    for (int64_t i = 0; i < w.rows; ++i) {
      std::vector<double> row(original.row(i).begin(), original.row(i).end());
      ApplyTransform(spec, row);
      EXPECT_EQ(row, std::vector<double>(w.row(i).begin(), w.row(i).end()));
    }
  }
}

TEST(TransformTest, ColumnsAreTransformedOneByOne) {
  Rng rng(4);
  for (const TransformSpec& spec : Specs()) {
    for (int64_t cols : {1, 7, 16, 37}) {
      Matrix<double> w = RandomMatrix(spec.width(), cols, rng);
      const Matrix<double> original = w;
      ApplyTransformToColumns(spec, w);
      for (int64_t j = 0; j < cols; ++j) {
        std::vector<double> column;
        for (int64_t i = 0; i < w.rows; ++i) column.push_back(original.row(i)[j]);
        ApplyTransform(spec, column);
        for (int64_t i = 0; i < w.rows; ++i) ASSERT_EQ(w.row(i)[j], column[i]);
      }
    }
  }
}

// (W M^T) (M x) = W x, whether or not H is symmetric. Each of the two transforms perturbs its
// vector by at most Tolerance (in the maximum norm, times the largest element), which the product
// then sums over the width.
TEST(TransformTest, InputTransformCancelsAgainstFoldedWeights) {
  Rng rng(5);
  for (const TransformSpec& spec : Specs()) {
    const int64_t n = spec.width();
    Matrix<double> w = RandomMatrix(3, n, rng);
    std::vector<double> x = RandomValues<double>(static_cast<size_t>(n), rng);
    std::vector<double> expected(3, 0);
    for (int64_t i = 0; i < 3; ++i) {
      for (int64_t j = 0; j < n; ++j) expected[i] += w.row(i)[j] * x[j];
    }
    ApplyTransformToRows(spec, w);
    ApplyTransform(spec, x);
    for (int64_t i = 0; i < 3; ++i) {
      double sum = 0, norm_w = 0, norm_x = 0;
      for (int64_t j = 0; j < n; ++j) {
        sum += w.row(i)[j] * x[j];
        norm_w += w.row(i)[j] * w.row(i)[j];
        norm_x += x[j] * x[j];
      }
      // |M| |x| has 2-norm at most sqrt(order) |x|; both dot products add n roundings.
      const double norms = std::sqrt(norm_w * norm_x);
      const double order = static_cast<double>(spec.order());
      const double tolerance = 2 * Tolerance<double>(spec, std::sqrt(order) * norms) +
                               static_cast<double>(n) * 0x1p-52 * norms;
      EXPECT_NEAR(sum, expected[i], tolerance) << ToJson(spec).dump();
    }
  }
}

TEST(TransformTest, ResultsDoNotDependOnTheNumberOfThreads) {
  Rng rng(6);
  const TransformSpec spec = FullHadamard(1376);
  const Matrix<double> w = RandomMatrix(1376, 50, rng);
  std::vector<Matrix<double>> results;
  for (int threads : {1, 3}) {
    SetThreads(threads);
    results.push_back(w);
    ApplyTransformToColumns(spec, results.back());
  }
  SetThreads(0);
  EXPECT_EQ(results[0].data, results[1].data);
}

TEST(FullHadamardTest, WholeWidthWhereItExists) {
  for (int64_t n : {2, 12, 64, 14 * 64, 1376, 4864, 11008, 29568, 6, 7, 14, 2060, 13696}) {
    const TransformSpec spec = FullHadamard(n);
    EXPECT_EQ(spec.factors, FlatFactors(n));
    EXPECT_EQ(spec.outer, 1);
    EXPECT_EQ(spec.width(), n);
  }
  EXPECT_EQ(FullHadamard(11008).operations(), 172 + 6);
  EXPECT_EQ(FullHadamard(13696).operations(), 107 + 7);
}

TEST(RandomKroneckerTest, HasTheClosestOrders) {
  using Orders = std::vector<int64_t>;
  for (const auto& [n, orders] : std::map<int64_t, Orders>{{576, {24, 24}},
                                                           {1536, {32, 48}},
                                                           {11008, {86, 128}},
                                                           {107, {107}},
                                                           {2 * 509, {2, 509}}}) {
    const std::optional<TransformSpec> spec = RandomKronecker(n);
    ASSERT_TRUE(spec) << n;
    Orders found;
    for (const TransformFactor& factor : spec->factors) found.push_back(factor.order);
    EXPECT_EQ(found, orders);
    EXPECT_EQ(TransformFromJson(ToJson(*spec), "test"), *spec);
  }
  EXPECT_FALSE(RandomKronecker(1));
  EXPECT_FALSE(RandomKronecker(2 * 521));
  EXPECT_EQ(TransformText(*RandomKronecker(1536)), "random 32 x 48");
}

// A transform spreads an outlier: sqrt(width) at one place becomes values up to the flatness of the
// matrix. Blocks of 128 in a width of 13696 would leave it 10.3 / 1.083 times as large.
TEST(FullHadamardTest, AnOutlierIsSpreadOverTheWholeWidth) {
  const std::vector<std::pair<int64_t, double>> width_and_flatness = {
      {13696, 1.0827}, {11008, 1}, {14, 1.0377}, {9, 1.3333}, {2060, 1.0841}};
  for (const auto& [width, flatness] : width_and_flatness) {
    for (const int64_t place : {int64_t{0}, width / 3, width - 1}) {
      std::vector<double> x(static_cast<size_t>(width), 0);
      x[static_cast<size_t>(place)] = std::sqrt(static_cast<double>(width));
      ApplyTransform(FullHadamard(width), x);
      const auto [low, high] = std::ranges::minmax(x);
      EXPECT_NEAR(std::max(-low, high), flatness, 1e-4) << width << " at " << place;
    }
  }
}

TEST(FullHadamardTest, BlocksWhereItDoesNot) {
  const std::vector<std::array<int64_t, 2>> width_and_order = {{1, 1},   {179, 1},    {358, 2},
                                                               {716, 4}, {12224, 64}, {895, 5}};
  for (const auto& [width, order] : width_and_order) {
    const TransformSpec spec = FullHadamard(width);
    EXPECT_EQ(spec.width(), width);
    EXPECT_EQ(spec.order(), order) << width;
    EXPECT_EQ(spec.identity(), order == 1);
    EXPECT_EQ(spec.inner, 1);
  }
}

// The factors are symmetric matrices and others (12, 172), one or several; 179 has none.
TEST(InverseTest, UndoesTheTransform) {
  Rng rng(9);
  for (const int64_t n : {64, 96, 144, 576, 688, 14, 28, 33, 179, 13696}) {
    const TransformSpec spec = FullHadamard(n);
    std::vector<double> x(static_cast<size_t>(n)), y;
    for (double& value : x) value = rng.Normal();
    y = x;
    ApplyTransform(spec, y);
    ApplyTransform(Inverse(spec), y);
    // n sums of n terms, twice, in fp64.
    for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(y[i], x[i], 1e-11) << n;
    EXPECT_EQ(Inverse(Inverse(spec)), spec);
    EXPECT_EQ(TransformFromJson(ToJson(Inverse(spec)), "x"), Inverse(spec));
  }
}

TEST(TransformJson, RoundTrip) {
  for (const TransformSpec& spec : Specs()) {
    EXPECT_EQ(TransformFromJson(ParseJson(ToJson(spec).dump(), "test"), "test"), spec);
  }
  EXPECT_EQ(ToJson(FullHadamard(1376)).dump(),
            R"({"factors":[{"order":172,"kind":"stored"},{"order":8,"kind":"sylvester"}],)"
            R"("outer":1,"inner":1})");
}

TEST(TransformJson, Texts) {
  EXPECT_EQ(TransformText(FullHadamard(1376)), "Hadamard 172 x 8");
  EXPECT_EQ(TransformText(FullHadamard(13696)), "Jacobsthal 107 x Hadamard 128");
  EXPECT_EQ(TransformText({.factors = FlatFactors(14), .inner = 64}), "conference 14 across 64");
  EXPECT_EQ(TransformText(FullHadamard(895)), "Jacobsthal 5, 179 blocks");
  EXPECT_EQ(TransformText({.factors = {{11008, FactorKind::kFourier}}}), "Fourier 11008");
  EXPECT_EQ(TransformText({}), "-");
}

TEST(TransformJson, RefusesWhatItCannotApply) {
  const auto read = [](const std::string& factors, const std::string& rest) {
    return TransformFromJson(ParseJson(R"({"factors":[)" + factors + "]," + rest + "}", "test"),
                             "test");
  };
  const std::string ones = R"("outer":1,"inner":1)";
  const std::string twelve = R"({"order":12,"kind":"paley1"})";
  const std::string two = R"({"order":2,"kind":"sylvester"})";
  EXPECT_EQ(read(twelve + "," + two, ones).order(), 24);

  EXPECT_THROW(read(R"({"order":428,"kind":"stored"})", ones), Error);
  EXPECT_THROW(read(R"({"order":24,"kind":"paley2"})", ones), Error);
  EXPECT_THROW(read(R"({"order":12,"kind":"turyn"})", ones), Error);
  EXPECT_THROW(read(R"({"order":12,"kind":"conference"})", ones), Error);
  EXPECT_THROW(read(R"({"order":15,"kind":"jacobsthal"})", ones), Error);
  EXPECT_THROW(read(R"({"order":1,"kind":"hartley"})", ones), Error);
  EXPECT_THROW(read(R"({"order":4097,"kind":"hartley"})", ones), Error);
  EXPECT_EQ(read(R"({"order":65536,"kind":"fourier"})", ones).order(), 65536);
  EXPECT_THROW(read(R"({"order":65538,"kind":"fourier"})", ones), Error);
  EXPECT_THROW(read(R"({"order":11007,"kind":"fourier"})", ones), Error);
  EXPECT_THROW(read(R"({"order":0,"kind":"fourier"})", ones), Error);
  EXPECT_THROW(read(R"({"order":-2,"kind":"fourier"})", ones), Error);
  EXPECT_THROW(read(R"({"order":12.5,"kind":"paley1"})", ones), Error);
  EXPECT_THROW(read(R"({"order":-2,"kind":"sylvester"})", ones), Error);
  EXPECT_THROW(read(R"({"order":1,"kind":"sylvester"})", ones), Error);
  EXPECT_THROW(read(R"({"order":6,"kind":"sylvester"})", ones), Error);
  EXPECT_THROW(read(R"({"order":4611686018427387904,"kind":"sylvester"})", ones), Error);
  EXPECT_THROW(read(R"({"order":12})", ones), Error);
  EXPECT_THROW(read(R"({"order":12,"kind":"paley1","signs":1})", ones), Error);
  EXPECT_THROW(read("12", ones), Error);
  EXPECT_THROW(read(two + "," + twelve, ones), Error);
  EXPECT_THROW(read(two + "," + two, ones), Error);
  EXPECT_THROW(read(two, R"("outer":0,"inner":1)"), Error);
  EXPECT_THROW(read(two, R"("outer":1,"inner":-1)"), Error);
  EXPECT_THROW(read(two, R"("outer":-1,"inner":-1)"), Error);
  EXPECT_THROW(read(two, R"("outer":1)"), Error);
  EXPECT_THROW(read(two, ones + R"(,"scale":2)"), Error);
  EXPECT_THROW(read(two, R"("outer":4294967296,"inner":4294967296)"), Error);
  EXPECT_THROW(read(two, R"("outer":1,"inner":1073741824)"), Error);
  std::string many = twelve;
  for (int i = 0; i < 30; ++i) many += "," + twelve;
  EXPECT_THROW(read(many, ones), Error);
  EXPECT_THROW(TransformFromJson(Json::array(), "test"), Error);
}

}  // namespace
}  // namespace nibble
