// SPDX-License-Identifier: Apache-2.0
#include "quantize/sweep.h"

#include <cblas.h>

#include <algorithm>

#include "base/thread_pool.h"
#include "quantize/gptq_steps.h"

namespace nibble {
namespace {

constexpr int64_t kColumns = 128;  // between two products with all of H

// One pass over columns [begin, end) of row n; slopes = (E H) of these, kept up to date.
void SweepRow(const Matrix<double>& hessian, int64_t n, int64_t begin, int64_t end,
              std::span<double> slopes, std::span<double> errors, CodeMatrix& codes) {
  for (int64_t i = begin; i < end; ++i) {
    const auto h = hessian.row(i);
    const double value = codes.Value(n, i);
    if (codes.sparse() && value == 0) continue;  // pruned, or as good as that
    const double wanted =
        value - slopes[static_cast<size_t>(i - begin)] / h[static_cast<size_t>(i)];
    const double moved = codes.Set(n, i, wanted) - value;
    if (moved == 0) continue;
    errors[static_cast<size_t>(i)] += moved;
    AddScaled(moved, h.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
              slopes.data());
  }
}

}  // namespace

void SweepCodes(const Matrix<double>& hessian, int passes, Matrix<double>& errors,
                CodeMatrix& codes) {
  constexpr int64_t kRows = 32;  // of one task
  const int k = static_cast<int>(hessian.cols);
  ParallelFor(static_cast<size_t>((errors.rows + kRows - 1) / kRows), [&](size_t task) {
    const int64_t first = static_cast<int64_t>(task) * kRows;
    const int64_t rows = std::min(kRows, errors.rows - first);
    Matrix<double> slopes(rows, kColumns);
    for (int pass = 0; pass < passes; ++pass) {
      for (int64_t begin = 0; begin < codes.cols(); begin += kColumns) {
        const int64_t end = std::min(begin + kColumns, codes.cols());
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, static_cast<int>(rows),
                    static_cast<int>(end - begin), k, 1, errors.row(first).data(), k,
                    hessian.data.data() + begin, k, 0, slopes.data.data(), kColumns);
        for (int64_t r = 0; r < rows; ++r) {
          SweepRow(hessian, first + r, begin, end, slopes.row(r), errors.row(first + r), codes);
        }
      }
    }
  });
}

}  // namespace nibble
