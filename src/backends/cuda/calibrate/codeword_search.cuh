// SPDX-License-Identifier: Apache-2.0
// A warp's search for the codeword near eight weights: the operations and their order are
// those of formats/lattice_codes.cc, bit for bit.
#pragma once

#include "backends/cuda/gemm/lattice_codewords.cuh"
#include "backends/cuda/ptx/ptx.h"
#include "formats/lattice_words.h"

namespace nibble::cuda {

template <int bits>
class CodewordSearch {
 public:
  // The value of LatticeCode::unit().
  static constexpr double kUnit = bits == 4 ? 0.0625 : 0.25;

  __device__ explicit CodewordSearch(const LatticeWords* words) : words_(*words) {
#pragma unroll
    for (int k = 0; k < kEntries; ++k) {
      steps_[k] = words_.steps[0][Entry(k)] | words_.steps[1][Entry(k)] << 8;
      norms_[k] = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) norms_[k] += Magnitude(k, i) * Magnitude(k, i) / 2;
      if constexpr (bits == 3) shorts_[k] = words_.shorts[Entry(k)];
    }
  }

  struct Found {
    uint32_t code, bytes[2];  // the eight entries of the codeword, each a byte
  };
  __device__ Found Find(const float (&x)[8]) const {
    const uint32_t first = E8p(x);
    Found found = {first};
    uint32_t rest = 0;
    if constexpr (bits > 2) {
      float left[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int n = static_cast<int>(Word(first) >> Shift(i) & 15);
        const float entry = static_cast<float>(2 * n - 15) / 4;
        left[i] = __fmul_rn(bits == 3 ? 2 : 4, __fsub_rn(x[i], entry));
      }
      const uint32_t second = bits == 3 ? Short(left) : E8p(left);
      found.code = first << (bits == 3 ? 8 : 16) | second;
      rest = bits == 3 ? words_.shorts[second] : Word(second);
    }
    found.bytes[0] = CodewordBytes<bits, 1>(Word(first), rest, 0);
    found.bytes[1] = CodewordBytes<bits, 1>(Word(first), rest, 4);
    return found;
  }

 private:
  static constexpr int kEntries = 8;  // entries of a lane, of 256 in all
  static __device__ int Entry(int k) {
    return k * 32 + static_cast<int>(threadIdx.x % 32);
  }
  // The shift of weight i in a word of lattice_words.h.
  static __device__ int Shift(int i) {
    return 8 * (i % 4) + i / 4 * 4;
  }

  __device__ uint32_t Word(uint32_t code) const {
    return words_.entries[code >> 8] ^ words_.signs[code & 255];
  }
  __device__ float Magnitude(int k, int i) const {
    return 0.5f + static_cast<float>(steps_[k] >> 2 * i & 3);
  }

  // The largest score of a warp's entries, of equal ones the first.
  struct Best {
    float score = -INFINITY;
    int entry = 0;

    __device__ void Consider(float other, int of) {
      if (other > score || (other == score && of < entry)) score = other, entry = of;
    }
    __device__ void Reduce() {
#pragma unroll
      for (int lanes = 16; lanes > 0; lanes /= 2) {
        const float other = __shfl_xor_sync(~0u, score, lanes);
        Consider(other, __shfl_xor_sync(~0u, entry, lanes));
      }
    }
  };

  // The code of the nearest point of C8 to y and a quarter less or more, and its squared distance.
  struct Nearest {
    uint32_t code;
    float distance;
  };
  __device__ Nearest OfC8(const float (&x)[8], bool added) const {
    float y[8], square = 0;
    uint32_t signs = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      y[i] = __fsub_rn(x[i], added ? 0.25f : -0.25f);
      square = __fadd_rn(square, __fmul_rn(y[i], y[i]));
      signs |= (__float_as_uint(y[i]) >> 31) << i;
    }
    const int minus = __popc(signs) & 1;
    Best best;
#pragma unroll
    for (int k = 0; k < kEntries; ++k) {
      float score = -norms_[k], min = INFINITY;
      uint32_t odd = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float share = __fmul_rn(Magnitude(k, i), fabsf(y[i]));
        score = __fadd_rn(score, share);
        min = fminf(min, share);
        odd ^= steps_[k] >> 2 * i;
      }
      const bool fits = static_cast<int>(odd & 1) == minus;
      best.Consider(fits ? score : __fsub_rn(score, 2 * min), Entry(k));
    }
    best.Reduce();
    const uint32_t steps = words_.steps[0][best.entry] | words_.steps[1][best.entry] << 8;
    int changed = 0;
    uint32_t odd = 0;
    float min = INFINITY;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t step = steps >> 2 * i & 3;
      const float share = __fmul_rn(0.5f + static_cast<float>(step), fabsf(y[i]));
      if (share < min) changed = i, min = share;
      odd ^= step;
    }
    if (static_cast<int>(odd & 1) != minus) signs ^= 1u << changed;
    const uint32_t quarter = added ? 128 : 0;
    return {static_cast<uint32_t>(best.entry) << 8 | (signs & 127) | quarter,
            __fadd_rn(square, -2 * best.score)};
  }
  __device__ uint32_t E8p(const float (&x)[8]) const {
    const Nearest more = OfC8(x, true), less = OfC8(x, false);
    return less.distance < more.distance ? less.code : more.code;
  }

  __device__ uint32_t Short(const float (&x)[8]) const {
    Best best;
#pragma unroll
    for (int k = 0; k < kEntries; ++k) {
      float score = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float half = static_cast<float>(static_cast<int>(shorts_[k] >> Shift(i) & 15) - 4);
        score = __fadd_rn(score, __fmul_rn(half, __fsub_rn(x[i], half / 4)));
      }
      best.Consider(score, Entry(k));
    }
    best.Reduce();
    return static_cast<uint32_t>(best.entry);
  }

  const LatticeWords& words_;
  uint32_t steps_[kEntries], shorts_[bits == 3 ? kEntries : 1];
  float norms_[kEntries];
};

// Nothing to search: weights are rounded one by one.
template <>
class CodewordSearch<0> {
 public:
  __device__ explicit CodewordSearch(const LatticeWords*) {}
};

}  // namespace nibble::cuda
