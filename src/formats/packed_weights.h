// SPDX-License-Identifier: Apache-2.0
// A weight matrix in its canonical packed form: planes, which follow from the format.
//
//   W = scale[n, g] * (code[n, k] - zero[n, g])      g = k / group
//
// With a second level of scales, W = scale[n] * p[n, k], p = group_scale[n, g] * (code - zero[n,
// g]) with an integer group_scale; p is an 8-bit code, whatever the code is.
#pragma once

#include "formats/format_spec.h"
#include "tensor/tensor.h"

namespace nibble {

struct PackedWeights {
  FormatSpec format;
  int64_t rows = 0, cols = 0;  // N outputs, K inputs
  Tensor values;               // not quantized: any float type, fp32 of 32 bits [N, K]
  // U8 [N, PackedBytes(stored(K), bits)], two's complement codes; of a lattice `bits` bytes for 8
  // weights, lowest first (lattice_codes.h), whose codewords are what is called code above; of E2M1
  // its bits (tensor/e2m1.h).
  Tensor codes;
  // Sparse: U8 [N, PackedBytes(K / 2, 2)], where in its 4 columns each code stands, rising. The
  // columns between have the weight 0.
  Tensor places;
  Tensor scales;        // F32 or F16 (row_scales) [N, format.scales(K)]
  Tensor group_scales;  // U8 [N, groups], of a second level only
  Tensor zeros;         // I8 [N, groups], absent when symmetric
  Tensor tiles;         // the codes once more in tile order (tile_order.h), or no data

  int64_t groups() const { return format.groups(cols); }
  // Bytes of all planes but the tiles, which repeat the codes.
  size_t bytes() const;
};

// Weights in fp32 that borrow the rows of `values`.
inline PackedWeights FloatTable(const Matrix<float>& values) {
  return {
      .format = {.bits = 32}, .rows = values.rows, .cols = values.cols, .values = Borrow(values)};
}

// One plane of weights: the suffix of its name in a checkpoint, and the type and shape that it must
// have.
struct Plane {
  std::string_view suffix;  // ".codes"
  Tensor PackedWeights::*tensor;
  DType dtype;  // for values of 16 bits, any float type
  std::vector<int64_t> shape;

  bool Fits(const Tensor& plane) const;
  size_t bytes() const;
};
// The planes of weights [rows, cols] in a format. Whoever checks, reads, writes, counts or makes
// planes goes by this list: a new plane is a row of it and a member above.
std::vector<Plane> PlanesOf(const FormatSpec& format, int64_t rows, int64_t cols);

// The largest group scale of a second level with which all codes, -8 to 7, become 8-bit codes, -128
// to 127: 8 for the outermost zero points, 16 for 0.
int LargestGroupScale(int zero);
// The step with which kernels make 8 bits of such a code: with c = code + 8, the byte p + 128 is
// c * (step & 255) + (step >> 8), from 0 to 255.
uint16_t LevelStep(int group_scale, int zero);
// Returns weights of a second level as symmetric weights with the 8-bit codes p and one scale a
// row. They have the same value, and so has every integer product.
PackedWeights Widen(const PackedWeights& weights);

// The scales as fp32, [N, format.scales(K)], and the zeros as integers, [N, groups]: those of every
// row.
Matrix<float> DecodeScales(const PackedWeights& weights);
Matrix<int32_t> DecodeZeros(const PackedWeights& weights);
// The K codes of row n; where sparse weights have none, the code that means 0.
void UnpackRow(const PackedWeights& weights, int64_t n, std::span<int16_t> codes);
// Writes these codes packed with `bits` bits each, which must be enough for format.code_bits().
void RepackRow(const PackedWeights& weights, int64_t n, int bits, uint8_t* packed);
// W as fp32 [N, K], and its row n alone. This is what a format means, whatever kernel runs it.
Matrix<float> Decode(const PackedWeights& weights);
void DecodeRow(const PackedWeights& weights, int64_t n, std::span<float> row);

// A loader's check of weights [rows, cols] whose inputs have the format `activations`: planes and
// scales (finite, positive, LargestGroupScale at most) fit the format, and no int32 sum can
// overflow for either activation; throws naming `where`.
void ValidateWeights(const PackedWeights& weights, int64_t rows, int64_t cols,
                     const FormatSpec& activations, const std::string& where);

}  // namespace nibble
