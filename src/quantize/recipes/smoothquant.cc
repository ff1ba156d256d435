// SPDX-License-Identifier: Apache-2.0
// SmoothQuant (Xiao et al. 2023): large channels behind a norm are made smaller and their weights
// larger, then 8 bits everywhere, rounded to nearest: weights per row, activations per token. The
// alpha is the authors' for Llama-2 (0.5 for OPT, 0.9 for Llama-2-70B).
#include "quantize/recipes/recipe.h"

namespace nibble {

const Recipe kSmoothquantRecipe = {
    .name = "smoothquant",
    .summary = "channels scaled in the norms, then 8-bit weights and activations (SmoothQuant)",
    .weights = {.bits = 8},
    .activations = {.bits = 8},
    .smoothing = 0.85};

}  // namespace nibble
