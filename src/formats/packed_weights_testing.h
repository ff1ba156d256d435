// SPDX-License-Identifier: Apache-2.0
// Planes as vectors, for tests that make, compare or damage them.
#pragma once

#include <gtest/gtest.h>

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
