// SPDX-License-Identifier: Apache-2.0
#include "grammar/schema_constraints.h"

#include <algorithm>

namespace nibble::grammar {
namespace {

template <typename Value>
void AddNew(const std::vector<Value>& more, std::vector<Value>* all) {
  for (const Value& one : more) {
    if (std::find(all->begin(), all->end(), one) == all->end()) all->push_back(one);
  }
}

void TakeSmaller(int64_t other, int64_t* max) {
  if (*max == kUnbounded || (other != kUnbounded && other < *max)) *max = other;
}

void TakeTighter(const std::optional<DecimalBound>& other, bool min,
                 std::optional<DecimalBound>* bound) {
  if (!other) return;
  const bool tighter =
      !*bound ||
      (min ? Less((*bound)->value, other->value) : Less(other->value, (*bound)->value)) ||
      ((*bound)->value == other->value && !other->within);
  if (tighter) *bound = other;
}

void MergeInto(Constraints::Strings* a, const Constraints::Strings& b) {
  a->min = std::max(a->min, b.min);
  TakeSmaller(b.max, &a->max);
  AddNew(b.patterns, &a->patterns);
  AddNew(b.formats, &a->formats);
  AddNew(b.non_patterns, &a->non_patterns);
}

void MergeInto(NumberLimits* a, const NumberLimits& b) {
  a->integer = a->integer || b.integer;
  TakeTighter(b.min, true, &a->min);
  TakeTighter(b.max, false, &a->max);
  AddNew(b.multiples, &a->multiples);
  AddNew(b.non_multiples, &a->non_multiples);
}

std::optional<Json> BothOf(const std::optional<Json>& a, const std::optional<Json>& b) {
  if (a && b) return Both(*a, *b);
  return a ? a : b;
}

void MergeInto(Constraints::Arrays* a, const Constraints::Arrays& b) {
  std::vector<Json> firsts;
  for (size_t i = 0; i < std::max(a->firsts.size(), b.firsts.size()); ++i) {
    const auto schema = [&](const Constraints::Arrays& of) {
      return i < of.firsts.size() ? of.firsts[i] : of.items.value_or(true);
    };
    firsts.push_back(Both(schema(*a), schema(b)));
  }
  a->firsts = std::move(firsts);
  a->items = BothOf(a->items, b.items);
  a->min = std::max(a->min, b.min);
  TakeSmaller(b.max, &a->max);
  a->unique = a->unique || b.unique;
  a->evaluated = std::max(a->evaluated, b.evaluated);
  a->negated = a->negated || b.negated;
  AddNew(b.contained, &a->contained);
}

// Schemas by name or pattern. For one that only a or b has, additionalProperties of the other hold.
Json MergedNames(const Json& a, const Json& others_a, const Json& b, const Json& others_b) {
  Json names = Json::object();
  for (const auto& item : a.items()) {
    const auto other = b.find(item.key());
    names[item.key()] = Both(item.value(), other == b.end() ? others_b : *other);
  }
  for (const auto& item : b.items()) {
    if (!names.contains(item.key())) names[item.key()] = Both(others_a, item.value());
  }
  return names;
}

// Patterns hold beside declarations (schema_objects.cc). A name that one schema declares and a
// pattern of the other has is held to the other's additionalProperties, too, which is more than
// JSON Schema asks and never less.
void MergeInto(Constraints::Objects* a, const Constraints::Objects& b) {
  const Json others_a = a->others.value_or(true), others_b = b.others.value_or(true);
  a->properties = MergedNames(a->properties, others_a, b.properties, others_b);
  a->patterns = MergedNames(a->patterns, others_a, b.patterns, others_b);
  a->others = BothOf(a->others, b.others);
  a->evaluated.insert(b.evaluated.begin(), b.evaluated.end());
  AddNew(b.required, &a->required);
  a->names = BothOf(a->names, b.names);
  a->min = std::max(a->min, b.min);
  TakeSmaller(b.max, &a->max);
}

bool IsAll(const Json& schema) {
  return schema.is_object() && schema.size() == 1 && schema.contains("allOf") &&
         schema.at("allOf").is_array();
}

}  // namespace

unsigned TypeOf(const Json& value) {
  if (value.is_null()) return kNull;
  if (value.is_boolean()) return kBoolean;
  if (value.is_number()) return kNumber;
  if (value.is_string()) return kString;
  return value.is_array() ? kArray : kObject;
}

// Each schema is listed once, so that those of recursive schemas come to an end.
Json Both(const Json& a, const Json& b) {
  if (a == b || b == true || b == Json::object()) return a;
  if (a == true || a == Json::object()) return b;
  if (a == false || b == false) return false;
  Json all = Json::array();
  for (const Json* schema : {&a, &b}) {
    for (const Json& one : IsAll(*schema) ? schema->at("allOf") : Json::array({*schema})) {
      if (std::find(all.begin(), all.end(), one) == all.end()) all.push_back(one);
    }
  }
  return all.size() == 1 ? all[0] : Json{{"allOf", all}};
}

Constraints Merged(Constraints a, const Constraints& b) {
  a.types &= b.types;
  a.implied |= b.implied;
  if (a.values && b.values) {
    std::erase_if(*a.values, [&](const Json& value) {
      return std::find(b.values->begin(), b.values->end(), value) == b.values->end();
    });
  } else if (b.values) {
    a.values = b.values;
  }
  AddNew(b.excluded, &a.excluded);
  MergeInto(&a.numbers, b.numbers);
  MergeInto(&a.strings, b.strings);
  MergeInto(&a.arrays, b.arrays);
  MergeInto(&a.objects, b.objects);
  AddNew(b.choices, &a.choices);
  return a;
}

}  // namespace nibble::grammar
