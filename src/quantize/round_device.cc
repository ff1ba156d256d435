// SPDX-License-Identifier: Apache-2.0
#include "quantize/round_device.h"

#include <algorithm>
#include <numeric>

namespace nibble {
namespace {

// Grids as a device reads them, [rows, groups].
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

DeviceRounding::DeviceRounding(GptqDevice& device, const GptqOptions& options)
    : device_(device), options_(options), damp_(options.damp) {
  std::vector<double> diagonal = device.Diagonal();
  // A column whose input was never seen would take up other columns' errors.
  std::vector<double> unseen(diagonal.size());
  for (size_t i = 0; i < diagonal.size(); ++i) {
    if (diagonal[i] != 0) continue;
    diagonal[i] = unseen[i] = 1;
    unseen_.push_back(static_cast<int64_t>(i));
  }
  const Order order = ColumnOrder(diagonal, options.act_order, options.tail.columns);
  const double mean =
      std::accumulate(diagonal.begin(), diagonal.end(), 0.0) / static_cast<double>(diagonal.size());
  for (;; damp_ = MoreDamping(damp_)) {
    std::vector<double> added = unseen;
    for (double& value : added) value += damp_ * mean;
    if (device.Factor(order, added, options.gptaq)) return;
  }
}

Rounded DeviceRounding::Round(const Matrix<double>& w, const FormatSpec& format,
                              const FormatSpec& tail) const {
  const int64_t coded = w.cols - options_.tail.columns;
  CodeMatrix codes(w, coded, format);
  const bool fixed_grids = FixedGrids(format, options_);
  if (fixed_grids) codes.FindGrids(w);
  Grids grids(codes, w.rows);
  const Matrix<double> seen = unseen_.empty() ? Matrix<double>() : WithoutColumns(w, unseen_);
  GptqRounding rounding = {.weights = unseen_.empty() ? w : seen,
                           .columns = coded,
                           .bits = format.bits,
                           .group = codes.group(),
                           .sparse = format.sparse,
                           .scales = grids.scales,
                           .zeros = grids.zeros,
                           .sweeps = options_.sweeps,
                           .codes = codes.codes()};
  if (!fixed_grids) {
    rounding.find_grids = [&](int64_t g, std::span<const double> columns) {
      const auto group = static_cast<size_t>(codes.group());
      codes.FillRows([&](int64_t n) {
        const auto values = columns.subspan(static_cast<size_t>(n) * group, group);
        const WeightGrid& grid = codes.FindGrid(n, g * codes.group(), values);
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
  const GptqLoss loss = device_.Round(rounding);
  result.weights = codes.Pack();
  result.relative_error = loss.power > 0 ? loss.error / loss.power : 0;
  return result;
}

}  // namespace nibble
