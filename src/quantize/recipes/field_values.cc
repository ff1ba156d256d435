// SPDX-License-Identifier: Apache-2.0
// Values of recipe fields as people and documents write them.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "quantize/recipes/recipe_fields.h"

namespace nibble {
namespace {

using Kind = FieldDomain::Kind;

double ParseValue(const RecipeField& field, std::string_view text) {
  const FieldDomain& d = field.domain;
  if (d.kind == Kind::kName) {
    const auto found = std::ranges::find(d.names, text);
    if (found != d.names.end()) return static_cast<double>(found - d.names.begin());
  } else {
    double value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    const bool number = error == std::errc() && stop == end &&
                        (d.kind == Kind::kReal || value == std::floor(value));
    const bool within = value >= d.min && value <= d.max;  // not of NaN
    if (number && (within || std::ranges::count(d.others, value) > 0)) return value;
  }
  FailUsage("{} \"{}\": choose {}", field.name, text, ValuesText(d));
}

std::vector<std::string_view> Split(std::string_view list) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    parts.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace

std::string ValuesText(const FieldDomain& d) {
  if (d.kind == Kind::kSwitch) return "";
  if (d.kind == Kind::kName) return fmt::format("{}", fmt::join(d.names, ", "));
  std::string text = fmt::format("{} to {}", d.min, d.max);
  for (double other : d.others) text += fmt::format(", {}", other);
  return text;
}

std::string OptionText(const FieldValue& v) {
  const auto& [name, domain] = std::tie(v.field->name, v.field->domain);
  switch (domain.kind) {
    case Kind::kSwitch:
      return fmt::format("--{}", v.value != 0 ? name : domain.off);
    case Kind::kName:
      return fmt::format("--{} {}", name, domain.names[size_t(v.value)]);
    default:
      return fmt::format("--{} {}", name, v.value);
  }
}

Json ValueJson(const FieldValue& v) {
  switch (v.field->domain.kind) {
    case Kind::kSwitch:
      return v.value != 0;
    case Kind::kName:
      return v.field->domain.names[size_t(v.value)];
    case Kind::kWhole:
      return static_cast<int64_t>(v.value);
    default:
      return v.value;
  }
}

FieldValue ParseField(std::string_view name, std::string_view value) {
  for (const RecipeField& field : RecipeFields()) {
    const std::string_view off = field.domain.off;
    const bool on = name == field.name;
    if (!on && (off.empty() || name != off)) continue;
    if (field.domain.kind != Kind::kSwitch) return {&field, ParseValue(field, value)};
    if (value.empty()) return {&field, on ? 1.0 : 0.0};
    FailUsage("{} takes no value; write {} or {}", field.name, field.name, off);
  }
  FailUsage("no field \"{}\"; fields are the options of nibble quantize --help", name);
}

std::vector<FieldValue> ParseFields(std::string_view list) {
  std::vector<FieldValue> values;
  if (list.empty()) return values;
  for (std::string_view part : Split(list)) {
    const size_t equals = std::min(part.find('='), part.size());
    if (equals + 1 == part.size()) FailUsage("\"{}\" lacks its value", part);
    values.push_back(
        ParseField(part.substr(0, equals), part.substr(std::min(equals + 1, part.size()))));
  }
  return values;
}

Rule ParseRule(std::string_view text) {
  // Patterns may hold "(?:", values "2:4": fields begin behind the last colon before a letter.
  size_t colon = text.size();
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    if (text[i] == ':' && text[i + 1] >= 'a' && text[i + 1] <= 'z') colon = i;
  }
  if (colon == text.size()) FailUsage("--rule {}: expected PATTERN:FIELD=VALUE,...", text);
  Rule rule = {std::string(text.substr(0, colon)), std::string(text.substr(colon + 1))};
  try {
    for (const FieldValue& value : ParseFields(rule.fields)) {
      if (!value.field->of_linears) FailUsage("{} is of the whole model", value.field->name);
    }
  } catch (const Error& error) {
    FailUsage("--rule {}: {}", text, error.what());
  }
  return rule;
}

void SetFields(std::vector<FieldValue> values, Recipe& recipe) {
  std::ranges::stable_sort(values, {}, &FieldValue::field);
  for (const FieldValue& value : values) value.field->set(recipe, value.value);
}

Recipe ChangedRecipe(Recipe recipe, const std::vector<FieldValue>& values,
                     std::span<const std::string> rules) {
  SetFields(values, recipe);
  recipe.asked.insert(recipe.asked.end(), values.begin(), values.end());
  for (const std::string& rule : rules) recipe.rules.push_back(ParseRule(rule));
  return recipe;
}

}  // namespace nibble
