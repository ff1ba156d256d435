// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/serve_formats.h"

#include <algorithm>

namespace nibble::cli {
namespace {

// Formats that have names of their own beside those of recipes. Atom compares 16 bits, weights of
// AWQ, SmoothQuant with a cache of 8 bits, and itself.
struct KnownFormat {
  std::string_view name, recipe, fields;
};
constexpr KnownFormat kKnownFormats[] = {{"w16a16", "rtn", "w-bits=16"},
                                         {"w4a16", "awq", ""},
                                         {"w8a8kv8", "smoothquant", "kv-bits=8,kv-asym"},
                                         {"w4a8kv4", "w4a8", "kv-bits=4"},
                                         {"atom", "atom", ""},
                                         {"quarot", "quarot", ""}};

}  // namespace

std::vector<std::string> DefaultFormats() {
  std::vector<std::string> names;
  for (const KnownFormat& known : kKnownFormats) names.emplace_back(known.name);
  return names;
}

ServedFormat FindFormat(const std::string& text, const RecipeChanges& changes) {
  const size_t colon = std::min(text.find(':'), text.size());
  const std::string name = text.substr(0, colon);
  std::string fields = text.substr(std::min(colon + 1, text.size()));
  std::ranges::replace(fields, ':', ',');
  KnownFormat known = {name, name, ""};
  for (const KnownFormat& one : kKnownFormats) {
    if (one.name == name) known = one;
  }
  Recipe recipe = ChangedRecipe(FindRecipe(known.recipe), ParseFields(known.fields));
  recipe = changes.Of(ChangedRecipe(std::move(recipe), ParseFields(fields)));
  const std::string bits = recipe.k.bits == recipe.v.bits
                               ? fmt::format("KV{}", recipe.k.bits)
                               : fmt::format("K{}V{}", recipe.k.bits, recipe.v.bits);
  return {text, recipe,
          fmt::format("W{}A{}{}", recipe.weights.bits, recipe.activations.bits, bits)};
}

}  // namespace nibble::cli
