// SPDX-License-Identifier: Apache-2.0
#include <cblas.h>
#include <lapacke.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "base/thread_pool.h"
#include "quantize/gptq_steps.h"
#include "quantize/sweep.h"

namespace nibble {
namespace {

Matrix<double> PermuteColumns(const Matrix<double>& m, const Order& order) {
  Matrix<double> result(m.rows, m.cols);
  for (int64_t r = 0; r < m.rows; ++r) {
    for (size_t i = 0; i < order.size(); ++i) {
      result.row(r)[i] = m.row(r)[static_cast<size_t>(order[i])];
    }
  }
  return result;
}

Matrix<double> PermuteBoth(const Matrix<double>& m, const Order& order) {
  const Matrix<double> columns = PermuteColumns(m, order);
  Matrix<double> result(m.rows, m.cols);
  for (size_t i = 0; i < order.size(); ++i) {
    std::copy(columns.row(order[i]).begin(), columns.row(order[i]).end(),
              result.row(static_cast<int64_t>(i)).begin());
  }
  return result;
}

double& Diagonal(Matrix<double>& m, int64_t i) {
  return m.row(i)[static_cast<size_t>(i)];
}

// H += damp * mean(diag) * I
void AddDamping(double damp, Matrix<double>& hessian) {
  const int64_t n = hessian.cols;
  double mean = 0;
  for (int64_t i = 0; i < n; ++i) mean += Diagonal(hessian, i) / static_cast<double>(n);
  for (int64_t i = 0; i < n; ++i) Diagonal(hessian, i) += damp * mean;
}

// Upper U with H^-1 = U^T U; grows `damp` until H + damp * mean(diag) * I factors. With J the
// reversal, J H J = L L^T gives H = R R^T for the upper R = J L J, so that U = R^-1 = J L^-1 J: one
// factor and one inverse. LAPACK counts columns first and sees L^T where L is meant.
Matrix<double> InverseFactor(const Matrix<double>& hessian, double& damp) {
  const int64_t n = hessian.cols;
  const int size = static_cast<int>(n);
  for (;; damp = MoreDamping(damp)) {
    Matrix<double> u = hessian;
    AddDamping(damp, u);
    std::ranges::reverse(u.data);
    if (LAPACKE_dpotrf(LAPACK_COL_MAJOR, 'U', size, u.data.data(), size) != 0 ||
        LAPACKE_dtrtri(LAPACK_COL_MAJOR, 'U', 'N', size, u.data.data(), size) != 0) {
      continue;
    }
    std::ranges::reverse(u.data);
    for (int64_t i = 1; i < n; ++i) std::fill_n(u.row(i).begin(), i, 0.0);
    return u;
  }
}

// alpha * striu(C U^T) U, the GPTAQ term.
Matrix<double> CorrectionTerm(const Matrix<double>& correction, const Matrix<double>& u,
                              double alpha) {
  const int n = static_cast<int>(u.cols);
  Matrix<double> product(u.rows, u.cols), term(u.rows, u.cols);
  cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, n, n, 1, correction.data.data(), n,
              u.data.data(), n, 0, product.data.data(), n);
  for (int64_t i = 0; i < u.rows; ++i) std::fill_n(product.row(i).begin(), i + 1, 0.0);
  cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, alpha, product.data.data(), n,
              u.data.data(), n, 0, term.data.data(), n);
  return term;
}

// Columns rounded between two updates of the rest; group borders fall on block borders.
int64_t BlockColumns(const CodeMatrix& codes, int64_t cols, bool fixed_grids) {
  constexpr int64_t kBlock = 128;
  if (fixed_grids || codes.group() == cols) return kBlock;
  return codes.group() * std::max<int64_t>(1, kBlock / codes.group());
}

struct Problem {
  const Matrix<double>& u;
  const Matrix<double>* term;  // GPTAQ or null
  const Order& order;
  bool fixed_grids;  // grids found before rounding (per row, or act-order)
  int64_t columns;   // to round; the others, the tail, only take up errors
};

