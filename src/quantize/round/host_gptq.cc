// SPDX-License-Identifier: Apache-2.0
// Rows are rounded independently, some of them in a task. What a column changes is added to those
// of its block at once and to the columns behind the block in one product.
#include "quantize/round/host_gptq.h"

#include <cblas.h>
#include <lapacke.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/target_clones.h"
#include "base/thread_pool.h"
#include "quantize/round/code_matrix.h"
#include "quantize/round/weight_code.h"

namespace nibble {
namespace {

constexpr int64_t kRows = 64;          // of one task
constexpr int64_t kLazyColumns = 128;  // columns between two products with all the others

using Order = std::vector<int64_t>;

double& At(Matrix<double>& m, int64_t row, int64_t column) {
  return m.row(row)[static_cast<size_t>(column)];
}
double At(const Matrix<double>& m, int64_t row, int64_t column) {
  return m.row(row)[static_cast<size_t>(column)];
}

// out += factor * a b or a b^T of rows [m, k], [k, n]; ld: values of a stored row.
struct Factors {
  const double *a, *b;
  int64_t a_ld, b_ld;
  bool transposed = false;  // b
};
void AddProduct(const Factors& f, int64_t m, int64_t n, int64_t k, double factor, double* out,
                int64_t out_ld) {
  if (k == 0) return;
  cblas_dgemm(CblasRowMajor, CblasNoTrans, f.transposed ? CblasTrans : CblasNoTrans,
              static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), factor, f.a,
              static_cast<int>(f.a_ld), f.b, static_cast<int>(f.b_ld), 1, out,
              static_cast<int>(out_ld));
}

// rows <- rows T for a triangle T of `square`.
void MultiplyTriangle(const Matrix<double>& square, CBLAS_UPLO part, CBLAS_TRANSPOSE turned,
                      CBLAS_DIAG diagonal, Matrix<double>& rows) {
  const int n = static_cast<int>(square.cols);
  cblas_dtrmm(CblasRowMajor, CblasRight, part, turned, diagonal, static_cast<int>(rows.rows), n, 1,
              square.data.data(), n, rows.data.data(), n);
}

// out[r, i] = m[first + r, order[i]]
Matrix<double> OrderedRows(const Matrix<double>& m, int64_t first, int64_t count,
                           const Order& order) {
  Matrix<double> result(count, m.cols);
  for (int64_t r = 0; r < count; ++r) {
    const auto row = m.row(first + r);
    for (size_t i = 0; i < order.size(); ++i) {
      result.row(r)[i] = row[static_cast<size_t>(order[i])];
    }
  }
  return result;
}

// y += factor * x, with the machine's vectors and the same bits on every machine.
NIBBLE_TARGET_CLONES void AddScaled(double factor, std::span<const double> x, double* y) {
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

WeightCode CodeOf(const GptqRounding& r) {
  return WeightCode(r.codebook, r.bits);
}

// The number of columns that get their codes at once.
int64_t ColumnsOfCode(const GptqRounding& r) {
  return r.codewords.empty() ? 1 : CodeOf(r).weights();
}

// Makes the weights from column k on the codeword `code`.
void SetCodeword(const GptqRounding& r, int64_t n, int64_t k, uint32_t code) {
  const int64_t count = ColumnsOfCode(r), first = n * r.columns + k;
  r.codewords[static_cast<size_t>(first / count)] = code;
  std::copy_n(CodeOf(r).Decode(code).begin(), count, r.codes.begin() + first);
}

// A block of columns of one row, from `begin` on, while it is swept: `gradients` are those of tr(E
// H E^T) / 2 by its weights.
struct SweptRow {
  const GptqRounding& rounding;
  const int64_t n, begin;
  const Matrix<double>& block;  // of H
  double *gradients, *errors;

  Weight weight(int64_t i) const { return Weight(rounding, n, begin + i); }
  void Move(int64_t i, double moved) const {
    errors[i] += moved;
    AddScaled(moved, block.row(i), gradients);
  }
};

void MoveWeight(const SweptRow& row, int64_t i) {
  Weight weight = row.weight(i);
  if (row.rounding.sparse && weight.pruned()) return;
  const double value = weight.value();
  weight.Set(value - row.gradients[i] / At(row.block, i, i));
  if (const double moved = weight.value() - value; moved != 0) row.Move(i, moved);
}

// The weights of a codeword from i on go to the one that is nearest to the best values, unless that
// is worse.
void MoveCodeword(const SweptRow& row, int64_t i, const Matrix<double>& inverse) {
  std::array<double, WeightCode::kMaxWeights> best, moved;
  const int64_t count = inverse.rows;
  for (int64_t j = 0; j < count; ++j) {
    double& value = best[static_cast<size_t>(j)] = row.weight(i + j).value();
    for (int64_t k = 0; k < count; ++k) value -= row.gradients[i + k] * At(inverse, k, j);
  }
  const WeightCode codebook = CodeOf(row.rounding);
  const uint32_t code =
      codebook.Encode(std::span(best).first(static_cast<size_t>(count)), row.weight(i).scale);
  const WeightCode::Codeword codeword = codebook.Decode(code);
  double change = 0;
  for (int64_t j = 0; j < count; ++j) {
    const auto at = static_cast<size_t>(j);
    const Weight weight = row.weight(i + j);
    moved[at] = weight.scale * (codeword[at] - weight.code);
    double gradient = row.gradients[i + j] + moved[at] * At(row.block, i + j, i + j) / 2;
    for (int64_t k = 0; k < j; ++k) {
      gradient += moved[static_cast<size_t>(k)] * At(row.block, i + k, i + j);
    }
    change += gradient * moved[at];
  }
  if (change >= 0) return;
  SetCodeword(row.rounding, row.n, row.begin + i, code);
  for (int64_t j = 0; j < count; ++j) row.Move(i + j, moved[static_cast<size_t>(j)]);
}

// The parts on the diagonal of a block of H that belong to codewords of `count` columns, inverted.
std::vector<Matrix<double>> CodewordInverses(const Matrix<double>& block, int64_t count) {
  const auto size = static_cast<int>(count);
  std::vector<Matrix<double>> inverses;
  for (int64_t first = 0; first < block.rows; first += count) {
    Matrix<double>& inverse = inverses.emplace_back(count, count);
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(&block.row(first + i)[static_cast<size_t>(first)], count, inverse.row(i).begin());
    }
    const bool positive =
        LAPACKE_dpotrf(LAPACK_COL_MAJOR, 'L', size, inverse.data.data(), size) == 0 &&
        LAPACKE_dpotri(LAPACK_COL_MAJOR, 'L', size, inverse.data.data(), size) == 0;
    NIBBLE_CHECK(positive, "a part of a matrix that is positive definite");
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t j = 0; j < i; ++j) At(inverse, i, j) = At(inverse, j, i);
    }
  }
  return inverses;
}

