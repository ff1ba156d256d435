// SPDX-License-Identifier: Apache-2.0
// Codes and grids of a weight matrix while it is being rounded; Pack() gives the stored planes.
#pragma once

#include <array>
#include <functional>
#include <span>
#include <vector>

#include "compute/gptq_math.h"
#include "formats/packed_linear.h"
#include "quantize/round/weight_grid.h"

namespace nibble {

// 2:4 sparsity: a bit for each of the two of four columns that stay, the most important ones; of
// equal ones the first.
uint32_t LargestTwo(const std::array<double, 4>& importance);

class CodeMatrix {
 public:
  // Takes the first `cols` columns of w, and finds their row scales where the format has a second
  // level.
  CodeMatrix(const Matrix<double>& w, int64_t cols, const FormatSpec& format);

  int64_t cols() const { return codes_.cols; }
  bool sparse() const { return format_.sparse; }
  int64_t group() const { return group_; }  // columns of a row that share a grid
  // The grid of row n in the group that holds column k.
  const WeightGrid& Grid(int64_t n, int64_t k) const {
    return grids_[static_cast<size_t>(n * groups_ + k / group_)];
  }
  // Makes the grid the best one for `values`, which are the group's.
  const WeightGrid& FindGrid(int64_t n, int64_t k, std::span<const double> values);
  // Finds the grids of all groups.
  void FindGrids(const Matrix<double>& w);
  // Stores the code of `value` at (n, k).
  void Set(int64_t n, int64_t k, double value) {
    codes_.row(n)[static_cast<size_t>(k)] = static_cast<int8_t>(Grid(n, k).Code(value));
  }
  // Stores the code of 0 for a weight that is pruned; in a sparse matrix two in four at least are.
  void Prune(int64_t n, int64_t k) {
    codes_.row(n)[static_cast<size_t>(k)] = static_cast<int8_t>(Grid(n, k).zero);
  }

  std::span<int8_t> codes() { return codes_.data; }  // [N, K]
  // [N, K / weights of one] of a codebook that has some, or empty.
  std::span<uint32_t> codewords() { return codewords_.data; }

  // fill(n) for every row, in parallel.
  void FillRows(const std::function<void(int64_t)>& fill) const;
  PackedWeights Pack() const;

 private:
  PackedWeights PackFloats() const;  // what the codewords mean, in fp16
  // Appends which two of four columns are stored, and their codes: those that are not 0 are.
  void KeepTwo(int64_t n, int64_t k, std::vector<int8_t>& codes, std::vector<int8_t>& places) const;

  FormatSpec format_;
  int64_t group_, groups_;
  Matrix<int8_t> codes_;  // [N, K]
  Matrix<uint32_t> codewords_;
  std::vector<WeightGrid> grids_;  // [N, groups]
  std::vector<float> row_scales_;  // [N], of a second level only
};

}  // namespace nibble
