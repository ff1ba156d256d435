// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "base/half.h"
#include "quantize/round/code_matrix.h"
#include "quantize/round/round.h"
#include "quantize/round/weight_code.h"

namespace nibble {
namespace {

PackedWeights RoundToHalf(const Matrix<double>& w, const FormatSpec& format) {
  std::vector<uint16_t> values;
  for (const double value : w.data) {
    values.push_back(F16FromF32(static_cast<float>(value)));
    if (!std::isfinite(F32FromF16(values.back()))) {
      Fail("a weight of {:.3g} in a tail of 16 bits is too large for fp16", value);
    }
  }
  return {.format = format,
          .rows = w.rows,
          .cols = w.cols,
          .values = Tensor::Of(DType::kF16, {w.rows, w.cols}, std::move(values))};
}

PackedWeights RoundToCodes(const Matrix<double>& w, const FormatSpec& format) {
  CodeMatrix codes(w, w.cols, format);
  codes.FindGrids(w);
  codes.FillRows([&](int64_t n) {
    const double* row = w.row(n).data();
    if (format.codewords()) {
      const WeightCode code(format);
      const int64_t block = code.weights();
      for (int64_t k = 0; k < w.cols; k += block) {
        codes.codewords()[static_cast<size_t>((n * w.cols + k) / block)] =
            code.Encode({row + k, static_cast<size_t>(block)}, codes.Grid(n, k).scale);
      }
      return;
    }
    uint32_t kept = ~0u;
    for (int64_t k = 0; k < w.cols; ++k) {
      if (format.sparse && k % 4 == 0) {
        kept = LargestTwo({std::fabs(row[k]), std::fabs(row[k + 1]), std::fabs(row[k + 2]),
                           std::fabs(row[k + 3])});
      }
      (kept >> k % 4 & 1) != 0 ? codes.Set(n, k, row[k]) : codes.Prune(n, k);
    }
  });
  return codes.Pack();
}

}  // namespace

PackedWeights RoundColumns(const Matrix<double>& w, const FormatSpec& format) {
  return format.quantized() ? RoundToCodes(w, format) : RoundToHalf(w, format);
}

Matrix<double> Columns(const Matrix<double>& w, int64_t first, int64_t count) {
  Matrix<double> result(w.rows, count);
  for (int64_t n = 0; n < w.rows; ++n) {
    std::copy_n(w.row(n).begin() + first, count, result.row(n).begin());
  }
  return result;
}

Matrix<float> DecodeBoth(const PackedWeights& weights, const PackedWeights& tail) {
  Matrix<float> main = Decode(weights);
  if (tail.cols == 0) return main;
  const Matrix<float> last = Decode(tail);
  Matrix<float> both(main.rows, main.cols + last.cols);
  for (int64_t n = 0; n < main.rows; ++n) {
    const auto end = std::copy(main.row(n).begin(), main.row(n).end(), both.row(n).begin());
    std::copy(last.row(n).begin(), last.row(n).end(), end);
  }
  return both;
}

Rounded RoundNearest(const Matrix<double>& w, const FormatSpec& format, const TailPlan& tail) {
  const int64_t main = w.cols - tail.columns;
  Rounded rounded;
  rounded.weights = RoundColumns(tail.columns == 0 ? w : Columns(w, 0, main), format);
  if (tail.columns > 0) {
    rounded.tail = RoundColumns(Columns(w, main, tail.columns), tail.weights);
  }
  const Matrix<float> decoded = DecodeBoth(rounded.weights, rounded.tail);
  double error = 0, power = 0;
  for (size_t i = 0; i < w.data.size(); ++i) {
    const double difference = static_cast<double>(decoded.data[i]) - w.data[i];
    error += difference * difference;
    power += w.data[i] * w.data[i];
  }
  rounded.relative_error = power > 0 ? error / power : 0;
  return rounded;
}

}  // namespace nibble
