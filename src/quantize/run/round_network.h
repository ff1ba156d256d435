// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/network.h"
#include "quantize/recipes/recipe.h"

namespace nibble {

// The recipe for a model that is rounded while it is loaded. Floats: weights of 8 bits, rotated and
// rounded to nearest, or of 4 bits, in groups; activations of 8 bits; with 16, weights and cache
// are in bf16. Codes of other programs are kept; activations and the rest of the model are as for
// floats.
Recipe LoadingRecipe(int bits, bool has_codes);

// A float network as `recipe`, which calibrates nothing, makes it: as if it had been quantized and
// opened, in memory. Throws (usage) where the plan fits no such network.
Network RoundNetwork(const Network& source, const Recipe& recipe);

// The network that RoundNetwork makes by `plan`, without data: formats, shapes and inputs.
Network PlannedNetwork(const Network& source, const Plan& plan);

// The rounded network that an earlier start kept (rounded_cache.h), or one that is rounded now and
// kept for the next start.
struct KeptNetwork {
  Network network;
  bool found = false;
  std::string path;      // of the entry
  std::string not_kept;  // why there is none; empty: there is
};
KeptNetwork RoundOrFind(const Network& source, const Recipe& recipe);

}  // namespace nibble
