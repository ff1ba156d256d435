// SPDX-License-Identifier: Apache-2.0
#include "transforms/blas.h"

#include <gtest/gtest.h>

#include "base/thread_pool.h"
#include "tensor/random_testing.h"

namespace nibble {
namespace {

// The rows make three tasks, the last of which has few.
TEST(Multiply, IsTheSumOfProductsWhateverTheNumberOfThreads) {
  constexpr int64_t kRows = 261, kInner = 96, kCols = 37;
  Rng rng(1);
  const Matrix<double> a = RandomMatrix(kRows, kInner, rng), b = RandomMatrix(kInner, kCols, rng);
  Matrix<double> turned(kCols, kInner);
  for (int64_t k = 0; k < kInner; ++k) {
    for (int64_t n = 0; n < kCols; ++n) turned.row(n)[k] = b.row(k)[n];
  }
  const Matrix<double> before = RandomMatrix(kRows, kCols, rng);
  for (const bool is_turned : {false, true}) {
    Matrix<double> product = before, alone = before;
    SetThreads(3);
    PrepareBlas();
    Multiply(a, is_turned ? turned : b, is_turned, product, -0.5, 1.5);
    SetThreads(1);
    Multiply(a, is_turned ? turned : b, is_turned, alone, -0.5, 1.5);
    EXPECT_EQ(product.data, alone.data);
    for (int64_t m = 0; m < kRows; ++m) {
      for (int64_t n = 0; n < kCols; ++n) {
        double sum = 0;
        for (int64_t k = 0; k < kInner; ++k) sum += a.row(m)[k] * b.row(k)[n];
        // Half of two sums of 96 products of normal numbers below 6, each rounded 96 times, and two
        // roundings more.
        ASSERT_NEAR(product.row(m)[n], 1.5 * before.row(m)[n] - 0.5 * sum, 98 * 0x1p-53 * 96 * 36);
      }
    }
  }
  SetThreads(0);
}

}  // namespace
}  // namespace nibble
