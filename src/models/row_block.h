// SPDX-License-Identifier: Apache-2.0
// Linears that share a tensor.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace nibble {

// A linear's rows are runs of `run` (0: one run), from row `first` on and `period` apart, of a
// tensor of `total` rows, or of `stacked` matrices that have so many in all and may be stored with
// inputs and outputs exchanged; total = 0: the linear is the whole tensor.
struct RowBlock {
  int64_t first = 0, total = 0, stacked = 1, run = 0, period = 0;
  bool transposed = false;

  // The tensor's row that holds the linear's row n.
  int64_t Row(int64_t n) const { return run == 0 ? first + n : first + n / run * period + n % run; }
};

// The shape of the tensor that the block of a linear of `cols` inputs lies in.
std::vector<int64_t> ShapeOf(const RowBlock& block, int64_t cols);
// The block's rows [rows, cols] of `all`, which has that shape: a view where they lie together,
// else a copy.
Tensor RowsOf(const Tensor& all, const RowBlock& block, int64_t rows, int64_t cols);
// The block's rows of MXFP4 as Hugging Face stores it (OCP Microscaling formats, 2023): blocks [..,
// cols / 32, 16] with two neighbours in a byte, the even one low, and exponents [.., cols / 32]. A
// copy in GGUF's order of bytes.
Tensor RowsOfMxfp4(const Tensor& blocks, const Tensor& exponents, const RowBlock& block,
                   int64_t rows, int64_t cols);

}  // namespace nibble