// The decoded weights of some rows in fp32, and the tail behind them, minus w.
Matrix<double> Errors(const GptqRounding& r, std::span<const double> tail, int64_t first,
                      Matrix<double> w) {
  const int64_t last = w.cols - r.columns;
  for (int64_t n = 0; n < w.rows; ++n) {
    for (int64_t k = 0; k < w.cols; ++k) {
      const double value = k < r.columns
                               ? static_cast<float>(Weight(r, first + n, k).value())
                               : tail[static_cast<size_t>((first + n) * last + k - r.columns)];
      At(w, n, k) = value - At(w, n, k);
    }
  }
  return w;
}

// Columns rounded between two updates of the rest; group borders fall on block borders.
int64_t BlockColumns(const GptqRounding& r) {
  if (!r.find_grids) return kLazyColumns;
  return r.group * std::max<int64_t>(1, kLazyColumns / r.group);
}

// Multiplies each row with the root of its weight.
void MultiplyRows(std::span<const float> weights, std::vector<float>& values) {
  const size_t width = values.size() / weights.size();
  ParallelFor(weights.size(), [&](size_t row) {
    const float factor = std::sqrt(weights[row]);
    for (size_t i = row * width; i < (row + 1) * width; ++i) values[i] *= factor;
  });
}

}  // namespace

void HostGptq::Add(const float* x, const float* exact, int64_t tokens,
                   std::span<const float> weights) {
  const int64_t width = hessian_.cols;
  if (exact != nullptr) {
    const float* read = backend_.Read(exact, tokens * width);
    difference_.assign(read, read + tokens * width);
  }
  x = backend_.Read(x, tokens * width);
  if (exact != nullptr) {
    for (size_t i = 0; i < difference_.size(); ++i) difference_[i] -= x[i];
  }
  if (!weights.empty()) {
    weighted_.assign(x, x + tokens * width);
    MultiplyRows(weights, weighted_);
    if (exact != nullptr) MultiplyRows(weights, difference_);
    x = weighted_.data();
  }
  AddGram(services_, x, x, tokens, &hessian_);
  if (exact == nullptr) return;
  if (correction_.rows == 0) correction_ = Matrix<double>(width, width);
  AddGram(services_, difference_.data(), x, tokens, &correction_);
}

std::vector<double> HostGptq::Diagonal() {
  if (!diagonal_.empty()) return diagonal_;
  std::vector<double> diagonal;
  for (int64_t i = 0; i < hessian_.cols; ++i) diagonal.push_back(At(hessian_, i, i));
  return diagonal;
}

