// SPDX-License-Identifier: Apache-2.0
#include "quantize/stored_layer.h"

#include <functional>

#include "base/half.h"
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

// Block after block of rows: as floats, a whole table takes more memory than the model in 4 bits.
PackedWeights StoreTable(const std::function<Matrix<float>(int64_t first, int64_t count)>& part,
                         int64_t rows, const FormatSpec& format, DType half) {
  constexpr int64_t kBlock = 4096;
  PackedWeights table;
  std::map<std::string_view, std::vector<std::byte>> planes;
  for (int64_t first = 0; first < rows; first += kBlock) {
    const int64_t count = std::min(kBlock, rows - first);
    const Matrix<float> values = part(first, count);
    table = Store(ToF64(Borrow(values)), format, half);
    for (const Plane& plane : PlanesOf(format, count, values.cols)) {
      const Tensor& some = table.*plane.tensor;
      planes[plane.suffix].insert(planes[plane.suffix].end(), some.data, some.data + some.bytes());
    }
  }
  table.rows = rows;
  for (const Plane& plane : PlanesOf(format, rows, table.cols)) {
    Tensor& whole = table.*plane.tensor;
    const auto bytes =
        std::make_shared<const std::vector<std::byte>>(std::move(planes[plane.suffix]));
    whole = {whole.dtype, plane.shape, bytes->data(), bytes};
  }
  return table;
}

}  // namespace

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

std::vector<NamedTensor> RestTensors(const Rotator& rotator, const Network& source,
                                     const Plan& plan, const Matrix<float>& head) {
  std::vector<NamedTensor> tensors;
  for (Role role : source.config.model_roles()) {
    if (role == Role::kHead && plan.tied_head) continue;
    const auto part = [&](int64_t first, int64_t count) {
      if (role != Role::kHead || head.data.empty()) return rotator.TableRows(role, first, count);
      Matrix<float> rows(count, head.cols);
      std::copy_n(head.row(first).begin(), rows.data.size(), rows.data.begin());
      return rows;
    };
    const PackedLinear table = {.weights = StoreTable(part, source.config.outputs(0, role),
                                                      plan.at(0, role).weights, rotator.half()),
                                .bias = role == Role::kHead ? source.head.bias : Tensor()};
    for (NamedTensor& t : LinearTensors(LinearName(0, role), table)) {
      tensors.push_back(std::move(t));
    }
  }
  if (source.config.learned_positions) {
    const Matrix<double> rows = rotator.Positions();
    tensors.push_back(
        {"positions", Tensor::Of(DType::kF32, {rows.rows, rows.cols},
                                 std::vector<float>(rows.data.begin(), rows.data.end()))});
  }
  if (source.config.layer_input_size > 0) {
    tensors.push_back({"layer_input_norm", source.layer_input_norm});
  }
  if (plan.head_rotation) {
    tensors.push_back({"head_turn", ToFloats(rotator.HeadRotation())});
  } else if (!plan.norms_folded || plan.tied_head) {
    tensors.push_back({"final_norm", source.final_norm});
  }
  return tensors;
}

LayerWeights Planned(LayerWeights layer, const Plan& plan, int64_t index) {
  for (auto& [role, linear] : layer.linears) {
    InputSpec own = std::move(linear.input);
    linear.input = plan.at(index, role).Input(own.width);
    linear.input.scales = std::move(own.scales), linear.input.gather = std::move(own.gather);
  }
  return layer;
}

}  // namespace nibble
