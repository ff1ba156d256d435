// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/network.h"
#include "quantize/recipe.h"

namespace nibble {

// What a model is rounded to where it is only loaded. Floats: weights of 8 bits to nearest,
// rotated, or of 4 bits, in groups; activations of 8 bits; 16: weights and cache in bf16. Codes of
// other programs are kept, activations and the rest of the model likewise.
Recipe LoadingRecipe(int bits, bool has_codes);

// A float network as `recipe`, which calibrates nothing, makes it: as if it had been quantized and
// opened, in memory. Throws (usage) where the plan fits no such network.
Network RoundNetwork(const Network& source, const Recipe& recipe);

// The same network without data: formats, shapes and inputs of what RoundNetwork makes by `plan`.
Network PlannedNetwork(const Network& source, const Plan& plan);

// The same through what an earlier start kept (rounded_cache.h), or else kept for the next one.
struct KeptNetwork {
  Network network;
  bool found = false;
  std::string path;      // of the entry
  std::string not_kept;  // why there is none; empty: there is
};
KeptNetwork RoundOrFind(const Network& source, const Recipe& recipe);

}  // namespace nibble