// With J the reversal, J (H + D) J = L L^T gives H + D = R R^T for the upper R = J L J, so that
// U = R^-1 = J L^-1 J: one factor and one inverse. LAPACK counts columns first, so what it calls a
// lower triangle is the upper one here, turned.
bool HostGptq::Factor(std::span<const int64_t> order, std::span<const double> added) {
  order_.assign(order.begin(), order.end());
  added_.assign(added.begin(), added.end());
  if (diagonal_.empty()) diagonal_ = Diagonal();
  const int64_t n = hessian_.cols;
  ParallelFor(order.size(), [&](size_t row) {
    const auto i = static_cast<int64_t>(row);
    const int64_t a = order_[static_cast<size_t>(n - 1 - i)];
    At(hessian_, i, i) = diagonal_[static_cast<size_t>(a)] + added_[static_cast<size_t>(a)];
    for (int64_t j = i + 1; j < n; ++j) {
      const int64_t b = order_[static_cast<size_t>(n - 1 - j)];
      At(hessian_, i, j) = At(hessian_, std::max(a, b), std::min(a, b));
    }
  });
  const int size = static_cast<int>(n);
  if (LAPACKE_dpotrf(LAPACK_COL_MAJOR, 'L', size, hessian_.data.data(), size) != 0 ||
      LAPACKE_dtrtri(LAPACK_COL_MAJOR, 'L', 'N', size, hessian_.data.data(), size) != 0) {
    return false;
  }
  // L^-1 turned becomes J L^-1 J: mirrored at the other diagonal.
  ParallelFor(order.size(), [&](size_t row) {
    const auto i = static_cast<int64_t>(row);
    for (int64_t j = i; i + j < n - 1; ++j) {
      std::swap(At(hessian_, i, j), At(hessian_, n - 1 - j, n - 1 - i));
    }
  });
  return true;
}

// W + correction W C U^T U, in rounding order.
Matrix<double> HostGptq::Corrected(const GptqRounding& r, int64_t first, int64_t count) const {
  Matrix<double> w = OrderedRows(r.weights, first, count, order_);
  if (r.correction == 0 || correction_.rows == 0) return w;
  const int64_t k = w.cols;
  Matrix<double> product(count, k);
  AddProduct({.a = r.weights.row(first).data(), .b = correction_.data.data(), .a_ld = k, .b_ld = k},
             count, k, k, r.correction, product.data.data(), k);
  Matrix<double> change = OrderedRows(product, 0, count, order_);
  MultiplyTriangle(hessian_, CblasUpper, CblasTrans, CblasNonUnit, change);
  MultiplyTriangle(hessian_, CblasUpper, CblasNoTrans, CblasNonUnit, change);
  AddScaled(1, change.data, w.data.data());
  return w;
}

// Rounds column i of row n, `w` being what became of that row, and updates the columns before
// `end`. `kept` holds what stays of four columns of a sparse row from the first of them on. Returns
// the error, in units of U_ii.
double HostGptq::RoundWeight(const GptqRounding& r, int64_t n, int64_t i, int64_t end,
                             std::span<double> w, uint32_t& kept) const {
  const auto at = static_cast<size_t>(i);
  const double pull = r.codewords.empty() ? r.pull : 0;
  const double value = w[at] - pull * (w[at] - r.weights.row(n)[static_cast<size_t>(order_[at])]);
  const auto u = hessian_.row(i);
  if (r.sparse && i % 4 == 0) {  // what pruning a column costs once the others make up for it
    std::array<double, 4> costs;
    for (size_t j = 0; j < 4; ++j) {
      const double cost = w[at + j] / hessian_.row(i + static_cast<int64_t>(j))[at + j];
      costs[j] = cost * cost;
    }
    kept = LargestTwo(costs);
  }
  Weight weight(r, n, order_[at]);
  if (!r.codewords.empty()) {
    // Where eight columns get their codes at once, the error of the first moves to others whose
    // codes are chosen already: in the end the error of the block goes to the columns behind it
    // (block LDLQ, Tseng et al. 2024).
    if (const int64_t count = ColumnsOfCode(r); i % count == 0) {
      const auto values = w.subspan(at, static_cast<size_t>(count));
      SetCodeword(r, n, order_[at], CodeOf(r).Encode(values, weight.scale));
    }
  } else {
    (kept >> i % 4 & 1) != 0 ? weight.Set(value) : weight.Prune();
  }
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
    AddProduct({.a = errors.data.data(),
                .b = hessian_.row(begin).data() + end,
                .a_ld = block,
                .b_ld = cols},
               rows.rows, cols - end, end - begin, -1, rows.data.data() + end, cols);
  }
}

// Columns and rows [begin, end) of H + diag(added).
Matrix<double> HostGptq::DampedBlock(int64_t begin, int64_t end) const {
  Matrix<double> block(end - begin, end - begin);
  for (int64_t i = 0; i < block.rows; ++i) {
    const auto at = static_cast<size_t>(begin + i);
    At(block, i, i) = diagonal_[at] + added_[at];
    for (int64_t j = 0; j < i; ++j) {
      At(block, i, j) = At(block, j, i) = At(hessian_, begin + i, begin + j);
    }
  }
  return block;
}

