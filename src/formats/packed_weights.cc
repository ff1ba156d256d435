// SPDX-License-Identifier: Apache-2.0
#include "formats/packed_weights.h"

#include <algorithm>
#include <cmath>

#include "base/thread_pool.h"
#include "formats/lattice_codes.h"
#include "tensor/e2m1.h"

namespace nibble {
namespace {

template <typename T, typename Stored>
Matrix<T> ForEachRow(const PackedWeights& w, int64_t count, const Stored& stored) {
  Matrix<T> all(w.rows, count);
  for (int64_t n = 0; n < w.rows; ++n) {
    const auto from = stored.begin() + n * count;
    std::copy(from, from + count, all.row(n).begin());
  }
  return all;
}

Tensor RowOf(const Tensor& plane, int64_t row) {
  const auto bytes = plane.bytes() / static_cast<size_t>(plane.shape[0]);
  return {plane.dtype, {plane.shape[1]}, plane.data + static_cast<size_t>(row) * bytes};
}

// No code may leave 8 bits: kernels multiply and add bytes.
void ValidateGroupScales(const PackedWeights& w, const FormatSpec& activations,
                         const std::string& where) {
  if (activations.quantized() && activations.group != 0) {
    Fail("{}: two levels of scales take inputs without groups", where);
  }
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
  for (const uint8_t byte : w.places.as<uint8_t>()) {
    const int first = byte & 3, second = byte >> 2 & 3, third = byte >> 4 & 3, fourth = byte >> 6;
    if (first < second && third < fourth) continue;
    Fail("{}.places: {} {} {} {} do not rise", where, first, second, third, fourth);
  }
}

void UnpackCodewords(const uint8_t* packed, int bits, std::span<int16_t> codes) {
  const LatticeCode lattice(bits);
  for (size_t k = 0; k < codes.size(); k += LatticeCode::kWeights) {
    uint32_t code = 0;
    for (int i = 0; i < bits; ++i) code |= uint32_t{*packed++} << 8 * i;
    std::ranges::copy(lattice.Decode(code), codes.begin() + static_cast<int64_t>(k));
  }
}

}  // namespace

bool Plane::Fits(const Tensor& plane) const {
  const bool any_float = tensor == &PackedWeights::values && dtype != DType::kF32;
  return (any_float ? IsFloat(plane.dtype) : plane.dtype == dtype) && plane.shape == shape;
}

size_t Plane::bytes() const {
  return Tensor{dtype, shape}.bytes();
}

std::vector<Plane> PlanesOf(const FormatSpec& f, int64_t rows, int64_t cols) {
  using W = PackedWeights;
  if (!f.quantized()) {
    return {{".weight", &W::values, f.bits == 32 ? DType::kF32 : DType::kBf16, {rows, cols}}};
  }
  const int64_t groups = f.groups(cols), stored = f.stored(cols);
  std::vector<Plane> planes;
  const auto add = [&](std::string_view suffix, Tensor W::*tensor, DType dtype,
                       std::vector<int64_t> shape) {
    planes.push_back({suffix, tensor, dtype, std::move(shape)});
  };
  add(".scales", &W::scales, f.row_scales() ? DType::kF32 : DType::kF16, {rows, f.scales(cols)});
  if (f.second_level) add(".group_scales", &W::group_scales, DType::kU8, {rows, groups});
  if (!f.symmetric) add(".zeros", &W::zeros, DType::kI8, {rows, groups});
  add(".codes", &W::codes, DType::kU8, {rows, PackedBytes(stored, f.bits)});
  if (f.sparse) add(".places", &W::places, DType::kU8, {rows, PackedBytes(stored, 2)});
  return planes;
}

size_t PackedWeights::bytes() const {
  size_t total = 0;
  for (const Plane& plane : PlanesOf(format, rows, cols)) {
    const Tensor& tensor = this->*plane.tensor;
    if (tensor.data != nullptr) total += tensor.bytes();
  }
  return total;
}

int LargestGroupScale(int zero) {
  const int below = zero + 8, above = 7 - zero;
  return std::min(128 / std::max(below, 1), 127 / std::max(above, 1));
}

uint16_t LevelStep(int group_scale, int zero) {
  return static_cast<uint16_t>(group_scale | (128 - (8 + zero) * group_scale) << 8);
}

PackedWeights Widen(const PackedWeights& w) {
  std::vector<uint8_t> wide(static_cast<size_t>(w.rows * w.cols));
  const Matrix<int32_t> zeros = DecodeZeros(w);
  const auto group_scales = w.group_scales.as<uint8_t>();
  ParallelFor(static_cast<size_t>(w.rows), [&](size_t n) {
    std::vector<int16_t> codes(static_cast<size_t>(w.cols));
    const auto row = static_cast<int64_t>(n);
    UnpackRow(w, row, codes);
    for (int64_t k = 0; k < w.cols; ++k) {
      const auto g = static_cast<size_t>(row * w.groups() + k / w.format.group);
      const int32_t code = (codes[static_cast<size_t>(k)] - zeros.data[g]) * group_scales[g];
      wide[static_cast<size_t>(row * w.cols + k)] = static_cast<uint8_t>(code);
    }
  });
  return {.format = {.bits = 8},
          .rows = w.rows,
          .cols = w.cols,
          .codes = Tensor::Of(DType::kU8, {w.rows, w.cols}, std::move(wide)),
          .scales = Tensor::Of(DType::kF32, {w.rows, 1}, DecodeScales(w).data)};
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
  if (w.format.lattice()) return UnpackCodewords(packed, w.format.bits, codes);
  if (!w.format.sparse) {
    UnpackCodes(packed, stored, w.format.bits, !w.format.e2m1(), codes.data());
    if (!w.format.e2m1()) return;
    for (int16_t& code : codes) code = kE2m1Codes[static_cast<size_t>(code)];
    return;
  }
  std::vector<int16_t> kept(static_cast<size_t>(stored)), places(kept.size());
  UnpackCodes(packed, stored, w.format.bits, true, kept.data());
  UnpackCodes(w.places.as<uint8_t>().data() + n * PackedBytes(stored, 2), stored, 2, false,
              places.data());
  const size_t groups = static_cast<size_t>(w.groups()), group = codes.size() / groups;
  for (size_t g = 0; g < groups; ++g) {
    const size_t at = static_cast<size_t>(n) * groups + g;
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
  Matrix<float> values(w.rows, w.cols);
  for (int64_t n = 0; n < w.rows; ++n) DecodeRow(w, n, values.row(n));
  return values;
}

void DecodeRow(const PackedWeights& w, int64_t n, std::span<float> row) {
  if (!w.format.quantized()) {
    std::ranges::copy(ToF32(RowOf(w.values, n)).data, row.begin());
    return;
  }
  const auto groups = static_cast<size_t>(w.groups());
  const std::vector<float> scales = ToF32(RowOf(w.scales, n)).data;
  const auto zeros =
      w.format.symmetric ? std::span<const int8_t>() : RowOf(w.zeros, n).as<int8_t>();
  const auto factors =
      w.format.second_level ? RowOf(w.group_scales, n).as<uint8_t>() : std::span<const uint8_t>();
  std::vector<int16_t> codes(row.size());
  UnpackRow(w, n, codes);
  for (size_t k = 0; k < row.size(); ++k) {
    const size_t g = k / (row.size() / groups);
    const int code = codes[k] - (zeros.empty() ? 0 : zeros[g]);
    row[k] = scales[scales.size() == 1 ? 0 : g] *
             static_cast<float>(factors.empty() ? code : factors[g] * code);
  }
}

void ValidateWeights(const PackedWeights& w, int64_t rows, int64_t cols,
                     const FormatSpec& activations, const std::string& where) {
  if (w.rows != rows || w.cols != cols || rows <= 0 || cols <= 0) {
    Fail("{}: shape [{}, {}] for {} outputs and {} inputs", where, w.rows, w.cols, rows, cols);
  }
  for (const FormatSpec* f : {&w.format, &activations}) {
    if (f->group != 0 && (cols % f->group != 0 || f->group % 32 != 0)) {
      Fail("{}: group {} must be a multiple of 32 that divides the width {}", where, f->group,
           cols);
    }
  }
  if (w.format.in_blocks() && cols % 8 != 0) {
    Fail("{}: {} inputs of {} weights, not a multiple of 8", where, cols, FormatText(w.format));
  }
  for (const Plane& plane : PlanesOf(w.format, rows, cols)) {
    const Tensor& tensor = w.*plane.tensor;
    if (tensor.data == nullptr) Fail("{}{} is missing", where, plane.suffix);
    if (plane.Fits(tensor)) continue;
    Fail("{}{} is {} {}, expected {} {}", where, plane.suffix, DTypeName(tensor.dtype),
         ShapeText(tensor.shape), DTypeName(plane.dtype), ShapeText(plane.shape));
  }
  if (!w.format.quantized()) return;
  if (w.format.sparse) RequirePlaces(w, where);
  if (w.format.second_level) ValidateGroupScales(w, activations, where);
  for (float scale : ToF32(w.scales).data) {
    if (!std::isfinite(scale) || scale <= 0) Fail("{}.scales: {} is not a scale", where, scale);
  }
  // |sum| <= K * 255 * 128 with codes stored as unsigned bytes; also covers sums of fewer bits.
  if (cols > INT32_MAX / (255 * 128)) {
    Fail("{}: {} inputs could overflow 32-bit sums", where, cols);
  }
}

}  // namespace nibble
