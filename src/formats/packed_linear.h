// SPDX-License-Identifier: Apache-2.0
// The whole contract between the offline and the online half: packed weights, and what must happen
// to the input before the product.
//
//   y = T (W x + bias)      x = Quantize(activations, gather(M (scales * input)))
//
// with the transforms M, input.transform, and T, output_transform.
//
// The last columns of x and W, the tail, may have formats of their own: a few wide channels at 8 or
// 16 bits, where gather puts the outliers (QUIK, Ashkboos et al. 2023; Atom, Zhao et al. 2023).
#pragma once

#include "formats/packed_weights.h"
#include "transforms/hadamard.h"

namespace nibble {

// This says how a linear's input is prepared. Linears that read the same tensor share one
// InputSpec.
struct InputSpec {
  int64_t width = 0;  // K
  // Signs or other factors of the entries of a row, none of them zero; empty: there are none.
  std::vector<float> scales;
  TransformSpec transform;  // then online, applied to the whole row; identity if none
  // The precision of the transform, which sums in fp32. 32: nothing is rounded to less.
  // 16: the row is rounded twice to fp16's 11 significant bits, in front and behind, or inside
  // where a kernel keeps fp16: as a vector, |y - M x| <= 2 * 2^-11 |x|.
  // 0: what the machine does best.
  int transform_bits = 0;
  // Then entry i of the row becomes entry gather[i]. A permutation; empty: the order stays.
  std::vector<int32_t> gather;
  FormatSpec activations;  // the format of the first main_width() entries
  int64_t tail_width = 0;  // the entries behind these
  FormatSpec tail_activations;

  int64_t main_width() const { return width - tail_width; }
  bool operator==(const InputSpec&) const = default;
};

// Formats and online steps as people read them: "4 asym", "4 g128 + 128 at 8" with a tail; "scales,
// Hadamard 8 across 64, gather", "Hadamard 64 in fp16; outputs Hadamard 128", "-".
std::string TailedText(const FormatSpec& main, int64_t tail_columns, const FormatSpec& tail);
std::string OnlineText(bool scales, const TransformSpec& transform, int transform_bits, bool gather,
                       const TransformSpec& of_outputs);

struct PackedLinear {
  PackedWeights weights;  // of the first input.main_width() columns
  Tensor bias;            // [N] of any float type, or no data
  InputSpec input;
  PackedWeights tail;  // of the last input.tail_width columns; cols = 0: none
  // Online, of a row of outputs (QuIP#, Tseng et al. 2024, section 3: incoherence on both sides);
  // identity if none. Products are without it: the forward pass calls Backend::Transform.
  TransformSpec output_transform;
};

// Returns the linear with fp32 weights that read the input as it is before gather, without a tail
// or an online transform.
PackedLinear InFloats(const PackedLinear& linear);

// A loader's check of both weights, the bias, the scales, and that gather is a permutation; throws
// naming `where`.
void ValidateLinear(const PackedLinear& linear, const std::string& where);

}  // namespace nibble
