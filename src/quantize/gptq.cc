// SPDX-License-Identifier: Apache-2.0
#include "quantize/gptq.h"

#include <algorithm>
#include <numeric>

#include "backends/interface/math_services.h"
#include "base/thread_pool.h"
#include "quantize/code_matrix.h"
#include "quantize/host_gptq.h"

namespace nibble {
namespace {

// By falling Hessian diagonal, or as the columns are; the last `tail` stay where they are.
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

// Grids as a machine reads them, [rows, groups].
struct Grids {
  std::vector<float> scales;
  std::vector<int32_t> zeros;

  Grids(const CodeMatrix& codes, int64_t rows) {
    for (int64_t n = 0; n < rows; ++n) {
      for (int64_t k = 0; k < codes.cols(); k += codes.group()) {
        scales.push_back(codes.Grid(n, k).scale);
        zeros.push_back(codes.Grid(n, k).zero);
      }
    }
  }
};

Matrix<double> WithoutColumns(Matrix<double> w, std::span<const int64_t> columns) {
  for (int64_t n = 0; n < w.rows; ++n) {
    for (const int64_t k : columns) w.row(n)[static_cast<size_t>(k)] = 0;
  }
  return w;
}

}  // namespace

Gptq::Gptq(Backend& backend, int64_t width, const GptqOptions& options) : options_(options) {
  if (!options.lattice || options.sweeps == 0) math_ = backend.services().MakeGptq(width);
  if (!math_) math_ = std::make_unique<HostGptq>(backend, width);
}

void Gptq::Factor() {
  std::vector<double> diagonal = math_->Diagonal();
  // A column whose input was never seen would take up other columns' errors.
  std::vector<double> unseen(diagonal.size());
  for (size_t i = 0; i < diagonal.size(); ++i) {
    if (diagonal[i] != 0) continue;
    diagonal[i] = unseen[i] = 1;
    unseen_.push_back(static_cast<int64_t>(i));
  }
  const std::vector<int64_t> order = ColumnOrder(diagonal, options_.act_order, options_.tail);
  double mean = 0;
  for (const int64_t k : order) {
    mean += diagonal[static_cast<size_t>(k)] / static_cast<double>(order.size());
  }
  for (damp_ = options_.damp;; damp_ = MoreDamping(damp_)) {
    std::vector<double> added = unseen;
    for (double& value : added) value += damp_ * mean;
    if (math_->Factor(order, added)) break;
  }
  factored_ = true;
}

Rounded Gptq::Round(const Matrix<double>& w, const FormatSpec& format, const FormatSpec& tail) {
  if (!factored_) Factor();
  const int64_t coded = w.cols - options_.tail;
  CodeMatrix codes(w, coded, format);
  // All grids are found before rounding, or each when its group begins.
  const bool fixed_grids = format.group == 0 || options_.act_order;
  if (fixed_grids) codes.FindGrids(w);
  Grids grids(codes, w.rows);
  const Matrix<double> seen = unseen_.empty() ? Matrix<double>() : WithoutColumns(w, unseen_);
  // What is learned from fewer tokens than inputs is noise to others: some experts see few.
  const auto tokens = static_cast<double>(tokens_);
  const double seen_share = tokens_ == 0 ? 0 : tokens / (tokens + static_cast<double>(w.cols));
  GptqRounding rounding = {.weights = unseen_.empty() ? w : seen,
                           .correction = options_.gptaq * seen_share,
                           .columns = coded,
                           .bits = format.bits,
                           .group = codes.group(),
                           .sparse = format.sparse,
                           .scales = grids.scales,
                           .zeros = grids.zeros,
                           .sweeps = options_.sweeps,
                           .codes = codes.codes(),
                           .points = codes.points()};
  if (!fixed_grids) {
    rounding.find_grids = [&](int64_t g, int64_t first, std::span<const double> columns) {
      const auto group = static_cast<size_t>(codes.group());
      ParallelFor(columns.size() / group, [&](size_t row) {
        const int64_t n = first + static_cast<int64_t>(row);
        const WeightGrid& grid =
            codes.FindGrid(n, g * codes.group(), columns.subspan(row * group, group));
        const auto at = static_cast<size_t>(n * format.groups(codes.cols()) + g);
        grids.scales[at] = grid.scale;
        grids.zeros[at] = grid.zero;
      });
    };
  }
  Rounded result = {.damp = damp_};
  if (coded < w.cols) {
    rounding.round_tail = [&](std::span<double> values) {
      Matrix<double> last(w.rows, w.cols - coded);
      std::ranges::copy(values, last.data.begin());
      result.tail = RoundColumns(last, tail);
      std::ranges::copy(Decode(result.tail).data, values.begin());
    };
  }
  const GptqLoss loss = math_->Round(rounding);
  result.weights = codes.Pack();
  result.relative_error = loss.power > 0 ? loss.error / loss.power : 0;
  return result;
}

}  // namespace nibble
