// SPDX-License-Identifier: Apache-2.0
// Round to nearest, weights only: the baseline that needs no calibration.
#include "quantize/recipes/recipe.h"

namespace nibble {

const Recipe kRtnRecipe = {.name = "rtn",
                           .summary = "4-bit weights rounded to nearest; the plain baseline",
                           .weights = {.bits = 4, .clip = 0}};

}  // namespace nibble
