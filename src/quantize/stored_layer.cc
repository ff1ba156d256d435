// SPDX-License-Identifier: Apache-2.0
#include "quantize/stored_layer.h"

#include <algorithm>
#include <functional>

#include "base/thread_pool.h"

namespace nibble {

TensorView FloatView(const std::vector<float>& values, std::vector<int64_t> shape) {
  if (values.empty()) return {};
  return {DType::kF32, std::move(shape), reinterpret_cast<const std::byte*>(values.data())};
}

void StoredLinear::SetRounded(Rounded rounded) {
  codes = std::move(rounded.weights);
  tail = std::move(rounded.tail);
  values = {};
}

PackedLinear StoredLinear::View(const InputSpec& input) const {
  PackedLinear linear;
  if (codes.format.quantized()) {
    linear.weights = nibble::View(codes);
  } else {
    linear.weights.rows = values.rows;
    linear.weights.cols = values.cols;
    linear.weights.values = FloatView(values.data, {values.rows, values.cols});
  }
  if (tail.cols > 0) linear.tail = nibble::View(tail);
  linear.bias = FloatView(bias, {static_cast<int64_t>(bias.size())});
  linear.input = input;
  linear.input.gather = gather;
  return linear;
}

LayerWeights StoredLayer::View(const Plan& plan, int64_t layer, bool quantized_activations) const {
  LayerWeights weights;
  for (const auto& [role, linear] : linears) {
    const LinearPlan& p = plan.at(layer, role);
    const bool codes = linear.codes.format.quantized();
    InputSpec input = p.Input((codes ? linear.codes.cols : linear.values.cols) + linear.tail.cols);
    if (!quantized_activations) input.activation = input.tail_activation = {};
    weights[role] = linear.View(input);
  }
  const int64_t hidden = weights[Role::kQ].input.width;
  weights.attention_norm = FloatView(attention_norm, {hidden});
  weights.mlp_norm = FloatView(mlp_norm, {hidden});
  return weights;
}

namespace {

// Everything of the layer, but weights of the roles that `wanted` names only.
StoredLayer StoreSome(const FloatLayer& layer, const std::function<bool(Role)>& wanted) {
  StoredLayer stored;
  for (const auto& [role, weights] : layer.weights) {
    stored[role].bias.assign(layer.biases[role].begin(), layer.biases[role].end());
    stored[role].gather = layer.gathers[role];
    if (!wanted(role)) continue;
    const Matrix<double>& w = weights;
    Matrix<float>& values = stored[role].values = Matrix<float>(w.rows, w.cols);
    ParallelFor(static_cast<size_t>(w.rows), [&](size_t n) {
      const auto row = w.row(static_cast<int64_t>(n));
      std::copy(row.begin(), row.end(), values.row(static_cast<int64_t>(n)).begin());
    });
  }
  stored.attention_norm = layer.attention_norm;
  stored.mlp_norm = layer.mlp_norm;
  return stored;
}

}  // namespace

StoredLayer StoreFloats(const FloatLayer& layer) {
  return StoreSome(layer, [](Role) { return true; });
}

StoredLayer StoreUnquantized(const FloatLayer& layer, const Plan& plan, int64_t index) {
  return StoreSome(layer, [&](Role role) { return !plan.at(index, role).weights.quantized(); });
}

}  // namespace nibble
