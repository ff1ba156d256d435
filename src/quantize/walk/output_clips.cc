// SPDX-License-Identifier: Apache-2.0
#include "quantize/walk/output_clips.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/thread_pool.h"
#include "transforms/blas.h"

namespace nibble {
namespace {

using Row = std::span<const double>;

struct Range {
  double lo, hi;
};
// The range of a group with a clip of p. A symmetric one leaves the lowest code to no one, so that
// clipped weights have the same range again.
Range RangeOf(Row values, const FormatSpec& format, double p) {
  const double lo = std::min(0.0, std::ranges::min(values)) * p;
  const double hi = std::max(0.0, std::ranges::max(values)) * p;
  if (!format.symmetric) return {lo, hi};
  return {-std::max(-lo, hi), std::max(-lo, hi)};
}

// Errors of the outputs of one group, for a matrix of errors of its weights [N, columns].
class GroupError {
 public:
  // The inputs of the group [tokens, columns].
  explicit GroupError(Matrix<double> x) : x_(std::move(x)), has_gram_(x_.cols < x_.rows) {
    if (!has_gram_) return;
    Matrix<double> turned(x_.cols, x_.rows), gram(x_.cols, x_.cols);
    for (int64_t t = 0; t < x_.rows; ++t) {
      for (int64_t k = 0; k < x_.cols; ++k) {
        turned.row(k)[static_cast<size_t>(t)] = x_.row(t)[static_cast<size_t>(k)];
      }
    }
    nibble::Multiply(turned, turned, true, gram);
    x_ = std::move(gram);
  }

  // e x^T x e^T, or |x e^T|^2, of every row e.
  std::vector<double> operator()(const Matrix<double>& errors) const {
    Matrix<double> product(errors.rows, x_.rows);
    nibble::Multiply(errors, x_, true, product);
    std::vector<double> squares;
    for (int64_t n = 0; n < errors.rows; ++n) {
      const Row left = has_gram_ ? errors.row(n) : product.row(n), right = product.row(n);
      squares.push_back(std::inner_product(left.begin(), left.end(), right.begin(), 0.0));
    }
    return squares;
  }

 private:
  Matrix<double> x_;  // inputs, or x^T x where these are more
  bool has_gram_;
};

// What a clip of p and rounding do to the weights of a group.
Matrix<double> ErrorsOf(const Matrix<double>& w, FormatSpec format, double p) {
  format.clip = p;
  Matrix<double> errors(w.rows, w.cols);
  ParallelFor(static_cast<size_t>(w.rows), [&](size_t n) {
    const Row row = w.row(static_cast<int64_t>(n));
    const WeightGrid grid = FindGrid(row, format);
    const Range range = RangeOf(row, format, p);
    std::ranges::transform(row, errors.row(static_cast<int64_t>(n)).begin(), [&](double value) {
      return grid.Value(grid.Code(std::clamp(value, range.lo, range.hi))) - value;
    });
  });
  return errors;
}

}  // namespace

void ClipByOutputs(const Matrix<double>& x, const FormatSpec& format, int64_t tail,
                   Matrix<double>& w) {
  const int64_t kept = w.cols - tail, width = format.group == 0 ? kept : format.group;
  for (int64_t first = 0; first < kept; first += width) {
    const Matrix<double> group = Columns(w, first, width);
    const GroupError error_of(Columns(x, first, width));
    std::vector<double> best(static_cast<size_t>(w.rows), 1);
    std::vector<double> least(best.size(), std::numeric_limits<double>::infinity());
    for (int i = 0; i < kTriedOutputClips; ++i) {
      const double p = 1 - i / 20.0;
      const std::vector<double> errors = error_of(ErrorsOf(group, format, p));
      for (size_t n = 0; n < best.size(); ++n) {
        if (errors[n] < least[n]) least[n] = errors[n], best[n] = p;
      }
    }
    for (int64_t n = 0; n < w.rows; ++n) {
      if (best[static_cast<size_t>(n)] == 1) continue;
      const Range range = RangeOf(group.row(n), format, best[static_cast<size_t>(n)]);
      const auto part = w.row(n).subspan(static_cast<size_t>(first), static_cast<size_t>(width));
      for (double& value : part) value = std::clamp(value, range.lo, range.hi);
    }
  }
}

void OutputClips::Clip(int64_t index, FloatLayer& layer) {
  stream_.Walk(StoreFloats(layer), index, [&](LinearSet set) {
    if (set.kind == LinearSet::kQkv && set.alone) return;
    const InputSample sample =
        SampleInputs(backend_, stream_, set, config_.inputs(index, RolesOf(set)[0]));
    if (sample.tokens == 0) return;
    for (Role role : RolesOf(set)) {
      const LinearPlan& linear = plan_.at(index, role);
      const FormatSpec& format = linear.weights;
      if (role == Role::kQ || role == Role::kK || !format.quantized()) continue;
      if (format.codebook != Codebook::kNone) continue;
      ClipByOutputs(sample.rows, format, linear.tail.columns, layer[role]);
    }
  });
}

}  // namespace nibble
