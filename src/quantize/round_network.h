// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/network.h"
#include "quantize/recipe.h"

namespace nibble {

// What a float model is rounded to where it is only loaded: weights of `bits` (4 or 8) to nearest
// in groups, 8-bit activations, no rotation; 16: weights and cache in bf16.
Recipe LoadingRecipe(int bits);

// A float network as `recipe`, which calibrates nothing, makes it: as if it had been quantized and
// opened, in memory. Throws (usage) where the plan fits no such network.
Network RoundNetwork(const Network& source, const Recipe& recipe);

}  // namespace nibble
