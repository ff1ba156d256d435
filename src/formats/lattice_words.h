// SPDX-License-Identifier: Apache-2.0
// The points of lattice_codes.h as words that kernels look up. Byte i of a word has weight i in its
// low half and weight i + 4 in the upper one.
//
// Included by files built with extra instruction flags (backends/cpu/gemm/int_kernels.h): no inline
// functions here.
#pragma once

#include <cstdint>

namespace nibble {

struct LatticeWords {
  // Of an E8P code with bytes s, e: entries[e] ^ signs[s] has eight n that mean 2 n - 15 quarters.
  // A bit of n, from the lowest one: a quarter is added; two with the number of whole steps above
  // 1/2, or its complement; not negative.
  uint32_t entries[256], signs[256];
  uint32_t shorts[256];  // of the third byte of 3 bits: n - 4 quarters
  // The steps of an entry alone, 2 bits each: [weights 0 to 3, weights 4 to 7].
  alignas(64) uint8_t steps[2][256];
};

}  // namespace nibble
