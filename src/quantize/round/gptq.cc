// SPDX-License-Identifier: Apache-2.0
#include "quantize/round/gptq.h"

#include <algorithm>
#include <numeric>

#include "base/thread_pool.h"
#include "compute/math_services.h"
#include "quantize/round/code_matrix.h"
#include "quantize/round/host_gptq.h"

namespace nibble {
namespace {

// Columns by falling Hessian diagonal, or as they are; the last `tail` stay where they are.
std::vector<int64_t> ColumnOrder(std::span<const double> diagonal, bool act_order, int64_t tail) {
  std::vector<int64_t> order(diagonal.size());
  std::iota(order.begin(), order.end(), 0);
  if (act_order) {
    std::stable_sort(order.begin(), order.end() - tail, [&](int64_t a, int64_t b) {
      return diagonal[static_cast<size_t>(a)] > diagonal[static_cast<size_t>(b)];
    });
  }
  return order;
}

double MoreDamping(double damp) {
  if (!(damp <= 1e6)) {
    Fail("the calibration Hessian cannot be factored; is the calibration text empty?");
  }
  return std::max(damp * 10, 1e-4);
}

// Rows of w with zeros in `columns`.
Matrix<double> RowsWithout(const Matrix<double>& w, int64_t first, int64_t count,
                           std::span<const int64_t> columns) {
  Matrix<double> rows(count, w.cols);
  std::copy_n(w.row(first).data(), rows.data.size(), rows.data.begin());
  for (int64_t n = 0; n < count; ++n) {
    for (const int64_t k : columns) rows.row(n)[static_cast<size_t>(k)] = 0;
  }
  return rows;
}

// A matrix while it is rounded, some rows at a time.
class MatrixRounding {
 public:
  MatrixRounding(const Matrix<double>& w, const FormatSpec& format, const FormatSpec& tail,
                 const GptqOptions& options, double correction)
      : w_(w),
        format_(format),
        tail_format_(tail),
        fixed_grids_(format.group == 0 || options.act_order),
        correction_(correction),
        pull_(options.foem),
        sweeps_(options.sweeps),
        codes_(w, w.cols - options.tail, format),
        tail_(w.rows, options.tail) {
    // All grids are found before rounding, or each when its group begins.
    if (fixed_grids_) codes_.FindGrids(w);
    for (int64_t n = 0; n < w.rows; ++n) {
      for (int64_t k = 0; k < codes_.cols(); k += codes_.group()) {
        scales_.push_back(codes_.Grid(n, k).scale);
        zeros_.push_back(codes_.Grid(n, k).zero);
      }
    }
  }

  void Round(GptqMath& math, std::span<const int64_t> unseen, int64_t first, int64_t count);
  Rounded Take(double damp) const;

 private:
  // Finds the grids of group g in the rows from `first` on.
  void FindGrids(int64_t g, int64_t first, std::span<const double> columns);
  void RoundTail(int64_t first, std::span<double> values);
  // The part of values [rows, ..] that belongs to the rows from `first` on.
  template <typename T>
  std::span<T> Part(std::span<T> values, int64_t first, int64_t count) const {
    const auto width = static_cast<int64_t>(values.size()) / w_.rows;
    return values.subspan(static_cast<size_t>(first * width), static_cast<size_t>(count * width));
  }

