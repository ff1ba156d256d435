// SPDX-License-Identifier: Apache-2.0
// A quantized linear as the integer kernels read it: unsigned codes of 4 or 8 bits, floats of 4, or
// codes of a lattice, in panels of 16 outputs (formats/tile_order.h), with the constants of the
// epilogue.
//
// The smaller of the weight and the activation group is the run of inputs summed in int32 ("group"
// below); the larger must be a multiple of it. A second level of scales is no group. Inputs are
// padded to a multiple of 64 (the activation codes are zero there), outputs to a multiple of 32
// (with scale 0).
//
// With acc the sum of a group's unsigned codes times activation codes, Q that of the latter,
//   y[m, n] = sum_g a[m, g] s[n, g] (acc - offset[n, g] Q[m, g] + z[m, g] column_sum[n, g])
// or, if all groups share the token's scale,
//   y[m, n] = a[m] (sum_g s[n, g] (acc - offset[n, g] Q[m, g]) + z[m] column_sum[n])
#pragma once

#include <cstdint>
#include <vector>

#include "base/aligned.h"
#include "compute/backend.h"
#include "formats/lattice_codes.h"
#include "tensor/e2m1.h"

namespace nibble::cpu {

// The content of panels: codes, codes with a second level of scales, codes of a lattice, or floats.
enum class Form { kCodes, kLevels, kCodewords, kFloats };

struct IntPanels {
  int64_t rows = 0, cols = 0;  // N, K
  int64_t padded_cols = 0;
  int64_t panels = 0;  // even
  int bits = 8;        // 4 or 8, as stored; with a lattice 2, 3 or 4
  Codebook codebook = Codebook::kNone;
  FormatSpec activations{};

  int64_t group_cols = 0;  // inputs of a group, padding included if it is the whole row
  int64_t groups = 1;
  int64_t per_weight_group = 1, per_act_group = 1;  // groups that share a scale

  const uint8_t* codes = nullptr;  // 64-byte aligned; in `memory` or in the linear's tiles
  AlignedBytes memory{};
  // [panels, groups / per_weight_group, 16]: fp32 scales of rows or fp16 scales of groups, as the
  // linear stores them.
  std::vector<float> scales{};
  std::vector<uint16_t> half_scales{};
  std::vector<uint8_t> offsets{};  // the same shape: offset() plus zero point; empty: offset()
  std::vector<uint16_t> steps{};   // [panels, step_groups, 16] as in int_kernels.h, or empty
  int64_t step_cols = 0;           // inputs of a step
  // Asymmetric acts only: sums of (code - zero), [panels, groups, 16]; with scale_last() those of
  // the weights themselves, [panels, 16].
  std::vector<float> column_sums{};
  std::vector<float> bias{};  // [panels * 16] or empty

  bool lattice() const { return codebook == Codebook::kE8p; }
  bool second_level() const { return step_cols != 0; }
  Form form() const {
    if (codebook != Codebook::kNone) return lattice() ? Form::kCodewords : Form::kFloats;
    return second_level() ? Form::kLevels : Form::kCodes;
  }
  bool bytes() const { return bits == 8; }
  // True if only weights have groups: a token has one scale, which is applied last.
  bool scale_last() const { return groups > 1 && per_act_group == groups; }
  // 16-bit activations come as two rows of codes per token (SplitPlanes).
  bool planes() const { return activations.bits == 16; }
  int64_t sum_rows(int64_t tokens) const { return planes() ? 2 * tokens : tokens; }
  int64_t step_groups() const { return (padded_cols + step_cols - 1) / step_cols; }
  const uint16_t* panel_steps(int64_t p) const { return steps.data() + p * step_groups() * 16; }
  // Unsigned minus signed code, as multiplied.
  int64_t offset() const {
    if (codebook != Codebook::kNone) return lattice() ? LatticeCode(bits).offset() : kE2m1Top;
    return bits == 4 && !second_level() ? 8 : 128;
  }
  // Sums of a group, whatever its codes and their offset, are integers that floats hold exactly.
  bool exact() const {
    const int64_t largest = form() == Form::kCodes && bits == 4 ? 15 : 255;
    return groups > 1 && group_cols * largest * 128 <= int64_t{1} << 24;
  }
  int64_t weight_groups() const { return groups / per_weight_group; }
  int64_t Bytes(int64_t inputs) const { return inputs * 16 * bits / 8; }  // of one panel
  const uint8_t* panel(int64_t p) const { return codes + p * Bytes(padded_cols); }
};

// The panels of weights [rows, cols] without their contents, by which kernels are chosen. Throws if
// the groups do not nest, are not multiples of 8, or a sum could leave int32.
IntPanels PanelLayout(const FormatSpec& weights, int64_t rows, int64_t cols,
                      const FormatSpec& activations);

// Uses the tile plane of `w` in place if there is one. `bias` may have no data. Throws as
// PanelLayout does.
IntPanels PackPanels(const PackedWeights& w, const FormatSpec& activations, const Tensor& bias);

}  // namespace nibble::cpu
