// SPDX-License-Identifier: Apache-2.0
// The whole contract between the offline and the online half: a weight matrix in its canonical
// packed form, and what must happen to the input before the product.
//
//   y = W x + bias      W = scale[m, g] * (code[n, k] - zero[m, g]),  g = k / group,
//                                                                     m = n / row_share
//   x = Quantize(activation, gather(M input))      M = input_transform
//
// With a second level of scales, W = scale[n] * p[n, k], p = group_scale[n, g] * (code - zero[n,
// g]) with an integer group_scale; p is an 8-bit code, whatever the code is.
//
// The last columns of x and W, the tail, may have formats of their own: a few wide channels at 8 or
// 16 bits, where gather puts the outliers (QUIK, Ashkboos et al. 2023; Atom, Zhao et al. 2023).
#pragma once

#include "formats/format_spec.h"
#include "tensor/tensor.h"
#include "transforms/hadamard.h"

namespace nibble {

// Planes borrow their bytes (a mapped file, or a QuantizedWeights below).
struct PackedWeights {
  FormatSpec format;
  int64_t rows = 0, cols = 0;  // N outputs, K inputs
  TensorView values;           // format.bits == 16: any float type [N, K]
  TensorView codes;            // U8 [N, PackedBytes(stored(K), bits)], two's complement codes
  // Sparse: U8 [N, PackedBytes(K / 2, 2)], where in its 4 columns each code stands, rising. The
  // columns between have the weight 0.
  TensorView places;
  TensorView scales;        // F32 or F16 (row_scales) [N / row_share, format.scales(K)]
  TensorView group_scales;  // U8 [N, groups], of a second level only
  TensorView zeros;         // I8 [N / row_share, groups], absent when symmetric
  TensorView tiles;         // the codes once more in tile order (tile_order.h), or no data

  int64_t groups() const { return format.groups(cols); }
  int64_t scale_rows() const { return rows / format.row_share; }
  // Bytes of all planes but the tiles, which repeat the codes.
  size_t bytes() const;
};

// Planes that own their bytes: what rounding produces and the checkpoint writer stores.
struct QuantizedWeights {
  FormatSpec format;
  int64_t rows = 0, cols = 0;
  std::vector<uint16_t> values_f16;   // format.bits == 16: [N, K], and no other plane
  std::vector<uint8_t> codes;         // [N, PackedBytes(stored(K), bits)]
  std::vector<uint8_t> places;        // [N, PackedBytes(K / 2, 2)] or empty
  std::vector<float> scales;          // [N / row_share, format.scales(K)], as stored
  std::vector<uint16_t> scales_f16;   // the same as fp16 bits, unless format.row_scales()
  std::vector<uint8_t> group_scales;  // [N, groups], of a second level only
  std::vector<int8_t> zeros;          // [N / row_share, groups] or empty
};
PackedWeights View(const QuantizedWeights& weights);

// How a linear's input is prepared. Linears that read the same tensor share one of these.
struct InputSpec {
  int64_t width = 0;        // K
  TransformSpec transform;  // online, applied to the whole row; identity if none
  // Then entry i of the row becomes entry gather[i]; a permutation, or empty: as it is.
  std::vector<int32_t> gather;
  FormatSpec activation;   // of the first main_width() entries
  int64_t tail_width = 0;  // the others have
  FormatSpec tail_activation;

  int64_t main_width() const { return width - tail_width; }
};

// For people: "4 asym", "4 g128 + 128 at 8" with a tail; "Hadamard 8 across 64, gather", "-".
std::string TailedText(const FormatSpec& main, int64_t tail_columns, const FormatSpec& tail);
std::string OnlineText(const TransformSpec& transform, bool gather);

struct PackedLinear {
  PackedWeights weights;  // of the first input.main_width() columns
  TensorView bias;        // [N] of any float type, or no data
  InputSpec input;
  PackedWeights tail;  // of the last input.tail_width columns; cols = 0: none
};

// Of a second level: the largest group scale whose codes all fit into 8 bits, -8 to 7 becoming
// -128 to 127 at most. 8 for the outermost zeros, 16 for 0.
int LargestGroupScale(int zero);
// How kernels make 8 bits of such a code: with c = code + 8 and this step, the byte p + 128 is
// c * (step & 255) + (step >> 8), from 0 to 255.
uint16_t LevelStep(int group_scale, int zero);
// Those weights by rows: the codes p as 8 bits, symmetric, one scale a row. The value is the same,
// and so is every integer product.
QuantizedWeights Widen(const PackedWeights& weights);

// The scales as fp32, [N, format.scales(K)], and the zeros as integers, [N, groups]: those of every
// row.
Matrix<float> DecodeScales(const PackedWeights& weights);
Matrix<int32_t> DecodeZeros(const PackedWeights& weights);
// The K codes of row n, those that mean 0 where sparse weights have none.
void UnpackRow(const PackedWeights& weights, int64_t n, std::span<int16_t> codes);
// The same, packed with `bits` bits each.
void RepackRow(const PackedWeights& weights, int64_t n, int bits, uint8_t* packed);
// W as fp32 [N, K]: what every format means, whatever kernel runs it.
Matrix<float> Decode(const PackedWeights& weights);

// A loader's check that shapes, plane sizes and scales (finite, positive, LargestGroupScale at
// most) fit the format and that no int32 sum can overflow for either activation, and that gather is
// a permutation; throws naming `where`.
void ValidateLinear(const PackedLinear& linear, const std::string& where);

}  // namespace nibble
