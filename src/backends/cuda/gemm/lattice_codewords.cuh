// SPDX-License-Identifier: Apache-2.0
// Codewords of a lattice as operand A of the tensor cores (weight_order.h, lattice_words.h): two
// lookups in shared memory make eight half bytes, which a mask or a sum makes bytes.
#pragma once

#include <cstdint>

#include "backends/cuda/ptx/ptx.h"
#include "formats/lattice_words.h"

namespace nibble::cuda {

// A thread's codes of 16 outputs x 128 inputs: of inputs 32 s.. bytes signs, entry, signs, entry in
// `first`, for its upper and its lower output; in `rest` what 4 bits have of the second codeword,
// or 3 bits of the short vector, one byte for each output.
template <int bits>
struct CodewordCodes {};
template <>
struct CodewordCodes<2> {
  uint4 first;
};
template <>
struct CodewordCodes<3> {
  uint4 first;
  uint2 rest;
};
template <>
struct CodewordCodes<4> {
  uint4 first, rest;
};

// `factor` times four weights of a word (lattice_words.h) and of what is added to them, in units of
// the format, as signed bytes: the first four (half = 0) or the others (half = 4).
template <int bits, int factor>
__device__ __forceinline__ uint32_t CodewordBytes(uint32_t word, uint32_t rest, int half) {
  constexpr uint32_t kEach = 0x01010101, kLow = 15 * kEach, kSign = 128 * kEach;
  if constexpr (factor == 8) {  // 8 (2 n - 15) = 16 (n - 8) + 8, of words whose n are n - 8
    static_assert(bits == 2);
    return AndOr(word << (4 - half), 16 * kLow, 8 * kEach);
  } else {
    // 2 n - 15, 2 n - 15 + m - 4 or 4 (2 n - 15) + 2 m - 15, and 128 more, so that no byte has a
    // sign.
    constexpr uint32_t kFirst = bits == 4 ? 8 : 2, kRest = bits == 4 ? 2 : 1;
    constexpr uint32_t kStart = (128 - (bits == 2 ? 15 : bits == 3 ? 15 + 4 : 4 * 15 + 15)) * kEach;
    return (kFirst * (word >> half & kLow) + kRest * (rest >> half & kLow) + kStart) ^ kSign;
  }
}

// The words in shared memory, [code][entry or signs][column]; those of 2 bits have n - 8 for n,
// those of 3 have the short vectors behind them. A lane has a column of 32, or two neighbours have
// one of 16: while one of them looks an entry up, the other does signs, in other banks.
template <int bits, int columns>
class Codewords {
 public:
  static constexpr int kTableBytes = (512 * columns + (bits == 3 ? 256 : 0)) * sizeof(uint32_t);

  __device__ explicit Codewords(void* table)
      : words_(SharedAddress(table)),
        shorts_(words_ + 512 * columns * sizeof(uint32_t)),
        swap_(columns == 16 ? threadIdx.x % 2 * 0x10 : 0) {
    const uint32_t column = threadIdx.x % 32 * columns / 32 * 4, signs = 4 * columns;
    columns_[0] = (column + (swap_ != 0 ? signs : 0)) << kShift;
    columns_[1] = (column + (swap_ != 0 ? 0 : signs)) << kShift;
  }

  // The whole block calls this; the caller needs a barrier before the first use.
  __device__ void Fill(const LatticeWords* words) const {
    constexpr unsigned kUnits = columns / 4;  // of a code's 2 kUnits
    constexpr uint32_t kFlip = bits == 2 ? 0x88888888 : 0;
    for (unsigned unit = threadIdx.x; unit < 512 * kUnits; unit += blockDim.x) {
      const unsigned code = unit / (2 * kUnits);
      const bool entry = unit / kUnits % 2 == 0;
      const uint32_t word = entry ? words->entries[code] ^ kFlip : words->signs[code];
      StoreShared16(words_ + unit * 16, {word, word, word, word});
    }
    for (unsigned code = threadIdx.x; bits == 3 && code < 256; code += blockDim.x) {
      StoreShared4(shorts_ + 4 * code, __uint_as_float(words->shorts[code]));
    }
  }

  // The word of a thread's output h for inputs 32 step.., and the word that is added to it.
  struct Pair {
    uint32_t word, rest;
  };
  __device__ __forceinline__ Pair Find(const CodewordCodes<bits>& codes, int step, int h) const {
    Pair pair = {Word(Part(codes.first, step), h), 0};
    if constexpr (bits == 4) pair.rest = Word(Part(codes.rest, step), h);
    if constexpr (bits == 3) {
      const uint32_t both = step < 2 ? codes.rest.x : codes.rest.y;
      pair.rest = LookUp(shorts_ + 4 * (both >> (16 * (step % 2) + 8 * h) & 255));
    }
    return pair;
  }

 private:
  static constexpr int kShift = columns == 32 ? 0 : 1;  // a code has 256 bytes or half of that
  static_assert(columns == 32 || columns == 16);

  static __device__ __forceinline__ uint32_t Part(const uint4& v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
  }
  // The word of half h of `codes`. A byte permutation gives 256 times a byte plus the lane's place.
  __device__ __forceinline__ uint32_t Word(uint32_t codes, int h) const {
    const uint32_t first = __byte_perm(codes, columns_[0], (0x7614 | h << 5) ^ swap_) >> kShift;
    const uint32_t second = __byte_perm(codes, columns_[1], (0x7604 | h << 5) ^ swap_) >> kShift;
    return LookUp(words_ + first) ^ LookUp(words_ + second);
  }

  uint32_t words_, shorts_;
  uint32_t swap_;        // of the bytes of entry and signs, in a selector of __byte_perm
  uint32_t columns_[2];  // of the first lookup and of the second
};
// No table: the weights are not codewords.
template <int columns>
class Codewords<0, columns> {
 public:
  static constexpr int kTableBytes = 0;
  __device__ explicit Codewords(void*) {}
  __device__ void Fill(const LatticeWords*) const {}
};

}  // namespace nibble::cuda
