// SPDX-License-Identifier: Apache-2.0
// Codes on their way to tensor cores: 4 bits become 8 in registers, four at a time; those of a
// second level of scales as in "QServe" (Lin et al. 2024, section 5.2.3), without its subtraction,
// floats by a permutation of bytes, which is a table of eight.
#pragma once

#include "backends/cuda/gemm/gemm.h"
#include "backends/cuda/ptx/ptx.h"
#include "tensor/e2m1.h"

namespace nibble::cuda {

// A thread's steps (LevelStep, formats/packed_linear.h) for a piece of a block of weight_order.h.
// No byte of c * scale + start leaves 0..255, so one multiply-add serves four codes.
struct LevelSteps {
  uint32_t scales[2], starts[2];  // of the outputs with h = 0 and 1

  LevelSteps() = default;
  __device__ explicit LevelSteps(uint32_t pair) {
    scales[0] = PermuteBytes(pair, 0, 0x4440), starts[0] = PermuteBytes(pair, 0, 0x1111);
    scales[1] = PermuteBytes(pair, 0, 0x4442), starts[1] = PermuteBytes(pair, 0, 0x3333);
  }

  // The steps of codes with zeros but no scale, from the starts of weight_order.h alone.
  static __device__ LevelSteps OfStarts(uint32_t pair) {
    LevelSteps steps;
    steps.scales[0] = steps.scales[1] = 1;
    steps.starts[0] = (pair & 0xFF) * 0x01010101u, steps.starts[1] = (pair >> 8) * 0x01010101u;
    return steps;
  }

  // A word of codes as two registers of bytes, kByteOffset above what they mean.
  __device__ __forceinline__ void WidenUnsigned(uint32_t word, uint32_t& first,
                                                uint32_t& second) const {
    first = (word & 0x0F0F0F0Fu) * scales[0] + starts[0];
    second = (word >> 4 & 0x0F0F0F0Fu) * scales[1] + starts[1];
  }
  // The same as signed bytes.
  __device__ __forceinline__ void Widen(uint32_t word, uint32_t& first, uint32_t& second) const {
    WidenUnsigned(word, first, second);
    first ^= 0x80808080u, second ^= 0x80808080u;
  }
};

// Four codes of floats above 0 as bytes, from `first` on.
constexpr uint32_t FourOfE2m1(size_t first) {
  uint32_t bytes = 0;
  for (size_t i = 0; i < 4; ++i) bytes |= uint32_t(kE2m1Codes[first + i]) << 8 * i;
  return bytes;
}
inline constexpr uint32_t kSmallE2m1 = FourOfE2m1(0), kLargeE2m1 = FourOfE2m1(4);

// The codes of four floats of 4 bits (tensor/e2m1.h), the lower half of `word`.
__device__ __forceinline__ uint32_t E2m1Bytes(uint32_t word) {
  constexpr uint32_t kSigns = 0x80808080;
  // `above` has the sizes of positive numbers and `below` those of negative ones. Their other bytes
  // have the sign of a size, which is 0.
  const uint32_t above = PermuteBytes(kSmallE2m1, kLargeE2m1, word);
  const uint32_t below = PermuteBytes(kSmallE2m1, kLargeE2m1, word ^ 0x8888);
  return (above + kSigns - below) ^ kSigns;  // no byte borrows from the next
}

inline constexpr int kByteOffset = 128;  // of LevelSteps::WidenUnsigned

// The ways to make bytes of nibbles: as 16 times their codes, by steps, or from floats. kUnsigned:
// by steps, without the two instructions of seven that make signed bytes; a sum D then comes
// kByteOffset times the token's sum of codes too large.
enum class Widening { kShift, kSteps, kUnsigned, kFloats };

// A word of weight_order.h as two registers of bytes.
template <Widening widening>
__device__ __forceinline__ void Widen(uint32_t word, const LevelSteps& steps, uint32_t& first,
                                      uint32_t& second) {
  if constexpr (widening == Widening::kSteps) {
    steps.Widen(word, first, second);
  } else if constexpr (widening == Widening::kUnsigned) {
    steps.WidenUnsigned(word, first, second);
  } else if constexpr (widening == Widening::kFloats) {
    const uint32_t low = E2m1Bytes(word), high = E2m1Bytes(word >> 16);
    first = PermuteBytes(low, high, 0x6420), second = PermuteBytes(low, high, 0x7531);
  } else {
    first = word << 4 & 0xF0F0F0F0u, second = word & 0xF0F0F0F0u;
  }
}

// Calls visit<widening> for these weights; kLevels become what `levels` says.
template <WeightKind kind, Widening levels = Widening::kSteps, typename Visit>
__device__ __forceinline__ void WithWidening(const BlockScales& scales, const Visit& visit) {
  constexpr bool kGroups = kind == WeightKind::kNibbleGroups;
  if (kGroups && scales.floats) {
    visit.template operator()<Widening::kFloats>();
  } else if constexpr (kind == WeightKind::kLevels) {
    visit.template operator()<levels>();
  } else if (kGroups && scales.zeros) {
    visit.template operator()<Widening::kSteps>();
  } else {
    visit.template operator()<Widening::kShift>();
  }
}

// Operand A for inputs 32 step.. of a block of weight_order.h, from the word that holds them.
template <int kBits, Widening widening = Widening::kShift>
__device__ __forceinline__ void Fragment(const uint4& word, const LevelSteps& steps, int step,
                                         uint32_t (&a)[4]) {
  if constexpr (kBits == 8) {
    a[0] = word.x, a[1] = word.y, a[2] = word.z, a[3] = word.w;
    return;
  }
  const uint32_t first = step % 2 == 0 ? word.x : word.z;
  const uint32_t second = step % 2 == 0 ? word.y : word.w;
  Widen<widening>(first, steps, a[0], a[1]);
  Widen<widening>(second, steps, a[2], a[3]);
}

}  // namespace nibble::cuda
