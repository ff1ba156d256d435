// SPDX-License-Identifier: Apache-2.0
// Rows are rounded independently, some of them in a task. What a column changes is added to those
// of its block at once and to the columns behind the block in one product.
#include "quantize/host_gptq.h"

#include <cblas.h>
#include <lapacke.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/thread_pool.h"
#include "quantize/code_matrix.h"

namespace nibble {
namespace {

constexpr int64_t kRows = 32;    // of one task
constexpr int64_t kBlock = 128;  // columns between two products with all the others

using Order = std::vector<int64_t>;

double& At(Matrix<double>& m, int64_t row, int64_t column) {
  return m.row(row)[static_cast<size_t>(column)];
}

// out[r, i] = m[r, order[i]]
Matrix<double> PermuteColumns(const Matrix<double>& m, const Order& order) {
  Matrix<double> result(m.rows, m.cols);
  for (int64_t r = 0; r < m.rows; ++r) {
    for (size_t i = 0; i < order.size(); ++i) {
      result.row(r)[i] = m.row(r)[static_cast<size_t>(order[i])];
    }
  }
  return result;
}

Matrix<double> PermuteRows(const Matrix<double>& m, const Order& order) {
  Matrix<double> result(m.rows, m.cols);
  for (size_t i = 0; i < order.size(); ++i) {
    std::ranges::copy(m.row(order[i]), result.row(static_cast<int64_t>(i)).begin());
  }
  return result;
}

// a b or a b^T.
Matrix<double> Multiply(const Matrix<double>& a, const Matrix<double>& b, bool transposed,
                        double factor) {
  Matrix<double> out(a.rows, b.cols);
  const int n = static_cast<int>(b.cols);
  cblas_dgemm(CblasRowMajor, CblasNoTrans, transposed ? CblasTrans : CblasNoTrans,
              static_cast<int>(a.rows), n, static_cast<int>(a.cols), factor, a.data.data(),
              static_cast<int>(a.cols), b.data.data(), n, 0, out.data.data(), n);
  return out;
}

// y += factor * x, with the machine's vectors and the same bits on every machine.
[[gnu::target_clones("avx512f", "avx2", "default")]] void AddScaled(double factor,
                                                                    std::span<const double> x,
                                                                    double* y) {
  for (size_t i = 0; i < x.size(); ++i) y[i] += factor * x[i];
}

// Runs task(first row, rows) for all rows.
template <typename Task>
void ForRows(int64_t rows, const Task& task) {
  ParallelFor(static_cast<size_t>((rows + kRows - 1) / kRows), [&](size_t i) {
    const int64_t first = static_cast<int64_t>(i) * kRows;
    task(first, std::min(kRows, rows - first));
  });
}

// The grid and the code of a weight.
struct Weight {
  Weight(const GptqRounding& r, int64_t n, int64_t column)
      : scale(r.scales[At(r, n, column)]),
        zero(r.zeros[At(r, n, column)]),
        low(-(1 << (r.bits - 1))),
        code(r.codes[static_cast<size_t>(n * r.columns + column)]) {}

  static size_t At(const GptqRounding& r, int64_t n, int64_t column) {
    return static_cast<size_t>(n * (r.columns / r.group) + column / r.group);
  }
  double value() const { return scale * (code - zero); }
  bool pruned() const { return code == zero; }
  void Set(double wanted) {
    const double nearest = std::nearbyint(wanted / scale) + zero;
    code = static_cast<int8_t>(std::clamp<double>(nearest, low, -low - 1));
  }
  void Prune() { code = static_cast<int8_t>(zero); }

