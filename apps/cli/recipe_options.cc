// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/recipe_options.h"

#include <algorithm>

#include "apps/cli/reference.h"

namespace nibble::cli {

Recipe RecipeChanges::Of(const Recipe& recipe) const {
  return ChangedRecipe(recipe, fields, rules);
}

namespace {

constexpr std::string_view kCommonFields[] = {"w-bits",  "a-bits",   "group",
                                              "kv-bits", "rotation", "rounding"};

}  // namespace

void AddFields(CLI::App& verb, RecipeChanges& a) {
  const auto add = [&a](std::string_view name) {
    return [&a, name](const std::string& value) { a.fields.push_back(ParseField(name, value)); };
  };
  for (const RecipeField& field : RecipeFields()) {
    const std::string on = fmt::format("--{}", field.name), help(field.help);
    const bool common = std::ranges::find(kCommonFields, field.name) != std::end(kCommonFields);
    const char* const group = common ? kCommonGroup : kRareGroup;
    if (field.domain.off.empty()) {
      const std::string values = ValuesText(field.domain);
      verb.add_option_function<std::string>(on, add(field.name), help)
          ->type_name(values)
          ->group(group);
      continue;
    }
    const auto flag = [&](std::string_view name, const std::string& text) {
      const auto set = [add = add(name)] { add(""); };
      return verb.add_flag_callback(fmt::format("--{}", name), set, text)->group(group);
    };
    CLI::Option* yes = flag(field.name, help);
    yes->excludes(flag(field.domain.off, "The opposite"));
  }
  verb.add_option(
          "--rule", a.rules,
          "PATTERN:FIELD=VALUE,...: options --w-bits to --tail-bits, without dashes, of the "
          "linears in whose name (model.layers.3.mlp.down_proj) the regular expression "
          "is found; repeatable, later rules win")
      ->allow_extra_args(false)
      ->group(kCommonGroup);
}

}  // namespace nibble::cli