// Rounds column i of row n, `w` being what became of that row, and updates the columns before
// `end`. `kept` holds what stays of four columns of a sparse row from the first of them on. Returns
// the error, in units of U_ii.
double RoundWeight(const Problem& p, int64_t n, int64_t i, int64_t end, std::span<double> w,
                   uint32_t& kept, CodeMatrix& codes) {
  const double value = w[static_cast<size_t>(i)];
  const auto u = p.u.row(i);
  if (codes.sparse() && i % 4 == 0) {
    // SparseGPT (Frantar and Alistarh 2023): what pruning a column costs once the others make up
    // for it.
    std::array<double, 4> costs;
    for (int64_t j = 0; j < 4; ++j) {
      const double cost =
          w[static_cast<size_t>(i + j)] / p.u.row(i + j)[static_cast<size_t>(i + j)];
      costs[static_cast<size_t>(j)] = cost * cost;
    }
    kept = LargestTwo(costs);
  }
  const int64_t column = p.order[static_cast<size_t>(i)];
  const double rounded =
      (kept >> i % 4 & 1) != 0 ? codes.Set(n, column, value) : codes.Prune(n, column);
  const double error = (value - rounded) / u[static_cast<size_t>(i)];
  const auto at = static_cast<size_t>(i), count = static_cast<size_t>(end - i);
  AddScaled(-error, u.subspan(at, count), &w[at]);
  if (p.term != nullptr) AddScaled(value, p.term->row(i).subspan(at, count), &w[at]);
  return error;
}

// Rounds rows [first, first + rows.rows) of the matrix; `rows` is their working copy.
void RoundRows(const Problem& p, int64_t first, Matrix<double>& rows, CodeMatrix& codes) {
  const int64_t cols = rows.cols, block = BlockColumns(codes, p.columns, p.fixed_grids);
  Matrix<double> errors(rows.rows, block), values(rows.rows, block);
  std::vector<uint32_t> kept(static_cast<size_t>(rows.rows), ~0u);
  for (int64_t begin = 0; begin < p.columns; begin += block) {
    const int64_t end = std::min(begin + block, p.columns);
    for (int64_t r = 0; r < rows.rows; ++r) {
      const auto w = rows.row(r);
      for (int64_t i = begin; i < end; ++i) {
        if (!p.fixed_grids && i % codes.group() == 0) codes.FindGridOf(first + r, i, w);
        values.row(r)[static_cast<size_t>(i - begin)] = w[static_cast<size_t>(i)];
        errors.row(r)[static_cast<size_t>(i - begin)] =
            RoundWeight(p, first + r, i, end, w, kept[static_cast<size_t>(r)], codes);
      }
    }
    const auto update = [&](double sign, const Matrix<double>& left, const Matrix<double>& right) {
      cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, static_cast<int>(rows.rows),
                  static_cast<int>(cols - end), static_cast<int>(end - begin), sign,
                  left.data.data(), static_cast<int>(block),
                  &right.data[static_cast<size_t>(begin * cols + end)], static_cast<int>(cols), 1,
                  rows.data.data() + end, static_cast<int>(cols));
    };
    if (end == cols) break;
    update(-1, errors, p.u);
    if (p.term != nullptr) update(1, values, *p.term);
  }
}

// What the codes mean minus w.
Matrix<double> Errors(const Matrix<double>& w, const Rounded& rounded) {
  const Matrix<float> decoded = DecodeBoth(rounded.weights, rounded.tail);
  Matrix<double> errors(w.rows, w.cols);
  for (size_t i = 0; i < errors.data.size(); ++i) {
    errors.data[i] = static_cast<double>(decoded.data[i]) - w.data[i];
  }
  return errors;
}

