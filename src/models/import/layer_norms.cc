// SPDX-License-Identifier: Apache-2.0
#include "models/import/layer_norms.h"

#include <numeric>

#include "base/thread_pool.h"

namespace nibble {

void CentreRows(Tensor& table) {
  Matrix<float> values = ToF32(table);
  ParallelFor(static_cast<size_t>(values.rows), [&](size_t n) {
    const auto row = values.row(static_cast<int64_t>(n));
    const double mean =
        std::accumulate(row.begin(), row.end(), 0.0) / static_cast<double>(row.size());
    for (float& value : row) value = static_cast<float>(value - mean);
  });
  table = Tensor::Of(DType::kF32, table.shape, std::move(values.data));
}

void CentreOutputs(PackedLinear& linear) {
  Matrix<float> w = ToF32(linear.weights.values);
  std::vector<double> means(static_cast<size_t>(w.cols));
  for (int64_t n = 0; n < w.rows; ++n) {
    for (size_t k = 0; k < means.size(); ++k) means[k] += w.row(n)[k];
  }
  for (double& mean : means) mean /= static_cast<double>(w.rows);
  for (int64_t n = 0; n < w.rows; ++n) {
    for (size_t k = 0; k < means.size(); ++k) {
      w.row(n)[k] = static_cast<float>(w.row(n)[k] - means[k]);
    }
  }
  linear.weights.values = Tensor::Of(DType::kF32, {w.rows, w.cols}, std::move(w.data));
  if (linear.bias.data == nullptr) return;
  linear.bias.shape = {1, w.rows};
  CentreRows(linear.bias);
  linear.bias.shape = {w.rows};
}

void AddNormBias(const Tensor& norm_bias, PackedLinear& linear) {
  const std::vector<float> added = ToF32(norm_bias).data;
  const Tensor& weights = linear.weights.values;
  const int64_t rows = weights.shape[0];
  std::vector<float> bias = linear.bias.data == nullptr
                                ? std::vector<float>(static_cast<size_t>(rows))
                                : ToF32(linear.bias).data;
  ParallelFor(bias.size(), [&](size_t n) {
    const Matrix<float> row = ToF32(weights.Rows(static_cast<int64_t>(n), 1));
    double sum = bias[n];
    for (size_t k = 0; k < added.size(); ++k) sum += double{row.data[k]} * added[k];
    bias[n] = static_cast<float>(sum);
  });
  linear.bias = Tensor::Of(DType::kF32, {rows}, std::move(bias));
}

}  // namespace nibble
