// SPDX-License-Identifier: Apache-2.0
// The vector codes of QuIP# (Tseng et al. 2024, sections 4.2 and 4.3): 8 weights at a time become
// the codeword near them, a point of a lattice, with 2, 3 or 4 bits a weight.
//
// E8P, 16 bits: C8 - 1/4 and C8 + 1/4, where C8 are the vectors of half-integers with an even sum
// whose magnitudes are one of 256 patterns: the 227 with a squared norm of at most 10, and 29 of
// 12. Signs are free but for one, which makes the sum even; that bit chooses the quarter instead.
//
//   1 bit   one of 256 short vectors of E8 (8 bits); no kernel has these alone
//   3 bits  E8P, and half of one of those vectors for what is left
//   4 bits  E8P, and a quarter of another E8P codeword for what is left
//
// Every value is a multiple of a quarter or a sixteenth and fits into a byte, so products with
// these weights are products of integers.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "formats/lattice_words.h"

namespace nibble {

class LatticeCode {
 public:
  static constexpr int64_t kWeights = 8;
  using Codeword = std::array<int8_t, kWeights>;  // in units

  explicit LatticeCode(int bits);  // 1 to 4

  int bits() const { return bits_; }  // and bytes of a code
  // The value of 1 in a Codeword.
  float unit() const { return bits_ == 4 ? 0.0625f : bits_ == 1 ? 0.5f : 0.25f; }
  // The standard deviation with which normally distributed weights lose least.
  float deviation() const;

  // The code of a codeword near x: with 1 or 2 bits the nearest one; else that of the nearest E8P
  // codeword and of the codeword nearest to what is left. Entries that are not finite give any
  // code.
  uint32_t Encode(std::span<const float, kWeights> x) const;
  // Encodes weights that equal a Codeword times `scale`.
  uint32_t Encode(std::span<const double> weights, double scale) const;
  Codeword Decode(uint32_t code) const;

  // A Codeword plus this has no negative entries (and none above 150).
  int offset() const {
    return bits_ == 1 ? 4 : bits_ == 2 ? 15 : bits_ == 3 ? 15 + 4 : 4 * 15 + 15;
  }
  static const LatticeWords& Words();

 private:
  int bits_;
};

}  // namespace nibble
