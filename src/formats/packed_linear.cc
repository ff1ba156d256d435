// SPDX-License-Identifier: Apache-2.0
#include "formats/packed_linear.h"

#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "base/half.h"
#include "base/thread_pool.h"
#include "tensor/finite.h"

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

// [N, count] of a plane [N / row_share, count].
template <typename T, typename Stored>
Matrix<T> ForEachRow(const PackedWeights& w, int64_t count, const Stored& stored) {
  Matrix<T> all(w.rows, count);
  for (int64_t n = 0; n < w.rows; ++n) {
    const auto from = stored.begin() + n / w.format.row_share * count;
    std::copy(from, from + count, all.row(n).begin());
  }
  return all;
}

// No code may leave 8 bits: kernels multiply and add bytes.
void ValidateGroupScales(const PackedWeights& w, const FormatSpec& activation,
                         const std::string& where) {
  if (activation.quantized() && activation.group != 0) {
    Fail("{}: two levels of scales take inputs without groups", where);
  }
  RequirePlane(w.group_scales, DType::kU8, {w.rows, w.groups()}, where + ".group_scales");
  const auto scales = w.group_scales.as<uint8_t>();
  const Matrix<int32_t> zeros = DecodeZeros(w);
  for (size_t i = 0; i < scales.size(); ++i) {
    const int32_t zero = zeros.data[i];
    if (zero < -8 || zero > 7 || scales[i] < 1 || scales[i] > LargestGroupScale(zero)) {
      Fail("{}.group_scales: {} with zero {} has codes that do not fit into 8 bits", where,
           scales[i], zero);
    }
  }
}

// Two rising places in every half byte.
void RequirePlaces(const PackedWeights& w, const std::string& where) {
  if (w.cols % 8 != 0) Fail("{}: {} inputs of sparse weights, not a multiple of 8", where, w.cols);
  RequirePlane(w.places, DType::kU8, {w.rows, PackedBytes(w.cols / 2, 2)}, where + ".places");
  for (const uint8_t byte : w.places.as<uint8_t>()) {
    const int first = byte & 3, second = byte >> 2 & 3, third = byte >> 4 & 3, fourth = byte >> 6;
    if (first < second && third < fourth) continue;
    Fail("{}.places: {} {} {} {} do not rise", where, first, second, third, fourth);
  }
}

// Weights of `rows` x `cols` whose inputs have the format `activation`.
void ValidateWeights(const PackedWeights& w, int64_t rows, int64_t cols,
                     const FormatSpec& activation, const std::string& where) {
  if (w.rows != rows || w.cols != cols || rows <= 0 || cols <= 0) {
    Fail("{}: shape [{}, {}] for {} outputs and {} inputs", where, w.rows, w.cols, rows, cols);
  }
  for (const FormatSpec* f : {&w.format, &activation}) {
    if (f->group != 0 && (cols % f->group != 0 || f->group % 32 != 0)) {
      Fail("{}: group {} must be a multiple of 32 that divides the width {}", where, f->group,
           cols);
    }
  }
  if (!w.format.quantized()) {
    if (w.values.data == nullptr || !IsFloat(w.values.dtype) ||
        w.values.shape != std::vector<int64_t>{rows, cols}) {
      Fail("{}: weights must be a float tensor of shape [{}, {}]", where, rows, cols);
    }
    return;
  }
  if (rows % w.format.row_share != 0) {
    Fail("{}: {} outputs do not divide among scales of {} rows", where, rows, w.format.row_share);
  }
  const int64_t groups = w.groups(), scale_rows = w.scale_rows();
  if (w.format.sparse) RequirePlaces(w, where);
  RequirePlane(w.codes, DType::kU8, {rows, PackedBytes(w.format.stored(cols), w.format.bits)},
               where + ".codes");
  RequirePlane(w.scales, w.format.row_scales() ? DType::kF32 : DType::kF16,
               {scale_rows, w.format.scales(cols)}, where + ".scales");
  if (!w.format.symmetric) {
    RequirePlane(w.zeros, DType::kI8, {scale_rows, groups}, where + ".zeros");
  }
  if (w.format.second_level) ValidateGroupScales(w, activation, where);
  for (float scale : ToF32(w.scales).data) {
    if (!std::isfinite(scale) || scale <= 0) Fail("{}.scales: {} is not a scale", where, scale);
  }
  // |sum| <= K * 255 * 128 with codes stored as unsigned bytes; also covers sums of fewer bits.
  if (cols > INT32_MAX / (255 * 128)) {
    Fail("{}: {} inputs could overflow 32-bit sums", where, cols);
  }
}

}  // namespace

