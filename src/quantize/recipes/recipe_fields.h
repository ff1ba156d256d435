// SPDX-License-Identifier: Apache-2.0
// The fields of a recipe that a user may change, as one table: the command line, rules, the record
// in a checkpoint, the papers' suite and the public API go by it. A new field is one row.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quantize/recipes/recipe.h"

namespace nibble {

// The values of a field; all are numbers inside.
struct FieldDomain {
  enum class Kind { kWhole, kReal, kSwitch, kName } kind;
  double min = 0, max = 1;
  std::vector<double> others = {};           // beside least to most
  std::vector<std::string_view> names = {};  // the value is an index
  std::string_view off = {};                 // the name that turns a switch off
};

struct RecipeField {
  std::string_view name;  // "a-bits": --a-bits 8 on the command line, a-bits=8 in lists
  FieldDomain domain;
  std::string_view help;
  void (*set)(Recipe&, double value);
  // Why it changes nothing in a recipe (of one linear, as rules left it); empty: it does.
  std::string_view (*idle)(const Recipe&);
  // The value for the record; null where the plan shows it.
  double (*get)(const Recipe&) = nullptr;
  bool of_linears = false;      // rules can have it
  bool always_recorded = true;  // else only where it is on
};

// All fields in the order in which they are set: what says more in particular comes later.
std::span<const RecipeField> RecipeFields();

std::string ValuesText(const FieldDomain& domain);  // "2 to 8, 16", "none, 2:4"
// A field as the command line has it: "--a-bits 8", "--w-sym".
std::string OptionText(const FieldValue& value);
Json ValueJson(const FieldValue& value);  // 8, 0.01, true, "gptq"

// A field by its name, or a switch by the name that turns it off; a switch has an empty value.
// Throws (usage) on unknown names and values out of range.
FieldValue ParseField(std::string_view name, std::string_view value);
// Parses "a-bits=8,kv-bits=4,w-asym"; "" gives no fields.
std::vector<FieldValue> ParseFields(std::string_view list);
// Parses "PATTERN:LIST" with fields of linears.
Rule ParseRule(std::string_view text);

// Sets fields in the order of the table.
void SetFields(std::vector<FieldValue> values, Recipe& recipe);
// The recipe with these fields, which are remembered as asked for, and rules behind its own.
Recipe ChangedRecipe(Recipe recipe, const std::vector<FieldValue>& values,
                     std::span<const std::string> rules = {});

}  // namespace nibble
