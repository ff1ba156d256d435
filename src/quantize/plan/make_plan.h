// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "models/network.h"
#include "models/plan.h"
#include "quantize/recipes/recipe.h"

namespace nibble {

// Why a planned model has a table for its head beside the embedding's; empty: it has one for both.
std::string_view WhyTwoTables(const ModelConfig& config, const Recipe& recipe, const Plan& plan);

// The concrete plan: formats and online transforms of every linear of this model; activation clips
// that are to be searched are 0. Throws (usage) where no group fits a width, a rule finds no
// linear, or linears that share an input want it prepared differently.
Plan MakePlan(const ModelConfig& config, const Recipe& recipe);
// The plan for this source, whose codes `recipe` may keep. Throws (usage) where it has no codes, or
// where the recipe would change what they multiply.
Plan MakePlan(const Network& source, const Recipe& recipe);

}  // namespace nibble
