// SPDX-License-Identifier: Apache-2.0
#include "quantize/stored_layer.h"

#include <functional>

#include "base/thread_pool.h"

namespace nibble {
namespace {

Tensor ToFloats(const Matrix<double>& w) {
  std::vector<float> values(w.data.size());
  ParallelFor(static_cast<size_t>(w.rows), [&](size_t n) {
    const auto row = w.row(static_cast<int64_t>(n));
    std::copy(row.begin(), row.end(), values.begin() + static_cast<int64_t>(n) * w.cols);
  });
  return Tensor::Of(DType::kF32, {w.rows, w.cols}, std::move(values));
}

// [N], or no data.
template <typename T>
Tensor VectorOf(const std::vector<T>& values) {
  return Tensor::Of(DType::kF32, {static_cast<int64_t>(values.size())},
                    std::vector<float>(values.begin(), values.end()));
}

// Everything of the layer, but weights of the roles that `wanted` names only.
LayerWeights StoreSome(const FloatLayer& layer, const std::function<bool(Role)>& wanted) {
  LayerWeights stored;
  for (const auto& [role, w] : layer.weights) {
    PackedLinear& linear = stored[role];
    linear.bias = VectorOf(layer.biases[role]);
    linear.input = {.width = w.cols, .gather = layer.gathers[role]};
    if (wanted(role)) linear.weights = {.rows = w.rows, .cols = w.cols, .values = ToFloats(w)};
  }
  stored.attention_norm = VectorOf(layer.attention_norm);
  stored.mlp_norm = VectorOf(layer.mlp_norm);
  return stored;
}

}  // namespace

LayerWeights StoreFloats(const FloatLayer& layer) {
  return StoreSome(layer, [](Role) { return true; });
}

LayerWeights StoreUnquantized(const FloatLayer& layer, const Plan& plan, int64_t index) {
  return StoreSome(layer, [&](Role role) { return !plan.at(index, role).weights.quantized(); });
}

void SetRounded(Rounded rounded, PackedLinear& linear) {
  linear.weights = std::move(rounded.weights);
  linear.tail = std::move(rounded.tail);
}

LayerWeights Planned(LayerWeights layer, const Plan& plan, int64_t index) {
  for (auto& [role, linear] : layer.linears) {
    std::vector<int32_t> gather = std::move(linear.input.gather);
    linear.input = plan.at(index, role).Input(linear.input.width);
    linear.input.gather = std::move(gather);
  }
  return layer;
}

}  // namespace nibble
