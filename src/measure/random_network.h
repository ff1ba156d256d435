// SPDX-License-Identifier: Apache-2.0
// Networks with random packed weights, for measuring speed without a download.
#pragma once

#include <string>

#include "models/network.h"
#include "quantize/recipes/recipe.h"

namespace nibble {

// Layers with and without experts share the planes of one random layer each, so the canonical
// weights take their memory; a backend still makes its own copy of each. Norms are folded away or
// ones, the head has 8 bits (weights and activations, per row) unless the weights are wide, the
// embedding is bf16. Attention biases are random.
Network RandomNetwork(const ModelConfig& config, const Recipe& recipe, uint64_t seed);

// The network of this config.json as a Nibble checkpoint, written beside `directory` and renamed to
// it. Throws if that exists.
void WriteRandomCheckpoint(Json config, const Recipe& recipe, uint64_t seed,
                           const std::string& directory);

}  // namespace nibble
