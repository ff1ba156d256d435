// SPDX-License-Identifier: Apache-2.0
// The codewords of lattice_codes.h as words that kernels look up. Byte i of a word has weight i in
// its low half and weight i + 4 in the upper one.
//
// Included by files built with extra instruction flags (backends/cpu/gemm/int_kernels.h): no inline
// functions here.
#pragma once

#include <cstdint>

namespace nibble {

struct LatticeWords {
  // For an E8P code with bytes s and e, entries[e] ^ signs[s] has eight halves n of a byte that
  // mean 2 n - 15 quarters. The bits of n, from the lowest one: a quarter is added; two with the
  // number of whole steps above 1/2, or its complement; the weight is not negative.
  uint32_t entries[256], signs[256];
  uint32_t shorts[256];  // by the third byte of codes with 3 bits; n means n - 4 quarters
  // The steps of an entry alone, 2 bits each: [weights 0 to 3, weights 4 to 7].
  alignas(64) uint8_t steps[2][256];
};

}  // namespace nibble
