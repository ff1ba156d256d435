// SPDX-License-Identifier: Apache-2.0
#include "formats/packed_linear.h"

#include <algorithm>
#include <cmath>

#include "tensor/finite.h"

namespace nibble {
namespace {

void RequirePermutation(std::span<const int32_t> gather, int64_t width, const std::string& where) {
  if (gather.empty()) return;
  if (static_cast<int64_t>(gather.size()) != width) {
    Fail("{}: {} entries for an input of width {}", where, gather.size(), width);
  }
  std::vector<bool> seen(gather.size());
  for (const int32_t from : gather) {
    if (from < 0 || from >= width || seen[static_cast<size_t>(from)]) {
      Fail("{}: not a permutation, see entry {}", where, from);
    }
    seen[static_cast<size_t>(from)] = true;
  }
}

void RequireScales(std::span<const float> scales, int64_t width, const std::string& where) {
  if (scales.empty()) return;
  if (static_cast<int64_t>(scales.size()) != width) {
    Fail("{}: {} entries for an input of width {}", where, scales.size(), width);
  }
  for (size_t i = 0; i < scales.size(); ++i) {
    if (!std::isfinite(scales[i]) || scales[i] == 0) {
      Fail("{}: entry {} is {}", where, i, scales[i]);
    }
  }
}

}  // namespace

std::string TailedText(const FormatSpec& main, int64_t tail_columns, const FormatSpec& tail) {
  if (tail_columns == 0) return FormatText(main);
  return fmt::format("{} + {} at {}", FormatText(main), tail_columns, FormatText(tail));
}

std::string OnlineText(bool scales, const TransformSpec& transform, int transform_bits, bool gather,
                       const TransformSpec& of_outputs) {
  std::vector<std::string> steps;
  if (scales) steps.push_back("scales");
  if (!transform.identity()) {
    const bool asked = transform_bits != 0;
    steps.push_back(TransformText(transform) +
                    (asked ? fmt::format(" in fp{}", transform_bits) : std::string()));
  }
  if (gather) steps.push_back("gather");
  std::string text = fmt::format("{}", fmt::join(steps, ", "));
  if (!of_outputs.identity()) {
    text += fmt::format("{}outputs {}", steps.empty() ? "" : "; ", TransformText(of_outputs));
  }
  return text.empty() ? "-" : text;
}

PackedLinear InFloats(const PackedLinear& linear) {
  const InputSpec& input = linear.input;
  NIBBLE_CHECK(input.tail_width == 0 && input.transform.identity() && input.scales.empty() &&
               linear.output_transform.identity());
  Matrix<float> w = Decode(linear.weights);
  if (!input.gather.empty()) {
    std::vector<float> gathered(static_cast<size_t>(w.cols));
    for (int64_t n = 0; n < w.rows; ++n) {
      std::ranges::copy(w.row(n), gathered.begin());
      for (size_t i = 0; i < gathered.size(); ++i)
        w.row(n)[static_cast<size_t>(input.gather[i])] = gathered[i];
    }
  }
  PackedLinear floats = {.weights = FloatTable(w), .bias = linear.bias, .input = {.width = w.cols}};
  floats.weights.values = Tensor::Of(DType::kF32, {w.rows, w.cols}, std::move(w.data));
  return floats;
}

void ValidateLinear(const PackedLinear& linear, const std::string& where) {
  const InputSpec& input = linear.input;
  const int64_t rows = linear.weights.rows;
  if (input.tail_width < 0 || input.tail_width >= input.width) {
    Fail("{}: a tail of {} of {} inputs", where, input.tail_width, input.width);
  }
  if (!input.transform.identity() && input.transform.width() != input.width) {
    Fail("{}: online transform of width {}, weights of width {}", where, input.transform.width(),
         input.width);
  }
  const TransformSpec& outputs = linear.output_transform;
  if (!outputs.identity() && outputs.width() != rows) {
    Fail("{}: online transform of width {}, {} outputs", where, outputs.width(), rows);
  }
  RequireScales(input.scales, input.width, where + ".input_scales");
  RequirePermutation(input.gather, input.width, where + ".gather");
  if (linear.bias.data != nullptr &&
      (!IsFloat(linear.bias.dtype) || linear.bias.shape != std::vector<int64_t>{rows})) {
    Fail("{}: bias of shape {}", where, ShapeText(linear.bias.shape));
  }
  if (linear.bias.data != nullptr) RequireFinite(linear.bias, where + ".bias");
  ValidateWeights(linear.weights, rows, input.main_width(), input.activations, where);
  if (input.tail_width == 0 && linear.tail.cols == 0) return;
  ValidateWeights(linear.tail, rows, input.tail_width, input.tail_activations, where + ".tail");
}

}  // namespace nibble