size_t PackedWeights::bytes() const {
  size_t total = 0;
  for (const TensorView* plane : {&values, &codes, &places, &scales, &group_scales, &zeros}) {
    if (plane->data != nullptr) total += plane->bytes();
  }
  return total;
}

PackedWeights View(const QuantizedWeights& w) {
  PackedWeights view = {.format = w.format, .rows = w.rows, .cols = w.cols};
  const int64_t groups = view.groups(), scale_rows = view.scale_rows();
  if (!w.format.quantized()) {
    view.values = ViewOf(DType::kF16, {w.rows, w.cols}, w.values_f16);
    return view;
  }
  const int64_t stored = w.format.stored(w.cols);
  view.codes = ViewOf(DType::kU8, {w.rows, PackedBytes(stored, w.format.bits)}, w.codes);
  if (w.format.sparse) view.places = ViewOf(DType::kU8, {w.rows, w.cols / 8}, w.places);
  view.scales = w.format.row_scales() ? ViewOf(DType::kF32, {scale_rows, 1}, w.scales)
                                      : ViewOf(DType::kF16, {scale_rows, groups}, w.scales_f16);
  if (w.format.second_level) {
    view.group_scales = ViewOf(DType::kU8, {w.rows, groups}, w.group_scales);
  }
  if (!w.format.symmetric) view.zeros = ViewOf(DType::kI8, {scale_rows, groups}, w.zeros);
  return view;
}

std::string TailedText(const FormatSpec& main, int64_t tail_columns, const FormatSpec& tail) {
  if (tail_columns == 0) return FormatText(main);
  return fmt::format("{} + {} at {}", FormatText(main), tail_columns, FormatText(tail));
}

std::string OnlineText(const TransformSpec& transform, bool gather) {
  if (!gather) return TransformText(transform);
  return transform.identity() ? "gather" : TransformText(transform) + ", gather";
}

int LargestGroupScale(int zero) {
  const int below = zero + 8, above = 7 - zero;
  return std::min(128 / std::max(below, 1), 127 / std::max(above, 1));
}

uint16_t LevelStep(int group_scale, int zero) {
  return static_cast<uint16_t>(group_scale | (128 - (8 + zero) * group_scale) << 8);
}

QuantizedWeights Widen(const PackedWeights& w) {
  QuantizedWeights wide = {.format = {.bits = 8}, .rows = w.rows, .cols = w.cols};
  wide.scales = DecodeScales(w).data;
  wide.codes.resize(static_cast<size_t>(w.rows * w.cols));
  const Matrix<int32_t> zeros = DecodeZeros(w);
  const auto group_scales = w.group_scales.as<uint8_t>();
  ParallelFor(static_cast<size_t>(w.rows), [&](size_t n) {
    std::vector<int16_t> codes(static_cast<size_t>(w.cols));
    const auto row = static_cast<int64_t>(n);
    UnpackRow(w, row, codes);
    for (int64_t k = 0; k < w.cols; ++k) {
      const auto g = static_cast<size_t>(row * w.groups() + k / w.format.group);
      const int32_t code = (codes[static_cast<size_t>(k)] - zeros.data[g]) * group_scales[g];
      wide.codes[static_cast<size_t>(row * w.cols + k)] = static_cast<uint8_t>(code);
    }
  });
  return wide;
}