  const Matrix<double>& w_;
  const FormatSpec &format_, &tail_format_;
  bool fixed_grids_;
  double correction_, pull_;
  int sweeps_;
  CodeMatrix codes_;
  // Grids as GptqMath reads them, [rows, groups].
  std::vector<float> scales_;
  std::vector<int32_t> zeros_;
  Matrix<double> tail_;  // not rounded
  GptqLoss loss_ = {};
};

void MatrixRounding::FindGrids(int64_t g, int64_t first, std::span<const double> columns) {
  const auto group = static_cast<size_t>(codes_.group());
  ParallelFor(columns.size() / group, [&](size_t row) {
    const int64_t n = first + static_cast<int64_t>(row);
    const WeightGrid& grid =
        codes_.FindGrid(n, g * codes_.group(), columns.subspan(row * group, group));
    const auto at = static_cast<size_t>(n * format_.groups(codes_.cols()) + g);
    scales_[at] = grid.scale;
    zeros_[at] = grid.zero;
  });
}

void MatrixRounding::RoundTail(int64_t first, std::span<double> values) {
  Matrix<double> part(static_cast<int64_t>(values.size()) / tail_.cols, tail_.cols);
  std::ranges::copy(values, part.data.begin());
  std::ranges::copy(values, tail_.row(first).begin());
  std::ranges::copy(Decode(RoundColumns(part, tail_format_)).data, values.begin());
}

void MatrixRounding::Round(GptqMath& math, std::span<const int64_t> unseen, int64_t first,
                           int64_t count) {
  const bool all = count == w_.rows && unseen.empty();
  const Matrix<double> some = all ? Matrix<double>() : RowsWithout(w_, first, count, unseen);
  GptqRounding rounding = {.weights = all ? w_ : some,
                           .correction = correction_,
                           .pull = pull_,
                           .columns = codes_.cols(),
                           .bits = format_.bits,
                           .group = codes_.group(),
                           .sparse = format_.sparse,
                           .scales = Part(std::span(scales_), first, count),
                           .zeros = Part(std::span(zeros_), first, count),
                           .sweeps = sweeps_,
                           .codes = Part(codes_.codes(), first, count),
                           .codewords = Part(codes_.codewords(), first, count),
                           .codebook = format_.codebook};
  if (!fixed_grids_) {
    rounding.find_grids = [&](int64_t g, int64_t row, std::span<const double> columns) {
      FindGrids(g, first + row, columns);
    };
  }
  if (tail_.cols > 0) {
    rounding.round_tail = [&](std::span<double> values) { RoundTail(first, values); };
  }
  const GptqLoss loss = math.Round(rounding);
  loss_ = {loss_.error + loss.error, loss_.power + loss.power};
}

Rounded MatrixRounding::Take(double damp) const {
  Rounded result = {.weights = codes_.Pack(), .damp = damp};
  if (tail_.cols > 0) result.tail = RoundColumns(tail_, tail_format_);
  if (loss_.power > 0) result.relative_error = loss_.error / loss_.power;
  return result;
}

}  // namespace

Gptq::Gptq(Backend& backend, int64_t width, const GptqOptions& options, int64_t groups)
    : options_(options) {
  for (int64_t g = 0; g < groups; ++g) {
    std::unique_ptr<GptqMath> math;
    if (!options.host) math = backend.services().MakeGptq(width);
    if (!math) math = std::make_unique<HostGptq>(backend, width);
    groups_.push_back({std::move(math)});
  }
}

void Gptq::Add(const float* x, const float* exact, int64_t tokens, const Matrix<float>& weights,
               int64_t first) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const auto row = weights.row(static_cast<int64_t>(g));
    groups_[g].math->Add(x, exact, tokens,
                         row.subspan(static_cast<size_t>(first), static_cast<size_t>(tokens)));
  }
  tokens_ += tokens;
}

void Gptq::Factor(Group& group) const {
  std::vector<double> diagonal = group.math->Diagonal();
  // A column whose input was never seen would take up other columns' errors.
  std::vector<double> unseen(diagonal.size());
  for (size_t i = 0; i < diagonal.size(); ++i) {
    if (diagonal[i] != 0) continue;
    diagonal[i] = unseen[i] = 1;
    group.unseen.push_back(static_cast<int64_t>(i));
  }
  const std::vector<int64_t> order = ColumnOrder(diagonal, options_.act_order, options_.tail);
  double mean = 0;
  for (const int64_t k : order) {
    mean += diagonal[static_cast<size_t>(k)] / static_cast<double>(order.size());
  }
  for (group.damp = options_.damp;; group.damp = MoreDamping(group.damp)) {
    std::vector<double> added = unseen;
    for (double& value : added) value += group.damp * mean;
    if (group.math->Factor(order, added)) break;
  }
  group.factored = true;
}

Rounded Gptq::Round(const Matrix<double>& w, const FormatSpec& format, const FormatSpec& tail) {
  // A correction learned from fewer tokens than inputs is noise to other tokens: some experts see
  // few.
  const auto tokens = static_cast<double>(tokens_);
  const double seen_share = tokens_ == 0 ? 0 : tokens / (tokens + static_cast<double>(w.cols));
  MatrixRounding rounding(w, format, tail, options_, options_.gptaq * seen_share);
  const auto groups = static_cast<int64_t>(groups_.size());
  double damp = 0;
  for (int64_t g = 0; g < groups; ++g) {
    Group& group = groups_[static_cast<size_t>(g)];
    if (!group.factored) Factor(group);
    const int64_t first = g * w.rows / groups, end = (g + 1) * w.rows / groups;
    rounding.Round(*group.math, group.unseen, first, end - first);
    damp = std::max(damp, group.damp);
  }
  return rounding.Take(damp);
}

}  // namespace nibble
