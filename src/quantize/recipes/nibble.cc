// SPDX-License-Identifier: Apache-2.0
// QuaRot (Ashkboos et al. 2024) with less error in the same formats; docs/quality.md measures each
// part. With --rotation hadamard the residual stream has a learned rotation.
#include "quantize/recipes/recipe.h"

namespace nibble {

const Recipe kNibbleRecipe = {
    .name = "nibble",
    .summary =
        "quarot behind the norms with searched clips and signed scales; scales learned with "
        "--quality best",
    .rotation = Rotation::kInputs,
    .rounding = Rounding::kGptq,
    .weights = {.bits = 4, .clip = 0},
    .activations = {.bits = 4, .clip = 0, .signed_scale = true},
    .k = {.bits = 4, .symmetric = false, .clip = 0.9},
    .v = {.bits = 4, .symmetric = false, .clip = 0.9},
    .learned_rotation = true,
    .learned_scales = true,
    .balance = 0.25,
    .key_balance = 0.5,
    .center_keys = true,
    .quantized_calibration = true,
    .recent = true,
    .gptaq = 0.5,
    .foem = 0.1,
    .sweeps = 3};

}  // namespace nibble
