// SPDX-License-Identifier: Apache-2.0
#include "quantize/run/rest_tensors.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string_view>

#include "quantize/round/stored_layer.h"

namespace nibble {
namespace {

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

}  // namespace nibble