Matrix<float> DecodeScales(const PackedWeights& w) {
  return ForEachRow<float>(w, w.format.scales(w.cols), ToF32(w.scales).data);
}

Matrix<int32_t> DecodeZeros(const PackedWeights& w) {
  if (w.format.symmetric) return Matrix<int32_t>(w.rows, w.groups());
  return ForEachRow<int32_t>(w, w.groups(), w.zeros.as<int8_t>());
}

void UnpackRow(const PackedWeights& w, int64_t n, std::span<int16_t> codes) {
  const int64_t stored = w.format.stored(w.cols);
  const uint8_t* packed = w.codes.as<uint8_t>().data() + n * PackedBytes(stored, w.format.bits);
  if (!w.format.sparse) return UnpackCodes(packed, stored, w.format.bits, true, codes.data());
  std::vector<int16_t> kept(static_cast<size_t>(stored)), places(kept.size());
  UnpackCodes(packed, stored, w.format.bits, true, kept.data());
  UnpackCodes(w.places.as<uint8_t>().data() + n * PackedBytes(stored, 2), stored, 2, false,
              places.data());
  const size_t groups = static_cast<size_t>(w.groups()), group = codes.size() / groups;
  for (size_t g = 0; g < groups; ++g) {
    const size_t at = static_cast<size_t>(n / w.format.row_share) * groups + g;
    const int16_t zero = w.format.symmetric ? int16_t{0} : w.zeros.as<int8_t>()[at];
    std::ranges::fill(codes.subspan(g * group, group), zero);
  }
  for (size_t i = 0; i < kept.size(); ++i) {
    codes[i / 2 * 4 + static_cast<size_t>(places[i])] = kept[i];
  }
}

void RepackRow(const PackedWeights& w, int64_t n, int bits, uint8_t* packed) {
  std::vector<int16_t> wide(static_cast<size_t>(w.cols));
  UnpackRow(w, n, wide);
  const std::vector<int8_t> codes(wide.begin(), wide.end());
  PackCodes(codes.data(), w.cols, bits, packed);
}

Matrix<float> Decode(const PackedWeights& w) {
  if (!w.format.quantized()) return ToF32(w.values);
  if (w.format.second_level) return Decode(View(Widen(w)));
  const Matrix<float> scales = DecodeScales(w);
  const Matrix<int32_t> zeros = DecodeZeros(w);
  const int64_t group = w.cols / w.groups();
  Matrix<float> values(w.rows, w.cols);
  std::vector<int16_t> codes(static_cast<size_t>(w.cols));
  for (int64_t n = 0; n < w.rows; ++n) {
    UnpackRow(w, n, codes);
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
  const InputSpec& input = linear.input;
  const int64_t rows = linear.weights.rows;
  if (input.tail_width < 0 || input.tail_width >= input.width) {
    Fail("{}: a tail of {} of {} inputs", where, input.tail_width, input.width);
  }
  if (!input.transform.identity() && input.transform.width() != input.width) {
    Fail("{}: online transform of width {}, weights of width {}", where, input.transform.width(),
         input.width);
  }
  RequirePermutation(input.gather, input.width, where + ".gather");
  if (linear.bias.data != nullptr &&
      (!IsFloat(linear.bias.dtype) || linear.bias.shape != std::vector<int64_t>{rows})) {
    Fail("{}: bias of shape {}", where, ShapeText(linear.bias.shape));
  }
  if (linear.bias.data != nullptr) RequireFinite(linear.bias, where + ".bias");
  ValidateWeights(linear.weights, rows, input.main_width(), input.activation, where);
  if (input.tail_width == 0 && linear.tail.cols == 0) return;
  ValidateWeights(linear.tail, rows, input.tail_width, input.tail_activation, where + ".tail");
}

}  // namespace nibble