  double scale;
  int zero, low;
  int8_t& code;
};

// What the codes mean in fp32, and the tail behind them, minus w.
Matrix<double> Errors(const GptqRounding& r, std::span<const double> tail,
                      const Matrix<double>& w) {
  Matrix<double> errors(w.rows, w.cols);
  const int64_t last = w.cols - r.columns;
  ForRows(w.rows, [&](int64_t first, int64_t rows) {
    for (int64_t n = first; n < first + rows; ++n) {
      for (int64_t k = 0; k < w.cols; ++k) {
        const double value = k < r.columns ? static_cast<float>(Weight(r, n, k).value())
                                           : tail[static_cast<size_t>(n * last + k - r.columns)];
        At(errors, n, k) = value - w.row(n)[static_cast<size_t>(k)];
      }
    }
  });
  return errors;
}

// Columns rounded between two updates of the rest; group borders fall on block borders.
int64_t BlockColumns(const GptqRounding& r) {
  if (!r.find_grids) return kBlock;
  return r.group * std::max<int64_t>(1, kBlock / r.group);
}

}  // namespace

void HostGptq::Add(const float* x, const float* exact, int64_t tokens) {
  hessian_.Add(x, x, tokens);
  if (exact == nullptr) return;
  difference_.assign(exact, exact + tokens * hessian_.width());
  for (size_t i = 0; i < difference_.size(); ++i) difference_[i] -= x[i];
  if (!correction_) correction_.emplace(backend_, hessian_.width());
  correction_->Add(difference_.data(), x, tokens);
}

std::vector<double> HostGptq::Diagonal() {
  std::vector<double> diagonal;
  for (int64_t i = 0; i < hessian_.width(); ++i) {
    diagonal.push_back(hessian_.sum().row(i)[static_cast<size_t>(i)]);
  }
  return diagonal;
}

// With J the reversal, J (H + D) J = L L^T gives H + D = R R^T for the upper R = J L J, so that
// U = R^-1 = J L^-1 J: one factor and one inverse. LAPACK counts columns first and sees L^T where L
// is meant.
bool HostGptq::Factor(std::span<const int64_t> order, std::span<const double> added) {
  order_.assign(order.begin(), order.end());
  added_.assign(added.begin(), added.end());
  u_ = PermuteRows(PermuteColumns(hessian_.sum(), order_), order_);
  for (int64_t i = 0; i < u_.cols; ++i) At(u_, i, i) += added[static_cast<size_t>(order_[i])];
  std::ranges::reverse(u_.data);
  const int n = static_cast<int>(u_.cols);
  if (LAPACKE_dpotrf(LAPACK_COL_MAJOR, 'U', n, u_.data.data(), n) != 0 ||
      LAPACKE_dtrtri(LAPACK_COL_MAJOR, 'U', 'N', n, u_.data.data(), n) != 0) {
    return false;
  }
  std::ranges::reverse(u_.data);
  for (int64_t i = 1; i < u_.cols; ++i) std::fill_n(u_.row(i).begin(), i, 0.0);
  return true;
}

// W + correction W C U^T U, in rounding order.
Matrix<double> HostGptq::Corrected(const GptqRounding& r) const {
  Matrix<double> w = PermuteColumns(r.weights, order_);
  if (r.correction == 0 || !correction_) return w;
  const Matrix<double> moved =
      PermuteColumns(Multiply(r.weights, correction_->sum(), false, r.correction), order_);
  const Matrix<double> change = Multiply(Multiply(moved, u_, true, 1), u_, false, 1);
  AddScaled(1, change.data, w.data.data());
  return w;
}

// Rounds column i of row n, `w` being what became of that row, and updates the columns before
// `end`. `kept` holds what stays of four columns of a sparse row from the first of them on. Returns
// the error, in units of U_ii.
double HostGptq::RoundWeight(const GptqRounding& r, int64_t n, int64_t i, int64_t end,
                             std::span<double> w, uint32_t& kept) const {
  const auto at = static_cast<size_t>(i);
  const double value = w[at];
  const auto u = u_.row(i);
  if (r.sparse && i % 4 == 0) {  // what pruning a column costs once the others make up for it
    std::array<double, 4> costs;
    for (size_t j = 0; j < 4; ++j) {
      const double cost = w[at + j] / u_.row(i + static_cast<int64_t>(j))[at + j];
      costs[j] = cost * cost;
    }
    kept = LargestTwo(costs);
  }
  Weight weight(r, n, order_[at]);
  (kept >> i % 4 & 1) != 0 ? weight.Set(value) : weight.Prune();
  const double error = (value - weight.value()) / u[at];
  AddScaled(-error, u.subspan(at, static_cast<size_t>(end - i)), &w[at]);
  return error;
}

void HostGptq::RoundRows(const GptqRounding& r, int64_t first, Matrix<double>& rows) const {
  const int64_t cols = rows.cols, block = BlockColumns(r);
  Matrix<double> errors(rows.rows, block);
  std::vector<double> group;
  std::vector<uint32_t> kept(static_cast<size_t>(rows.rows), ~0u);
  for (int64_t begin = 0; begin < r.columns; begin += block) {
    const int64_t end = std::min(begin + block, r.columns);
    for (int64_t n = 0; n < rows.rows; ++n) {
      const auto w = rows.row(n);
      for (int64_t i = begin; i < end; ++i) {
        if (r.find_grids && i % r.group == 0) {
          r.find_grids(i / r.group, first + n,
                       w.subspan(static_cast<size_t>(i), static_cast<size_t>(r.group)));
        }
        At(errors, n, i - begin) =
            RoundWeight(r, first + n, i, end, w, kept[static_cast<size_t>(n)]);
      }
    }
    if (end == cols) break;
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, static_cast<int>(rows.rows),
                static_cast<int>(cols - end), static_cast<int>(end - begin), -1, errors.data.data(),
                static_cast<int>(block), &u_.data[static_cast<size_t>(begin * cols + end)],
                static_cast<int>(cols), 1, rows.data.data() + end, static_cast<int>(cols));
  }
}

