// SPDX-License-Identifier: Apache-2.0
#include "quantize/code_matrix.h"
#include "quantize/round.h"

namespace nibble {

Rounded RoundNearest(const Matrix<double>& w, const FormatSpec& format) {
  CodeMatrix codes(w.rows, w.cols, format);
  std::vector<double> error(static_cast<size_t>(w.rows)), power(error);
  codes.FillRows([&](int64_t n) {
    const auto row = w.row(n);
    for (int64_t k = 0; k < w.cols; ++k) {
      if (k % codes.group() == 0) codes.SetGrid(n, k, FindGrid(codes.Group(row, k), format));
      const double value = row[static_cast<size_t>(k)];
      const double rounded = codes.Set(n, k, value);
      error[static_cast<size_t>(n)] += (rounded - value) * (rounded - value);
      power[static_cast<size_t>(n)] += value * value;
    }
  });
  double total_error = 0, total_power = 0;
  for (size_t n = 0; n < error.size(); ++n) {
    total_error += error[n];
    total_power += power[n];
  }
  return {.weights = codes.Pack(),
          .relative_error = total_power > 0 ? total_error / total_power : 0};
}

}  // namespace nibble
