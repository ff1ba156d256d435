// SPDX-License-Identifier: Apache-2.0
// Planes as vectors, for tests that make, compare or damage them.
#pragma once

#include <gtest/gtest.h>

#include "base/half.h"
#include "base/rng.h"
#include "formats/packed_weights.h"

namespace nibble {

struct PlaneVectors {
  FormatSpec format;
  int64_t rows = 0, cols = 0;
  std::vector<uint16_t> values_f16;
  std::vector<uint8_t> codes, places;
  std::vector<float> scales;         // as stored
  std::vector<uint16_t> scales_f16;  // the same as fp16 bits, unless format.row_scales()
  std::vector<uint8_t> group_scales;
  std::vector<int8_t> zeros;
};

// Random places of sparse weights in `fours` times 4 columns.
inline std::vector<uint8_t> RandomPlaces(Rng& rng, int64_t fours) {
  constexpr uint8_t kRising[] = {0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b1110};
  std::vector<uint8_t> places(static_cast<size_t>(fours / 2));
  for (uint8_t& byte : places) {
    byte = static_cast<uint8_t>(kRising[rng.Below(6)] | kRising[rng.Below(6)] << 4);
  }
  return places;
}

// Random planes of a quantized format. Codes take every value of their width, also -2^(bits-1), and
// zero points those from -zeros to zeros - 1, with a second level -8 to 7. About half of the group
// scales are the largest possible ones.
inline PlaneVectors RandomPlanes(Rng& rng, const FormatSpec& f, int64_t rows, int64_t cols,
                                 int64_t zeros = 128) {
  PlaneVectors w = {.format = f, .rows = rows, .cols = cols};
  const int64_t stored = f.stored(cols), row_bytes = PackedBytes(stored, f.bits);
  w.codes.resize(static_cast<size_t>(rows * row_bytes));
  std::vector<int8_t> codes(static_cast<size_t>(stored));
  for (int64_t n = 0; n < rows; ++n) {
    for (int8_t& code : codes) code = static_cast<int8_t>(rng.Next());
    PackCodes(codes.data(), stored, f.bits, w.codes.data() + n * row_bytes);
  }
  if (f.sparse) w.places = RandomPlaces(rng, rows * cols / 4);
  for (int64_t i = 0; i < rows * f.scales(cols); ++i) {
    const float scale = static_cast<float>(0.001 + 0.01 * rng.Uniform());
    if (!f.row_scales()) w.scales_f16.push_back(F16FromF32(scale));
    w.scales.push_back(f.row_scales() ? scale : F32FromF16(w.scales_f16.back()));
  }
  if (f.second_level) zeros = std::min<int64_t>(zeros, 8);
  for (int64_t i = 0; i < rows * f.groups(cols); ++i) {
    const auto zero = static_cast<int8_t>(
        static_cast<int64_t>(rng.Below(static_cast<uint64_t>(2 * zeros))) - zeros);
    if (!f.symmetric) w.zeros.push_back(zero);
    if (!f.second_level) continue;
    const auto max = static_cast<uint64_t>(LargestGroupScale(f.symmetric ? 0 : zero));
    w.group_scales.push_back(static_cast<uint8_t>(max - rng.Below(2) * rng.Below(max)));
  }
  return w;
}

// Borrows from `w`; the shapes are what it claims to be.
inline PackedWeights View(const PlaneVectors& w) {
  PackedWeights view = {.format = w.format, .rows = w.rows, .cols = w.cols};
  for (const Plane& plane : PlanesOf(w.format, w.rows, w.cols)) {
    const auto from = [&](const auto& values) {
      view.*plane.tensor = {plane.dtype, plane.shape,
                            reinterpret_cast<const std::byte*>(values.data())};
    };
    if (plane.tensor == &PackedWeights::values) from(w.values_f16);
    if (plane.tensor == &PackedWeights::codes) from(w.codes);
    if (plane.tensor == &PackedWeights::places) from(w.places);
    if (plane.tensor == &PackedWeights::group_scales) from(w.group_scales);
    if (plane.tensor == &PackedWeights::zeros) from(w.zeros);
    if (plane.tensor != &PackedWeights::scales) continue;
    w.format.row_scales() ? from(w.scales) : from(w.scales_f16);
  }
  if (!w.format.quantized()) view.values.dtype = DType::kF16;
  return view;
}

inline std::string BytesOf(const Tensor& tensor) {
  if (tensor.data == nullptr) return "";
  return {reinterpret_cast<const char*>(tensor.data), tensor.bytes()};
}

inline void ExpectSamePlanes(const PackedWeights& a, const PackedWeights& b) {
  ASSERT_EQ(a.format, b.format);
  for (const Plane& plane : PlanesOf(a.format, a.rows, a.cols)) {
    EXPECT_EQ((a.*plane.tensor).shape, (b.*plane.tensor).shape) << plane.suffix;
    EXPECT_EQ(BytesOf(a.*plane.tensor), BytesOf(b.*plane.tensor)) << plane.suffix;
  }
}

}  // namespace nibble
