// SPDX-License-Identifier: Apache-2.0
// The one quantizer of each kind; docs/numerics.md, "Quantizers", has the formulas. Kernels must
// give the same codes bit for bit: every expression is fp32, in the order there, without
// contraction, and rounding is half to even.
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
