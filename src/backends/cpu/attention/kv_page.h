// SPDX-License-Identifier: Apache-2.0
// K or V of one head in one cache page (layout: formats/kv_format.h), as attention reads it.
#pragma once

#include <algorithm>

#include "base/error.h"
#include "formats/kv_format.h"
#include "formats/quantizer.h"

namespace nibble::cpu {

inline constexpr int64_t kMaxGroups = kMaxHeadDim / 8;  // most that the vectorized decoders take

struct KvPart {
  const FormatSpec* format;
  int64_t head_dim, row_bytes;
  const std::byte* codes;   // [64][row_bytes]
  const std::byte* params;  // [64][groups] {fp16 s, fp16 z}

  int64_t groups() const { return format->groups(head_dim); }

  // The vectorized decoders take any width; what they handle at once must share a group.
  bool vectorized(int64_t group_multiple) const {
    return format->quantized() && (groups() == 1 || head_dim / groups() % group_multiple == 0);
  }

  // Any format, one token.
  void DequantizeRow(int64_t token, float* out) const {
    DequantizeKv(reinterpret_cast<const uint8_t*>(codes + token * row_bytes),
                 reinterpret_cast<const uint16_t*>(params) + token * 2 * groups(), *format,
                 {out, static_cast<size_t>(head_dim)});
  }
};

inline KvPart KeysOf(const KvSpec& kv, const std::byte* block) {
  return {&kv.k, kv.head_dim, kv.row_bytes(kv.k), block, block + kv.k_params()};
}
inline KvPart ValuesOf(const KvSpec& kv, const std::byte* block) {
  return {&kv.v, kv.head_dim, kv.row_bytes(kv.v), block + kv.v_codes(), block + kv.v_params()};
}

// Working memory of the decoders; one per thread.
struct KvScratch {
  alignas(64) uint32_t dwords[kMaxHeadDim / 2 * kPageTokens];
  alignas(64) float scales[kMaxGroups * kPageTokens];
  alignas(64) float zeros[kMaxGroups * kPageTokens];
  alignas(64) uint8_t bytes[kPageTokens * kMaxHeadDim];
  alignas(64) float rows[kPageTokens * kMaxHeadDim];
};

}  // namespace nibble::cpu
