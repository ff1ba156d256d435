// SPDX-License-Identifier: Apache-2.0
// AWQ (Lin et al. 2023), weights only: channels that meet large inputs are scaled up before
// asymmetric groups of 128 are rounded to nearest, by the power of the mean input that leaves
// products the smallest error; then weights are clipped by such a search.
#include "quantize/recipes/recipe.h"

namespace nibble {

const Recipe kAwqRecipe = {
    .name = "awq",
    .summary = "4-bit weights in groups of 128, scaled and clipped by their products (AWQ)",
    .weights = {.bits = 4, .symmetric = false, .group = 128},
    .scale_steps = 20,
    .output_clips = true};

}  // namespace nibble
