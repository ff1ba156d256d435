// SPDX-License-Identifier: Apache-2.0
// GPTQ, weights only (Frantar et al. 2022).
#include "quantize/recipes/recipe.h"

namespace nibble {

const Recipe kGptqRecipe = {.name = "gptq",
                            .summary = "4-bit weights rounded by GPTQ, activations untouched",
                            .rounding = Rounding::kGptq,
                            .weights = {.bits = 4, .clip = 0}};

}  // namespace nibble
