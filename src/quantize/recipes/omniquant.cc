// SPDX-License-Identifier: Apache-2.0
// OmniQuant (Shao et al. 2023), W4A4: each layer learns clips of its weights and scales of its
// channels, which begin as SmoothQuant's; then all is rounded to nearest. W4A16 in groups of 128 is
// --a-bits 16 --kv-bits 16 --w-group 128 --alpha 0 --fixed-channels, as the paper has it for Llama.
#include "quantize/recipes/recipe.h"

namespace nibble {

const Recipe kOmniquantRecipe = {
    .name = "omniquant",
    .summary = "4 bits everywhere, clips and channel scales learned layer by layer (OmniQuant)",
    .weights = {.bits = 4, .symmetric = false},
    .activations = {.bits = 4, .symmetric = false},
    .k = {.bits = 4, .symmetric = false},
    .v = {.bits = 4, .symmetric = false},
    .smoothing = 0.5,
    .block_epochs = 20,
    .learned_channels = true};

}  // namespace nibble
