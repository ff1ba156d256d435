// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "models/network.h"

namespace nibble {

// One layer's float weights after folding and rotation.
struct FloatLayer {
  ByRole<Matrix<double>> weights;      // [N, K]
  ByRole<std::vector<double>> biases;  // [N] or empty
  // Online permutations of the inputs (channels.h), in whose order the columns are; or empty.
  ByRole<std::vector<int32_t>> gathers;
  ByRole<PackedWeights> codes;           // of the source, where they are kept (Rounding::kStored)
  ByVector<std::vector<float>> vectors;  // empty when folded
  DType half = DType::kBf16;             // what 16 bits are, as in the source

  Matrix<double>& operator[](Role role) { return weights[role]; }
  const Matrix<double>& operator[](Role role) const { return weights[role]; }
};

// Layer `index` as it will be rounded.
using FloatLayers = std::function<FloatLayer(int64_t index)>;

// Rows of an embedding, [ids.size(), hidden]: a table of floats may be larger than a layer.
struct EmbeddingRows {
  std::function<Matrix<float>(std::span<const int32_t> ids)> rows;
  const Network* layer_inputs = nullptr;  // whose layers have inputs of their own

  Matrix<float> operator()(std::span<const int32_t> ids) const { return rows(ids); }
};
EmbeddingRows RowsOf(const Matrix<float>& table, double scale = 1);  // which has to stay

}  // namespace nibble
