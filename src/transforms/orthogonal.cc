// SPDX-License-Identifier: Apache-2.0
#include "transforms/orthogonal.h"

#include <lapacke.h>

#include <cmath>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/thread_pool.h"
#include "transforms/blas.h"

namespace nibble {
namespace {

void RequireDone(lapack_int info, const char* routine) {
  if (info == LAPACK_WORK_MEMORY_ERROR) throw std::bad_alloc();
  NIBBLE_CHECK(info == 0, "{}: {}", routine, info);
}

}  // namespace

Matrix<double> RandomOrthogonal(int64_t n, Rng& rng) {
  Matrix<double> q(n, n);
  for (double& value : q.data) value = rng.Normal();
  const auto size = static_cast<lapack_int>(n);
  std::vector<double> tau(static_cast<size_t>(n));
  // Column-major to LAPACK, so the result is the transpose, which is as random.
  lapack_int info = LAPACKE_dgeqrf(LAPACK_COL_MAJOR, size, size, q.data.data(), size, tau.data());
  RequireDone(info, "dgeqrf");
  std::vector<double> signs;
  for (int64_t i = 0; i < n; ++i) signs.push_back(q.row(i)[i] < 0 ? -1.0 : 1.0);
  info = LAPACKE_dorgqr(LAPACK_COL_MAJOR, size, size, size, q.data.data(), size, tau.data());
  RequireDone(info, "dorgqr");
  for (int64_t i = 0; i < n; ++i) {
    for (double& value : q.row(i)) value *= signs[i];
  }
  return q;
}

bool IsOrthogonal(const Matrix<double>& q) {
  if (q.rows != q.cols) return false;
  Rng rng(1);
  for (int trial = 0; trial < 2; ++trial) {
    const auto n = static_cast<size_t>(q.rows);
    std::vector<double> x(n), back(n, 0);
    for (double& v : x) v = rng.Below(2) == 0 ? -1 : 1;
    for (int64_t i = 0; i < q.rows; ++i) {
      const auto row = q.row(i);
      double product = 0;  // of Q x
      for (size_t k = 0; k < n; ++k) product += row[k] * x[k];
      for (size_t k = 0; k < n; ++k) back[k] += row[k] * product;
    }
    for (size_t k = 0; k < n; ++k) {
      if (!(std::abs(back[k] - x[k]) < 1e-6)) return false;
    }
  }
  return true;
}

Matrix<double> IdentityMatrix(int64_t n) {
  Matrix<double> identity(n, n);
  for (int64_t i = 0; i < n; ++i) identity.row(i)[i] = 1;
  return identity;
}

void ResidualRotation::ApplyToRows(Matrix<double>& w) const {
  const int64_t n = width();
  NIBBLE_CHECK(w.cols == n, "{} vs {}", w.cols, n);
  if (!dense.data.empty()) {
    Matrix<double> product(w.rows, n);
    Multiply(w, dense, true, product);
    w = std::move(product);
    return;
  }
  NIBBLE_CHECK(static_cast<int64_t>(signs.size()) == n, "{} vs {}", signs.size(), n);
  ParallelFor(static_cast<size_t>(w.rows), [&](size_t i) {
    const auto row = w.row(static_cast<int64_t>(i));
    for (int64_t j = 0; j < n; ++j) row[j] *= signs[j];
  });
  ApplyTransformToRows(hadamard, w);
}

void ResidualRotation::ApplyToColumns(Matrix<double>& w) const {
  const int64_t n = width();
  NIBBLE_CHECK(w.rows == n, "{} vs {}", w.rows, n);
  if (!dense.data.empty()) {
    Matrix<double> product(n, w.cols);
    Multiply(dense, w, false, product);
    w = std::move(product);
    return;
  }
  NIBBLE_CHECK(static_cast<int64_t>(signs.size()) == n, "{} vs {}", signs.size(), n);
  ParallelFor(static_cast<size_t>(n), [&](size_t i) {
    for (double& value : w.row(static_cast<int64_t>(i))) value *= signs[i];
  });
  ApplyTransformToColumns(hadamard, w);
}

}  // namespace nibble
