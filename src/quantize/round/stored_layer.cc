// SPDX-License-Identifier: Apache-2.0
#include "quantize/round/stored_layer.h"

#include <functional>

#include "base/half.h"
#include "base/thread_pool.h"

namespace nibble {
namespace {

// The values as fp32 [N]; no data if there are none.
template <typename T>
Tensor VectorOf(const std::vector<T>& values) {
  return Tensor::Of(DType::kF32, {static_cast<int64_t>(values.size())},
                    std::vector<float>(values.begin(), values.end()));
}

Tensor ToHalf(const Matrix<double>& w, DType half) {
  std::vector<uint16_t> values(w.data.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const auto value = static_cast<float>(w.data[i]);
    values[i] = half == DType::kF16 ? F16FromF32(value) : Bf16FromF32(value);
  }
  return Tensor::Of(half, {w.rows, w.cols}, std::move(values));
}

// Everything of the layer, but weights only where `store` gives some.
LayerWeights StoreSome(
    const FloatLayer& layer,
    const std::function<PackedWeights(Role role, const Matrix<double>& w)>& store) {
  LayerWeights stored;
  for (const auto& [role, w] : layer.weights) {
    PackedLinear& linear = stored[role];
    linear.bias = VectorOf(layer.biases[role]);
    linear.input = {.width = w.cols, .gather = layer.gathers[role]};
    linear.weights = store(role, w);
  }
  for (const auto& [norm, weight] : layer.vectors) stored.vectors[norm] = VectorOf(weight);
  return stored;
}

}  // namespace

Tensor ToFloats(const Matrix<double>& w) {
  std::vector<float> values(w.data.size());
  ParallelFor(static_cast<size_t>(w.rows), [&](size_t n) {
    const auto row = w.row(static_cast<int64_t>(n));
    std::copy(row.begin(), row.end(), values.begin() + static_cast<int64_t>(n) * w.cols);
  });
  return Tensor::Of(DType::kF32, {w.rows, w.cols}, std::move(values));
}

PackedWeights Store(const Matrix<double>& w, const FormatSpec& format, DType half) {
  if (format.quantized()) return RoundColumns(w, format);
  return {.format = format,
          .rows = w.rows,
          .cols = w.cols,
          .values = format.bits == 32 ? ToFloats(w) : ToHalf(w, half)};
}

LayerWeights StoreFloats(const FloatLayer& layer) {
  return StoreSome(
      layer, [&](Role, const Matrix<double>& w) { return Store(w, {.bits = 32}, layer.half); });
}

LayerWeights StoreUnquantized(const FloatLayer& layer, const Plan& plan, int64_t index) {
  LayerWeights stored = StoreSome(layer, [&](Role role, const Matrix<double>& w) {
    const FormatSpec& format = plan.at(index, role).weights;
    return format.quantized() ? PackedWeights() : Store(w, format, layer.half);
  });
  for (auto& [role, linear] : stored.linears) {
    if (!plan.at(index, role).input_scales) continue;
    linear.input.scales.assign(static_cast<size_t>(linear.input.width), 1.0f);
  }
  return stored;
}

void SetRounded(Rounded rounded, PackedLinear& linear) {
  linear.weights = std::move(rounded.weights);
  linear.tail = std::move(rounded.tail);
}

LayerWeights StoreNearest(const FloatLayer& layer, const Plan& plan, int64_t index) {
  LayerWeights stored = StoreUnquantized(layer, plan, index);
  for (const auto& [role, w] : layer.weights) {
    const LinearPlan& linear = plan.at(index, role);
    if (!linear.weights.quantized()) continue;
    SetRounded(RoundNearest(w, linear.weights, linear.tail), stored[role]);
  }
  return stored;
}

LayerWeights RoundLayerNearest(FloatLayer layer, const Plan& plan, int64_t index,
                               std::map<Role, double>& errors) {
  LayerWeights stored = StoreUnquantized(layer, plan, index);
  for (auto& [role, weights] : layer.weights) {
    const LinearPlan& linear = plan.at(index, role);
    if (!linear.weights.quantized()) continue;
    if (layer.codes[role].rows > 0) {
      stored[role].weights = layer.codes[role];
      continue;
    }
    Rounded rounded = RoundNearest(weights, linear.weights, linear.tail);
    errors[role] = rounded.relative_error;
    SetRounded(std::move(rounded), stored[role]);
    weights = {};
  }
  return stored;
}

LayerWeights Planned(LayerWeights layer, const Plan& plan, int64_t index) {
  for (auto& [role, linear] : layer.linears) {
    InputSpec own = std::move(linear.input);
    linear.input = plan.at(index, role).Input(own.width);
    linear.input.scales = std::move(own.scales), linear.input.gather = std::move(own.gather);
    linear.output_transform = plan.at(index, role).output_transform;
  }
  return layer;
}

}  // namespace nibble
