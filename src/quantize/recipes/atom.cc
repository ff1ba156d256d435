// SPDX-License-Identifier: Apache-2.0
// Atom (Zhao et al. 2023): channels in the order of their energy, groups of 128 at 4 bits, the last
// 128 of each input at 8 bits. Clips of the paper: 0.9 for activations, 0.85 for weights, none for
// the cache. Calibrated on quantized inputs as the authors' code does. It caches K before RoPE,
// Nibble behind it; and the authors let two rows share a scale for their kernel's sake, here none
// do.
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
