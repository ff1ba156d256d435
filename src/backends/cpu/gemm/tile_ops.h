// SPDX-License-Identifier: Apache-2.0
// The steps around the integer products, the same for every instruction set (Highway): nibbles to
// bytes before a GEMM, and the one fp32 epilogue after every product.
#pragma once

#include <cstdint>

#include "backends/cpu/gemm/panels.h"
#include "base/cpu_features.h"

namespace nibble::cpu {

// Nibble panel -> byte panel, `inputs` inputs (a multiple of 8) of 16 outputs; floats: kFloatBytes.
void UnpackNibbles(Isa isa, const uint8_t* nibbles, int64_t inputs, bool floats, uint8_t* bytes);

// UnpackNibbles for a panel with a second level of scales. `nibbles` points to input `first`,
// `steps` to the panel's first step.
void UnpackLevels(Isa isa, const uint8_t* nibbles, int64_t first, int64_t inputs,
                  const uint16_t* steps, int64_t step_cols, uint8_t* bytes);

// UnpackNibbles for a panel of lattice codes; `inputs` is a multiple of 32.
void UnpackCodewords(Isa isa, const uint8_t* codes, int64_t inputs, int bits, uint8_t* bytes);

// int32 sums of `rows` rows of codes from `row` on and of two panels, for groups [group, group +
// groups). A token has one row, or two (IntPanels::planes).
struct TileSums {
  int64_t panel, row, rows, group, groups;
  const int32_t* acc;  // [groups, rows, kTileOutputs]
};
// The epilogue's terms of the activations, group by group: a tile reads those of many tokens and
// few groups.
struct TokenTerms {
  int64_t tokens, rows;
  const float *scales, *zero_offsets;  // [groups of activations, tokens]; zero offsets may be null
  const int32_t* code_sums;            // Q [groups, rows], or null with
  const float* exact_sums;             // the same as floats: IntPanels::exact()
};
// y [tokens, N] with row stride `stride`.
struct TileOutput {
  float* y;
  int64_t stride;
  bool accumulate;
  bool stream = false;  // past the caches; y and stride are multiples of 64 bytes
};
// A group's share is (a * s) * t, t = float(acc - offset * Q) (+ z * column_sum), or with planes
// 256 * float(acc_u - offset * Q_u) + float(acc_l - offset * Q_l).
//
// Shares of several groups add up in `partial` [rows, kTileOutputs], ascending, by fused
// multiply-adds; with IntPanels::scale_last, a and z * column_sum come last. With the last group y
// (+)= sum + bias.
void ApplyScales(Isa isa, const TileSums& sums, const IntPanels& weights, const TokenTerms& acts,
                 float* partial, const TileOutput& out);

// out[r, j] (+)= y[r, j] + bias[j] for j < count; y [rows, kTileOutputs], out with row stride
// out_stride; bias may be null.
void StoreTile(Isa isa, const float* y, int64_t rows, int64_t count, const float* bias,
               bool accumulate, float* out, int64_t out_stride);

}  // namespace nibble::cpu
