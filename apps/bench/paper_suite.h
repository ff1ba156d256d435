// SPDX-License-Identifier: Apache-2.0
// The quality tables of the papers as data: what `nibble bench quality --suite paper` runs. What
// the papers publish for these rows, and rows that are only published, are in published.tsv.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "quantize/recipes/recipe.h"

namespace nibble::cli {

struct PaperRow {
  std::string_view name;
  std::string_view recipe;     // empty: the model as it is
  std::string_view fields;     // changes of the recipe, as ParseFields reads them
  std::string_view rule{};     // a rule for some linears
  std::string_view missing{};  // why Nibble cannot run it, whatever the model
};

// Of rows that are not methods of Nibble.
inline constexpr std::string_view kPublishedOnly = "published only";

struct PaperSection {
  std::string_view name;   // for --only
  std::string_view title;  // paper and what its table compares
  std::vector<PaperRow> rows;
  bool tasks = false;  // compares zero-shot accuracy, too
};

// The recipe of a row; the papers leave head and embedding at 16 bits.
Recipe RowRecipe(const PaperRow& row);
// The options of `nibble quantize` that ask for the recipe; empty: the model as it is. Rows of the
// same arguments run once.
std::string RowArguments(const PaperRow& row);

// The first row of the first section is the model as it is, which all gaps are measured from.
const std::vector<PaperSection>& PaperSuite();

}  // namespace nibble::cli
