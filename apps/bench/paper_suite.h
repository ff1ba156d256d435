// SPDX-License-Identifier: Apache-2.0
// The quality tables of the papers as data: what `nibble bench quality --suite paper` runs.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "quantize/recipes/recipe.h"

namespace nibble::cli {

struct PaperRow {
  std::string_view name;
  std::string_view recipe;  // empty: the model as it is
  std::string_view fields;  // changes of the recipe, as ParseFields reads them
  // Perplexity on WikiText-2 as printed for Llama-2 7B, 13B and 70B; empty = not published.
  std::array<std::string_view, 3> published{};
  std::string_view rule{};     // a rule for some linears
  std::string_view missing{};  // why Nibble cannot run it, whatever the model
};

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

inline constexpr std::array<std::string_view, 3> kPublishedModels = {"llama2-7b", "llama2-13b",
                                                                     "llama2-70b"};

// The first row of the first section is the model as it is, which all gaps are measured from.
const std::vector<PaperSection>& PaperSuite();

}  // namespace nibble::cli