// tr(M T M^T); T is triangular, what lies below its diagonal is not read.
double Power(const Matrix<double>& m, const Matrix<double>& upper) {
  constexpr int64_t kRows = 64;  // of one task
  std::vector<double> sums(static_cast<size_t>((m.rows + kRows - 1) / kRows));
  const int n = static_cast<int>(m.cols);
  ParallelFor(sums.size(), [&](size_t task) {
    const int64_t first = static_cast<int64_t>(task) * kRows;
    const std::span<const double> rows(
        m.row(first).data(), static_cast<size_t>(std::min(kRows, m.rows - first) * m.cols));
    std::vector<double> product(rows.begin(), rows.end());
    cblas_dtrmm(CblasRowMajor, CblasRight, CblasUpper, CblasNoTrans, CblasNonUnit,
                static_cast<int>(rows.size()) / n, n, 1, upper.data.data(), n, product.data(), n);
    sums[task] = std::inner_product(product.begin(), product.end(), rows.begin(), 0.0);
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

// tr(E H E^T) / tr(W H W^T). Of a symmetric H the upper triangle with half the diagonal is enough;
// the factor of 2 cancels.
double RelativeError(const Matrix<double>& w, const Rounded& rounded, Matrix<double> hessian) {
  for (int64_t i = 0; i < hessian.rows; ++i) Diagonal(hessian, i) /= 2;
  const double total = Power(w, hessian);
  return total > 0 ? Power(Errors(w, rounded), hessian) / total : 0;
}

}  // namespace

Rounded RoundGptq(Matrix<double> w, const Matrix<double>& hessian, const Matrix<double>* correction,
                  const FormatSpec& format, const GptqOptions& options) {
  const int64_t columns = w.cols - options.tail.columns;
  CodeMatrix codes(w, columns, format);
  const bool fixed_grids = FixedGrids(format, options);
  if (fixed_grids) codes.FindGrids(w);
  const Matrix<double> original = w;
  // A column whose input was never seen would take up other columns' errors.
  Matrix<double> alive = hessian;
  std::vector<double> diagonal;
  for (int64_t i = 0; i < w.cols; ++i) {
    if (Diagonal(alive, i) == 0) {
      Diagonal(alive, i) = 1;
      for (int64_t n = 0; n < w.rows; ++n) w.row(n)[static_cast<size_t>(i)] = 0;
    }
    diagonal.push_back(Diagonal(alive, i));
  }
  const Order order = ColumnOrder(diagonal, options.act_order, options.tail.columns);
  const Matrix<double> seen = w;
  double damp = options.damp;
  const Matrix<double> u = InverseFactor(PermuteBoth(alive, order), damp);
  Matrix<double> term;
  if (correction != nullptr) {
    term = CorrectionTerm(PermuteBoth(*correction, order), u, options.gptaq);
  }
  const Problem problem = {u, correction != nullptr ? &term : nullptr, order, fixed_grids, columns};
  w = PermuteColumns(w, order);
  // Rows of one task; rounding treats them independently.
  constexpr int64_t kRows = 32;
  ParallelFor(static_cast<size_t>((w.rows + kRows - 1) / kRows), [&](size_t task) {
    const int64_t first = static_cast<int64_t>(task) * kRows;
    Matrix<double> rows(std::min(kRows, w.rows - first), w.cols);
    std::copy_n(w.row(first).begin(), rows.data.size(), rows.data.begin());
    RoundRows(problem, first, rows, codes);
    std::copy(rows.data.begin(), rows.data.end(), w.row(first).begin());  // the tail's errors
  });
  Rounded result = {.weights = codes.Pack(), .damp = damp};
  if (options.tail.columns > 0) {
    const Matrix<double> tail = Columns(w, columns, options.tail.columns);
    result.tail = RoundColumns(tail, options.tail.weights);
  }
  if (options.sweeps > 0) {
    AddDamping(damp, alive);
    Matrix<double> errors = Errors(seen, result);
    SweepCodes(alive, options.sweeps, errors, codes);
    result.weights = codes.Pack();
  }
  result.relative_error = RelativeError(original, result, hessian);
  return result;
}

}  // namespace nibble