// Coordinate descent over codes (as QuantEase, Behdin et al. 2023), with the slopes E H of a block
// kept up to date.
void HostGptq::Sweep(const GptqRounding& r, Matrix<double>& errors) const {
  Matrix<double> hessian = hessian_.sum();
  for (int64_t i = 0; i < hessian.rows; ++i) At(hessian, i, i) += added_[static_cast<size_t>(i)];
  const int k = static_cast<int>(hessian.cols);
  const auto sweep_row = [&](int64_t n, int64_t begin, int64_t end, double* slopes) {
    for (int64_t i = begin; i < end; ++i) {
      const auto h = hessian.row(i);
      Weight weight(r, n, i);
      if (r.sparse && weight.pruned()) continue;
      const double value = weight.value();
      weight.Set(value - slopes[i - begin] / h[static_cast<size_t>(i)]);
      const double moved = weight.value() - value;
      if (moved == 0) continue;
      At(errors, n, i) += moved;
      AddScaled(moved, h.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
                slopes);
    }
  };
  ForRows(errors.rows, [&](int64_t first, int64_t rows) {
    Matrix<double> slopes(rows, kBlock);
    for (int64_t at = 0; at < r.sweeps * r.columns;) {
      const int64_t begin = at % r.columns, end = std::min(begin + kBlock, r.columns);
      cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, static_cast<int>(rows),
                  static_cast<int>(end - begin), k, 1, errors.row(first).data(), k,
                  hessian.data.data() + begin, k, 0, slopes.data.data(), kBlock);
      for (int64_t n = 0; n < rows; ++n) sweep_row(first + n, begin, end, slopes.row(n).data());
      at += end - begin;
    }
  });
}

// tr(M H M^T). Of the symmetric H the upper triangle with half the diagonal is enough.
double HostGptq::Power(const Matrix<double>& m) const {
  const Matrix<double>& h = hessian_.sum();
  std::vector<double> sums(static_cast<size_t>((m.rows + kRows - 1) / kRows));
  const int n = static_cast<int>(m.cols);
  ForRows(m.rows, [&](int64_t first, int64_t rows) {
    const std::span<const double> part(m.row(first).data(), static_cast<size_t>(rows * m.cols));
    std::vector<double> product(part.begin(), part.end());
    cblas_dtrmm(CblasRowMajor, CblasRight, CblasUpper, CblasNoTrans, CblasNonUnit,
                static_cast<int>(rows), n, 1, h.data.data(), n, product.data(), n);
    double sum = 2 * std::inner_product(product.begin(), product.end(), part.begin(), 0.0);
    for (size_t i = 0; i < part.size(); ++i) {
      const size_t k = i % static_cast<size_t>(n);
      sum -= part[i] * part[i] * h.row(static_cast<int64_t>(k))[k];
    }
    sums[static_cast<size_t>(first / kRows)] = sum;
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

GptqLoss HostGptq::Round(const GptqRounding& r) {
  Matrix<double> w = Corrected(r);
  Matrix<double> target;  // of the sweeps, in the columns' own order
  if (r.sweeps > 0) {
    Order places(order_.size());
    for (size_t i = 0; i < order_.size(); ++i) {
      places[static_cast<size_t>(order_[i])] = static_cast<int64_t>(i);
    }
    target = PermuteColumns(w, places);
  }
  ForRows(w.rows, [&](int64_t first, int64_t count) {
    Matrix<double> rows(count, w.cols);
    std::copy_n(w.row(first).begin(), rows.data.size(), rows.data.begin());
    RoundRows(r, first, rows);
    std::ranges::copy(rows.data, w.row(first).begin());  // the tail's errors
  });
  std::vector<double> tail;
  if (r.round_tail) {
    for (int64_t n = 0; n < w.rows; ++n) {
      tail.insert(tail.end(), w.row(n).begin() + r.columns, w.row(n).end());
    }
    r.round_tail(tail);
  }
  if (r.sweeps > 0) {
    Matrix<double> errors = Errors(r, tail, target);
    Sweep(r, errors);
  }
  return {.error = Power(Errors(r, tail, r.weights)), .power = Power(r.weights)};
}

}  // namespace nibble
