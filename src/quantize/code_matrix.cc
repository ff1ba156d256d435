// SPDX-License-Identifier: Apache-2.0
#include "quantize/code_matrix.h"

#include "base/half.h"
#include "base/thread_pool.h"

namespace nibble {

CodeMatrix::CodeMatrix(const Matrix<double>& w, int64_t cols, const FormatSpec& format)
    : format_(format),
      group_(format.group == 0 ? cols : format.group),
      groups_(format.groups(cols)),
      codes_(w.rows, cols),
      grids_(static_cast<size_t>(w.rows / format.row_share * groups_)) {
  if (!format.second_level) return;
  row_scales_.resize(static_cast<size_t>(w.rows));
  FillRows([&](int64_t n) {
    row_scales_[static_cast<size_t>(n)] =
        FindRowScale(w.row(n).first(static_cast<size_t>(cols)), format);
  });
}

const WeightGrid& CodeMatrix::FindGrid(int64_t n, int64_t k, std::span<const double> values) {
  const float row_scale = row_scales_.empty() ? 0 : row_scales_[static_cast<size_t>(n)];
  WeightGrid& grid = grids_[static_cast<size_t>(n / share() * groups_ + k / group_)];
  return grid = nibble::FindGrid(values, format_, row_scale);
}

void CodeMatrix::FindGrid(int64_t n, int64_t k, const Matrix<double>& w, int64_t at) {
  std::vector<double> values;
  for (int64_t row = at; row < at + share(); ++row) {
    const auto begin = w.row(row).begin() + k / group_ * group_;
    values.insert(values.end(), begin, begin + group_);
  }
  FindGrid(n, k, values);
}

void CodeMatrix::FindGrids(const Matrix<double>& w) {
  FillRows([&](int64_t n) {
    if (n % share() != 0) return;
    for (int64_t k = 0; k < cols(); k += group_) FindGrid(n, k, w, n);
  });
}

void CodeMatrix::FillRows(const std::function<void(int64_t)>& fill) const {
  ParallelFor(static_cast<size_t>(codes_.rows), [&](size_t n) { fill(static_cast<int64_t>(n)); });
}

QuantizedWeights CodeMatrix::Pack() const {
  QuantizedWeights w = {
      .format = format_, .rows = codes_.rows, .cols = codes_.cols, .scales = row_scales_};
  const int64_t row_bytes = PackedBytes(w.cols, format_.bits);
  w.codes.resize(static_cast<size_t>(w.rows * row_bytes));
  FillRows([&](int64_t n) {
    PackCodes(codes_.row(n).data(), w.cols, format_.bits, w.codes.data() + n * row_bytes);
  });
  for (const WeightGrid& grid : grids_) {
    if (format_.second_level) {
      w.group_scales.push_back(static_cast<uint8_t>(grid.group_scale));
    } else {
      w.scales.push_back(grid.scale);
    }
    if (!format_.row_scales()) w.scales_f16.push_back(F16FromF32(grid.scale));
    if (!format_.symmetric) w.zeros.push_back(static_cast<int8_t>(grid.zero));
  }
  return w;
}

}  // namespace nibble
