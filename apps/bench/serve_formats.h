// SPDX-License-Identifier: Apache-2.0
// The formats that `bench serve --memory` compares, by default those of Atom's serving
// measurements (Zhao et al. 2023) and QuaRot.
#pragma once

#include <string>
#include <vector>

#include "apps/cli/recipe_options.h"
#include "quantize/recipes/recipe.h"

namespace nibble::cli {

struct ServedFormat {
  std::string name;  // as the user has it
  Recipe recipe;
  std::string bits;  // "W4A4KV4"

  // Returns whether nothing is quantized: what others are compared with.
  bool wide() const {
    return !recipe.weights.quantized() && !recipe.activations.quantized() &&
           !recipe.k.quantized() && !recipe.v.quantized();
  }
};

std::vector<std::string> DefaultFormats();

// The format of `text`, which is NAME or NAME:FIELD=VALUE:..., with one of these names or a
// recipe's, and then changed as every format is. Throws (usage) where there is none.
ServedFormat FindFormat(const std::string& text, const RecipeChanges& changes);

}  // namespace nibble::cli
