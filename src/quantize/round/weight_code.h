// SPDX-License-Identifier: Apache-2.0
// The codewords of all codebooks that rounding knows, those of QuIP#'s ablation (Tseng et al. 2024)
// included: E8P, a scalar grid of half-integers, K-means and E8 alone. Rounding to nearest and GPTQ
// ask for the codeword near some weights; it consists of bytes in a unit, whatever its codebook.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "formats/format_spec.h"

namespace nibble {

class WeightCode {
 public:
  static constexpr int64_t kMaxWeights = 8;
  using Codeword = std::array<int8_t, kMaxWeights>;  // in units; the first weights() count

  // A codebook of format_spec.h that has codewords, with bits that it exists in.
  WeightCode(Codebook codebook, int bits) : codebook_(codebook), bits_(bits) {}
  explicit WeightCode(const FormatSpec& format) : WeightCode(format.codebook, format.bits) {}

  // Weights of a codeword: 1 of the half-integer grid, 8 of the others.
  int64_t weights() const { return codebook_ == Codebook::kHalfInteger ? 1 : kMaxWeights; }
  float unit() const;  // the value of 1 in a Codeword
  // The standard deviation with which normally distributed weights lose least.
  float deviation() const;

  // The code of the codeword near weights() weights, where a unit has the size `scale`: the
  // nearest one, but for E8P of 3 and 4 bits (LatticeCode::Encode).
  uint32_t Encode(std::span<const double> weights, double scale) const;
  Codeword Decode(uint32_t code) const;

 private:
  Codebook codebook_;
  int bits_;
};

}  // namespace nibble
