// SPDX-License-Identifier: Apache-2.0
// Codes on their way to tensor cores: 4 bits become 8 in registers, four at a time; those of a
// second level of scales as in "QServe" (Lin et al. 2024, section 5.2.3), without its subtraction.
#pragma once

#include "backends/cuda/ptx/ptx.h"

namespace nibble::cuda {

// A thread's steps (LevelStep, formats/packed_linear.h) for a piece of a block of weight_order.h.
// No byte of c * scale + start leaves 0..255, so one multiply-add serves four codes.
struct LevelSteps {
  uint32_t scales[2], starts[2];  // of the outputs with h = 0 and 1

  LevelSteps() = default;
  __device__ explicit LevelSteps(uint32_t pair) {
    scales[0] = pair & 0xFF, starts[0] = (pair >> 8 & 0xFF) * 0x01010101u;
    scales[1] = pair >> 16 & 0xFF, starts[1] = (pair >> 24) * 0x01010101u;
  }

  // Of codes with zeros but no scale: the starts of weight_order.h alone.
  static __device__ LevelSteps OfStarts(uint32_t pair) {
    LevelSteps steps;
    steps.scales[0] = steps.scales[1] = 1;
    steps.starts[0] = (pair & 0xFF) * 0x01010101u, steps.starts[1] = (pair >> 8) * 0x01010101u;
    return steps;
  }

  // A word of codes as two registers of signed bytes.
  __device__ __forceinline__ void Widen(uint32_t word, uint32_t& first, uint32_t& second) const {
    first = ((word & 0x0F0F0F0Fu) * scales[0] + starts[0]) ^ 0x80808080u;
    second = ((word >> 4 & 0x0F0F0F0Fu) * scales[1] + starts[1]) ^ 0x80808080u;
  }
};

// Operand A for inputs 32 step.. of a block of weight_order.h, from the word that holds them:
// bytes, or nibbles as 16 times their codes; kWiden: by steps.
template <int kBits, bool kWiden = false>
__device__ __forceinline__ void Fragment(const uint4& word, const LevelSteps& steps, int step,
                                         uint32_t (&a)[4]) {
  if constexpr (kBits == 8) {
    a[0] = word.x, a[1] = word.y, a[2] = word.z, a[3] = word.w;
    return;
  }
  const uint32_t first = step % 2 == 0 ? word.x : word.z;
  const uint32_t second = step % 2 == 0 ? word.y : word.w;
  if constexpr (kWiden) {
    steps.Widen(first, a[0], a[1]);
    steps.Widen(second, a[2], a[3]);
  } else {
    constexpr uint32_t kHigh = 0xF0F0F0F0;
    a[0] = first << 4 & kHigh, a[1] = first & kHigh;
    a[2] = second << 4 & kHigh, a[3] = second & kHigh;
  }
}

}  // namespace nibble::cuda
