// SPDX-License-Identifier: Apache-2.0
// The one quantizer of each kind. Kernels must give the same codes as these functions, bit for bit:
// every expression below is fp32, in this order, without contraction; rounding is half to even.
//
// Activations, one token and group:
//   symmetric   a = max|x| * (clip / (h - 1)), h = 2^(b-1);      q = clamp(rne(x * (1/a)), -h, h-1)
//   signed      a = -m * (clip / h), m = max(x) if max(x) >= -min(x), else min(x); q as above
//   asymmetric  lo = min(x) * clip, hi = max(x) * clip, a = (hi - lo) / (2^b - 1);
//               q = clamp(rne((x - lo) * (1/a)), 0, 2^b - 1) - h, z = lo * (1/a) + h
//   x^ = a * (q + z)   (z = 0 if symmetric);   |a| is at least kMinScale.
// Cache entries, one token, head and group: the range includes 0, codes are 0..2^b-1:
//   asymmetric  s = fp16((hi - lo) / (2^b - 1)), z = clamp(rne(0 - lo * (1/s)), 0, 2^b - 1)
//   symmetric   s = fp16(max|x| * (clip / qmax)), z = h
//   q = clamp(rne(x * (1/s)) + z, 0, 2^b - 1);   x^ = s * (q - z);   s is at least kMinKvScale.
#pragma once

#include <cstdint>
#include <span>

#include "formats/format_spec.h"

namespace nibble {

inline constexpr float kMinScale = 1e-10f;
inline constexpr float kMinKvScale = 1e-5f;  // a normal fp16 would lose nothing below this
inline constexpr float kMaxKvScale = 65504.0f;

// One prepared activation row of `width` elements, group by group.
struct ActRow {
  int8_t* codes;        // [width]
  float* scales;        // [groups]
  float* zero_offsets;  // [groups]; not touched when symmetric
  int32_t* sums;        // [groups], sum of the codes of each group
};
void QuantizeActivations(std::span<const float> x, const FormatSpec& format, const ActRow& out);
// x^ of a row that QuantizeActivations prepared.
void DequantizeActivations(const ActRow& row, const FormatSpec& format, std::span<float> x);

// One cache row (one token of one head), packed; params = {s, z} as fp16 bits per group. With 16
// and 32 bits the row is bf16 or fp32 and params are not touched.
void QuantizeKv(std::span<const float> x, const FormatSpec& format, uint8_t* packed,
                uint16_t* params);
void DequantizeKv(const uint8_t* packed, const uint16_t* params, const FormatSpec& format,
                  std::span<float> x);

}  // namespace nibble
