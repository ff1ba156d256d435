// SPDX-License-Identifier: Apache-2.0
// QServe (Lin et al. 2024), W4A8KV4: scales of groups are integers on top of one scale a row, so
// that weights run with 8 bits. The inputs of blocks are rotated with nothing left to do at run
// time. The paper's order of channels (--order largest) gains nothing here and takes a gather at
// run time.
#include "quantize/recipes/recipe.h"

namespace nibble {

const Recipe kQserveRecipe = {
    .name = "qserve",
    .summary = "4-bit weights that run as 8 bits, 8-bit activations, 4-bit cache (QServe)",
    .rotation = Rotation::kHadamard,
    .online_transforms = false,
    .rounding = Rounding::kGptq,
    .weights = {.bits = 4, .symmetric = false, .group = 128, .clip = 0, .second_level = true},
    .activations = {.bits = 8},
    .k = {.bits = 4, .symmetric = false},
    .v = {.bits = 4, .symmetric = false},
    .key_smoothing = 0.5,
    .output_smoothing = 0.05,
    .quantized_calibration = true};

}  // namespace nibble
