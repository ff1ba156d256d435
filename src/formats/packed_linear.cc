// SPDX-License-Identifier: Apache-2.0
#include "formats/packed_linear.h"

#include <cmath>

#include "base/checked.h"
#include "base/half.h"

namespace nibble {
namespace {

template <typename T>
TensorView ViewOf(DType dtype, std::vector<int64_t> shape, const std::vector<T>& data) {
  return {dtype, std::move(shape), reinterpret_cast<const std::byte*>(data.data())};
}

void RequirePlane(const TensorView& plane, DType dtype, std::vector<int64_t> shape,
                  const std::string& what) {
  if (plane.data == nullptr) Fail("{} is missing", what);
  if (plane.dtype != dtype || plane.shape != shape) {
    Fail("{} is {} {}, expected {} {}", what, DTypeName(plane.dtype), ShapeText(plane.shape),
         DTypeName(dtype), ShapeText(shape));
  }
}

bool IsFloat(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBf16;
}

}  // namespace

size_t PackedWeights::bytes() const {
  size_t total = 0;
  for (const TensorView* plane : {&values, &codes, &scales, &zeros}) {
    if (plane->data != nullptr) total += plane->bytes();
  }
  return total;
}

PackedWeights View(const QuantizedWeights& w) {
  const int64_t groups = w.format.groups(w.cols);
  PackedWeights view = {.format = w.format, .rows = w.rows, .cols = w.cols};
  view.codes = ViewOf(DType::kU8, {w.rows, PackedBytes(w.cols, w.format.bits)}, w.codes);
  view.scales = w.format.group == 0 ? ViewOf(DType::kF32, {w.rows, groups}, w.scales)
                                    : ViewOf(DType::kF16, {w.rows, groups}, w.scales_f16);
  if (!w.format.symmetric) view.zeros = ViewOf(DType::kI8, {w.rows, groups}, w.zeros);
  return view;
}

Matrix<float> DecodeScales(const PackedWeights& w) {
  return ToF32(w.scales);
}

Matrix<int32_t> DecodeZeros(const PackedWeights& w) {
  Matrix<int32_t> zeros(w.rows, w.groups());
  if (w.format.symmetric) return zeros;
  const auto stored = w.zeros.as<int8_t>();
  for (size_t i = 0; i < zeros.data.size(); ++i) zeros.data[i] = stored[i];
  return zeros;
}

Matrix<float> Decode(const PackedWeights& w) {
  if (!w.format.quantized()) return ToF32(w.values);
  const Matrix<float> scales = DecodeScales(w);
  const Matrix<int32_t> zeros = DecodeZeros(w);
  const int64_t group = w.cols / w.groups();
  const auto packed = w.codes.as<uint8_t>();
  const int64_t row_bytes = PackedBytes(w.cols, w.format.bits);
  Matrix<float> values(w.rows, w.cols);
  std::vector<int16_t> codes(static_cast<size_t>(w.cols));
  for (int64_t n = 0; n < w.rows; ++n) {
    UnpackCodes(packed.data() + n * row_bytes, w.cols, w.format.bits, true, codes.data());
    const auto row = values.row(n);
    for (int64_t k = 0; k < w.cols; ++k) {
      const int64_t g = k / group;
      const size_t i = static_cast<size_t>(k);
      row[i] = scales.row(n)[static_cast<size_t>(g)] *
               static_cast<float>(codes[i] - zeros.row(n)[static_cast<size_t>(g)]);
    }
  }
  return values;
}

void ValidateLinear(const PackedLinear& linear, const std::string& where) {
  const PackedWeights& w = linear.weights;
  const FormatSpec& act = linear.input.activation;
  if (w.rows <= 0 || w.cols <= 0) Fail("{}: shape [{}, {}]", where, w.rows, w.cols);
  if (linear.input.width != w.cols) {
    Fail("{}: input of width {}, weights of width {}", where, linear.input.width, w.cols);
  }
  if (!linear.input.transform.identity() && linear.input.transform.width() != w.cols) {
    Fail("{}: online transform of width {}, weights of width {}", where,
         linear.input.transform.width(), w.cols);
  }
  for (const FormatSpec* f : {&w.format, &act}) {
    if (f->group != 0 && (w.cols % f->group != 0 || f->group % 32 != 0)) {
      Fail("{}: group {} must be a multiple of 32 that divides the width {}", where, f->group,
           w.cols);
    }
  }
  if (linear.bias.data != nullptr &&
      (!IsFloat(linear.bias.dtype) || linear.bias.shape != std::vector<int64_t>{w.rows})) {
    Fail("{}: bias of shape {}", where, ShapeText(linear.bias.shape));
  }
  if (!w.format.quantized()) {
    if (w.values.data == nullptr || !IsFloat(w.values.dtype) ||
        w.values.shape != std::vector<int64_t>{w.rows, w.cols}) {
      Fail("{}: weights must be a float tensor of shape [{}, {}]", where, w.rows, w.cols);
    }
    return;
  }
  const int64_t groups = w.groups();
  RequirePlane(w.codes, DType::kU8, {w.rows, PackedBytes(w.cols, w.format.bits)}, where + ".codes");
  RequirePlane(w.scales, w.format.group == 0 ? DType::kF32 : DType::kF16, {w.rows, groups},
               where + ".scales");
  if (!w.format.symmetric) RequirePlane(w.zeros, DType::kI8, {w.rows, groups}, where + ".zeros");
  for (float scale : DecodeScales(w).data) {
    if (!std::isfinite(scale) || scale <= 0) Fail("{}.scales: {} is not a scale", where, scale);
  }
  // |sum| <= K * 255 * 128 with codes stored as unsigned bytes; also covers sums of fewer bits.
  if (w.cols > INT32_MAX / (255 * 128)) {
    Fail("{}: {} inputs could overflow 32-bit sums", where, w.cols);
  }
}

}  // namespace nibble
