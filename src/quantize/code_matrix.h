// SPDX-License-Identifier: Apache-2.0
// Codes and grids of a weight matrix while it is being rounded; Pack() gives the stored planes.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "formats/packed_linear.h"
#include "quantize/weight_grid.h"

namespace nibble {

class CodeMatrix {
 public:
  CodeMatrix(int64_t rows, int64_t cols, const FormatSpec& format);

  int64_t cols() const { return codes_.cols; }
  int64_t group() const { return group_; }  // columns that share a grid
  // The values of the group that holds column k.
  std::span<const double> Group(std::span<const double> row, int64_t k) const {
    return row.subspan(static_cast<size_t>(k / group_ * group_), static_cast<size_t>(group_));
  }
  void SetGrid(int64_t n, int64_t k, const WeightGrid& grid) {
    grids_[static_cast<size_t>(n * groups_ + k / group_)] = grid;
  }
  // Stores the code of `value` at (n, k) and returns what the code means.
  double Set(int64_t n, int64_t k, double value) {
    const WeightGrid& grid = grids_[static_cast<size_t>(n * groups_ + k / group_)];
    const int code = grid.Code(value);
    codes_.row(n)[static_cast<size_t>(k)] = static_cast<int8_t>(code);
    return grid.Value(code);
  }

  std::span<int8_t> codes() { return codes_.data; }             // [N, K]
  std::span<const WeightGrid> grids() const { return grids_; }  // [N, groups]

  // fill(n) for every row, in parallel.
  void FillRows(const std::function<void(int64_t)>& fill) const;
  QuantizedWeights Pack() const;

 private:
  FormatSpec format_;
  int64_t group_, groups_;
  Matrix<int8_t> codes_;           // [N, K]
  std::vector<WeightGrid> grids_;  // [N, groups]
};

}  // namespace nibble
