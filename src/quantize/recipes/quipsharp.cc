// SPDX-License-Identifier: Apache-2.0
// QuIP# (Tseng et al. 2024): weights of 2 bits (or 3, 4), eight at a time a codeword of the E8
// lattice, behind QuaRot's rotations. Fine-tuning is --tune-blocks, within layers,
// and --learned-scales: of what QuIP# tunes in the end, the vectors on the output side and the
// head.
//
// Its transforms of outputs are --output-transforms, which lose where each row has a scale
// (docs/quality.md).
#include "quantize/recipes/recipe.h"

namespace nibble {

const Recipe kQuipsharpRecipe = {.name = "quipsharp",
                                 .summary = "2-bit weights, codewords of the E8 lattice (QuIP#)",
                                 .rotation = Rotation::kHadamard,
                                 .rounding = Rounding::kGptq,
                                 .weights = {.bits = 2, .codebook = Codebook::kE8p}};

}  // namespace nibble
