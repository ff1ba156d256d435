// SPDX-License-Identifier: Apache-2.0
// QServe (Lin et al. 2024), W4A8KV4: weights of 4 bits, asymmetric, in groups of 128 whose scales
// are integers of 8 bits on top of one scale a row, so that they run as 8-bit weights; activations
// of 8 bits per token; a 4-bit cache. The inputs of blocks are rotated with nothing left to do at
// run time, keys are smoothed, and so is what o and down read. Not taken over: the reordering of
// channels (--order largest), which gains nothing on our model and takes a gather at run time.
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
