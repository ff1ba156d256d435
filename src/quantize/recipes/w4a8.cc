// SPDX-License-Identifier: Apache-2.0
// The recipe for most users: 4-bit weights beside activations and cache of 8 bits, which cost no
// time on CPUs and little on GPUs. Rotations are QuaRot's (Ashkboos et al. 2024); asymmetric groups
// of 64 whose scales are integers times the row's run at the speed of rows (QServe, Lin et al.
// 2024). docs/quality.md measures it.
#include "quantize/recipes/recipe.h"

namespace nibble {

const Recipe kW4a8Recipe = {
    .name = "w4a8",
    .summary =
        "4-bit weights in groups of 64, 8-bit activations and cache, Hadamard rotations; scales "
        "learned with --quality best",
    .rotation = Rotation::kHadamard,
    .rounding = Rounding::kGptq,
    .weights = {.bits = 4, .symmetric = false, .group = 64, .clip = 0, .second_level = true},
    .activations = {.bits = 8},
    .k = {.bits = 8, .symmetric = false},
    .v = {.bits = 8, .symmetric = false},
    .learned_scales = true,
    .key_balance = 0.5,
    .center_keys = true,
    .damp = 0.05,
    .quantized_calibration = true,
    .recent = true,
    .gptaq = 0.25,
    .foem = 0.1,
    .sweeps = 3};

}  // namespace nibble
