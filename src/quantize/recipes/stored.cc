// SPDX-License-Identifier: Apache-2.0
// A checkpoint that GPTQ, AWQ or compressed-tensors quantized, or that has MXFP4, as a Nibble
// checkpoint: its weights mean the same numbers (models/import/stored_codes.h), activations and
// cache have 8 bits. What has no codes there, tables among them, is rounded to 8 bits.
#include "quantize/recipes/recipe.h"

namespace nibble {

const Recipe kStoredRecipe = {
    .name = "stored",
    .summary = "the codes of a GPTQ, AWQ, compressed-tensors or MXFP4 checkpoint as they are",
    .rounding = Rounding::kStored,
    .weights = {.bits = 8},
    .activations = {.bits = 8},
    .k = {.bits = 8, .symmetric = false},
    .v = {.bits = 8, .symmetric = false}};

}  // namespace nibble
