// SPDX-License-Identifier: Apache-2.0
// QuIP# (Tseng et al. 2024): weights of 2 bits (or 3, 4), eight at a time a point of the E8
// lattice, behind Hadamard rotations and with the errors of each eight made up for by those behind
// them (block LDLQ). Rotations are QuaRot's, which fold the output side of most linears; every row
// has a scale. Fine-tuning is --learned-scales: of what QuIP# tunes, the vectors on the output
// side and the head.
#include "quantize/recipes/recipe.h"

namespace nibble {

const Recipe kQuipsharpRecipe = {.name = "quipsharp",
                                 .summary = "2-bit weights, points of the E8 lattice (QuIP#)",
                                 .rotation = Rotation::kHadamard,
                                 .rounding = Rounding::kGptq,
                                 .weights = {.bits = 2, .codebook = Codebook::kE8p}};

}  // namespace nibble
