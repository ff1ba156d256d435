// SPDX-License-Identifier: Apache-2.0
// QUIK (Ashkboos et al. 2023), with the settings of section 3 and its code: the 256 channels with
// the largest values (of down, in proportion to its width) stay at 16 bits, the others take 4;
// down, whose input is wide rather than spiky, takes 8. What the paper calls "all 4 bit" is
// --down-bits 4.
#include "quantize/recipes/recipe.h"

namespace nibble {

const Recipe kQuikRecipe = {.name = "quik",
                            .summary = "4 bits with the largest channels at 16, down at 8 (QUIK)",
                            .rounding = Rounding::kGptq,
                            .weights = {.bits = 4, .clip = 0},
                            .activations = {.bits = 4, .symmetric = false},
                            .k = {},
                            .v = {},
                            .order = ChannelOrder::kLargest,
                            .tail = 256,
                            .tail_grows = true,
                            .rules = {{std::string(kDownPattern), "w-bits=8,a-bits=8"}}};

}  // namespace nibble