// Coordinate descent over codes or codewords (as QuantEase, Behdin et al. 2023), with the gradients
// E H of a block kept up to date. `errors` are those of the rows from `first` on.
void HostGptq::Sweep(const GptqRounding& r, int64_t first, Matrix<double>& errors) const {
  const int64_t k = errors.cols, rows = errors.rows;
  Matrix<double> gradients(rows, kLazyColumns);
  for (int64_t at = 0; at < r.sweeps * r.columns;) {
    const int64_t begin = at % r.columns, end = std::min(begin + kLazyColumns, r.columns);
    const int64_t count = end - begin;
    const Matrix<double> block = DampedBlock(begin, end);
    std::ranges::fill(gradients.data, 0.0);
    const auto add = [&](int64_t from, int64_t inner, const double* b, int64_t ld, bool turned) {
      AddProduct({errors.data.data() + from, b, k, ld, turned}, rows, count, inner, 1,
                 gradients.data.data(), kLazyColumns);
    };
    // The columns of H above the block stand as rows in front of it.
    add(0, begin, hessian_.row(begin).data(), k, true);
    add(begin, count, block.data.data(), count, false);
    if (end < k) add(end, k - end, hessian_.row(end).data() + begin, k, false);
    const std::vector<Matrix<double>> inverses = r.codewords.empty()
                                                     ? std::vector<Matrix<double>>()
                                                     : CodewordInverses(block, ColumnsOfCode(r));
    for (int64_t n = 0; n < rows; ++n) {
      double *gradient = gradients.row(n).data(), *error = &At(errors, n, begin);
      for (int64_t i = 0; i < count; i += ColumnsOfCode(r)) {
        const SweptRow row = {r, first + n, begin, block, gradient, error};
        r.codewords.empty()
            ? MoveWeight(row, i)
            : MoveCodeword(row, i, inverses[static_cast<size_t>(i / ColumnsOfCode(r))]);
      }
    }
    at += count;
  }
}

// tr(M H M^T) = sum over m of H_kk m_k^2 + 2 m (strict lower part of H) m^T.
double HostGptq::Power(const Matrix<double>& m) const {
  Matrix<double> product = m;
  MultiplyTriangle(hessian_, CblasLower, CblasNoTrans, CblasUnit, product);
  double sum = 0;
  for (int64_t n = 0; n < m.rows; ++n) {
    for (size_t k = 0; k < diagonal_.size(); ++k) {
      const double value = m.row(n)[k];
      sum += value * (diagonal_[k] * value + 2 * (product.row(n)[k] - value));
    }
  }
  return sum;
}

GptqLoss HostGptq::Round(const GptqRounding& r) {
  const int64_t cols = r.weights.cols, last = cols - r.columns;
  Matrix<double> target;  // of the sweeps, in the columns' own order
  if (r.sweeps > 0) target = Matrix<double>(r.weights.rows, cols);
  std::vector<double> tail(static_cast<size_t>(r.weights.rows * last));
  ForRows(r.weights.rows, [&](int64_t first, int64_t count) {
    Matrix<double> rows = Corrected(r, first, count);
    for (int64_t n = 0; r.sweeps > 0 && n < count; ++n) {
      for (int64_t i = 0; i < cols; ++i) {
        At(target, first + n, order_[static_cast<size_t>(i)]) = At(rows, n, i);
      }
    }
    RoundRows(r, first, rows);
    for (int64_t n = 0; n < count; ++n) {
      std::ranges::copy(rows.row(n).last(static_cast<size_t>(last)),
                        tail.begin() + (first + n) * last);
    }
  });
  if (r.round_tail) r.round_tail(tail);
  std::vector<GptqLoss> losses(static_cast<size_t>((r.weights.rows + kRows - 1) / kRows));
  ForRows(r.weights.rows, [&](int64_t first, int64_t count) {
    const auto some = [&](const Matrix<double>& m) {
      Matrix<double> rows(count, cols);
      std::copy_n(m.row(first).data(), rows.data.size(), rows.data.begin());
      return rows;
    };
    if (r.sweeps > 0) {
      Matrix<double> errors = Errors(r, tail, first, some(target));
      Sweep(r, first, errors);
    }
    const Matrix<double> weights = some(r.weights);
    losses[static_cast<size_t>(first / kRows)] = {Power(Errors(r, tail, first, weights)),
                                                  Power(weights)};
  });
  GptqLoss sum{};
  for (const GptqLoss& loss : losses) sum = {sum.error + loss.error, sum.power + loss.power};
  return sum;
}

}  // namespace nibble
