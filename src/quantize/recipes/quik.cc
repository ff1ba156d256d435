// SPDX-License-Identifier: Apache-2.0
// QUIK (Ashkboos et al. 2023): the 256 channels with the largest values (of down, which is wider,
// in proportion) stay at 16 bits, the others take 4; down, whose input is wide rather than spiky,
// takes 8. Settings of section 3 and its code: symmetric weights per row with a searched clip,
// asymmetric activations per token without one, GPTQ whose last columns take up errors, calibrated
// in fp32. What the paper calls "all 4 bit" is --down-bits 4.
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
