// SPDX-License-Identifier: Apache-2.0
// QuaRot (Ashkboos et al. 2024) with less error in the same formats: clips chosen by output error,
// and activation scales whose sign makes use of the code -8. docs/quality.md measures each.
#include "quantize/recipe.h"

namespace nibble {

const Recipe kNibbleRecipe = {.name = "nibble",
                              .summary = "quarot with searched activation clips and signed scales",
                              .rotation = Rotation::kHadamard,
                              .rounding = Rounding::kGptq,
                              .weights = {.bits = 4, .clip = 0},
                              .activations = {.bits = 4, .clip = 0, .signed_scale = true},
                              .k = {.bits = 4, .symmetric = false, .clip = 0.9},
                              .v = {.bits = 4, .symmetric = false, .clip = 0.9},
                              .quantized_calibration = true};

}  // namespace nibble
