// SPDX-License-Identifier: Apache-2.0
// Atom (Zhao et al. 2023): channels in the order of their energy, groups of 128 at 4 bits, the last
// 128 of each input at 8 bits. Clips are the paper's; calibration is on quantized inputs as in the
// authors' code. docs/quality.md says what differs.
#include "quantize/recipes/recipe.h"

namespace nibble {

const Recipe kAtomRecipe = {.name = "atom",
                            .summary = "4 bits in groups of like channels, outliers at 8 (Atom)",
                            .rounding = Rounding::kGptq,
                            .weights = {.bits = 4, .group = 128, .clip = 0.85},
                            .activations = {.bits = 4, .group = 128, .clip = 0.9},
                            .k = {.bits = 4, .symmetric = false},
                            .v = {.bits = 4, .symmetric = false},
                            .order = ChannelOrder::kEnergy,
                            .tail = 128,
                            .tail_weights = {.bits = 8},
                            .tail_activations = {.bits = 8},
                            .quantized_calibration = true};

}  // namespace nibble
