// SPDX-License-Identifier: Apache-2.0
// The passes over text that a report's figures come from.
#pragma once

#include <span>

#include "compute/backend.h"
#include "quantize/recipes/recipe.h"
#include "report/page.h"

namespace nibble {

// The recipe as it fits the model. One without a rotation is rounded to nearest, so that its
// formats go with a Hadamard rotation, and nothing else.
Recipe RotatedRecipe(const ModelConfig& config, const Recipe& recipe);

// Fills in the layers before and after what `recipe` maps: rotations, online transforms, and scales
// of channels in front of them. Learned rotations are left out, and no online transform is.
void MeasureRotation(Backend& backend, const Network& source, const Recipe& recipe,
                     std::span<const int32_t> ids, int64_t context, ModelReport& report);

// Fills in how close the residual streams of the report's checkpoints are to that of the source.
void MeasureStreams(Backend& backend, const Network& source, const Recipe& recipe,
                    std::span<const Network> checkpoints, std::span<const int32_t> ids,
                    int64_t context, ModelReport& report);

// The titles of their progress.
inline constexpr const char *kBeforeTitle = "inputs", *kAfterTitle = "rotated inputs",
                            *kStreamsTitle = "streams";

}  // namespace nibble
