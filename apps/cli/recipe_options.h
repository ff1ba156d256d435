// SPDX-License-Identifier: Apache-2.0
// Command-line options that change a recipe, one for each of its fields
// (quantize/recipes/recipe_fields.h).
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "quantize/recipes/recipe_fields.h"

namespace nibble::cli {

struct RecipeChanges {
  std::vector<FieldValue> fields;
  std::vector<std::string> rules;  // PATTERN:FIELD=VALUE,...

  // Throws (usage) where a rule cannot be read; fields that change nothing are MakePlan's to find.
  Recipe Of(const Recipe& recipe) const;
};

// Adds the fields as options, in kCommonGroup and kRareGroup (reference.h).
void AddFields(CLI::App& verb, RecipeChanges& changes);

}  // namespace nibble::cli
