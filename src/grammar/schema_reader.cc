// SPDX-License-Identifier: Apache-2.0
// Keywords of a schema as Constraints, with what its $ref, allOf and not say.
#include <algorithm>
#include <cmath>
#include <map>

#include "grammar/json_schema.h"
#include "grammar/json_text.h"
#include "grammar/schema_references.h"
#include "grammar/string_formats.h"

namespace nibble::grammar {
namespace {

constexpr int kMaxMerging = 64;
constexpr int kMaxApart = 3;  // levels of properties that are looked at to tell two schemas apart
constexpr size_t kPairWork = 64;  // see kMaxWork of json_schema.cc

const std::map<std::string, unsigned> kTypeNames = {
    {"null", kNull},     {"boolean", kBoolean}, {"integer", kNumber}, {"number", kNumber},
    {"string", kString}, {"array", kArray},     {"object", kObject}};

// A keyword's value, or nullptr.
const Json* Find(const Json& schema, const char* key) {
  const auto it = schema.find(key);
  return it == schema.end() ? nullptr : &*it;
}

Json Absent(const std::string& name) {
  return {{"type", "object"}, {"properties", {{name, false}}}};
}
Json Present(const std::string& name) {
  return {{"type", "object"}, {"required", Json::array({name})}};
}

// Values of these types.
Json OfTypes(unsigned types) {
  Json names = Json::array();
  for (const auto& [name, type] : kTypeNames) {
    if ((types & type) != 0 && name != "integer") names.push_back(name);
  }
  return {{"type", names}};
}

}  // namespace

const Json& SchemaCompiler::Resolve(const Json& reference, Where at) const {
  if (!reference.is_string()) Refuse(at, "$ref must be a string");
  const auto& text = reference.get_ref<const std::string&>();
  const Json* found = Follow(root_, text);
  if (found == nullptr) {
    Refuse(at, fmt::format("$ref \"{}\" leads nowhere in the schema", text));
  }
  return *found;
}

int64_t SchemaCompiler::Count(const Json& schema, const char* key, int64_t otherwise, Where at) {
  const Json* value = Find(schema, key);
  if (value == nullptr) return otherwise;
  const double count = value->is_number() ? value->get<double>() : -1;
  if (count < 0 || count != std::floor(count)) {
    Refuse(at, fmt::format("{} must be an integer from 0", key));
  }
  if (count <= GrammarLimits::kRepeat) return static_cast<int64_t>(count);
  // No text is so long: as a largest count it says nothing.
  if (otherwise != kUnbounded)
    Refuse(at, fmt::format("{} is over {}", key, GrammarLimits::kRepeat));
  return kUnbounded;
}

void SchemaCompiler::ReadTypes(const Json& schema, Where at, Constraints* c) const {
  if (const Json* named = Find(schema, "type")) {
    c->types = 0;
    bool number = false;
    for (const Json& type : named->is_array() ? *named : Json::array({*named})) {
      const auto known =
          type.is_string() ? kTypeNames.find(type.get<std::string>()) : kTypeNames.end();
      if (known == kTypeNames.end()) Refuse(at, fmt::format("type {} is unknown", JsonDump(type)));
      c->types |= known->second;
      number = number || type == "number";
    }
    if (c->types == 0) Refuse(at, "type names none");
    c->numbers.integer = (c->types & kNumber) != 0 && !number;
  }
  if (const Json* values = Find(schema, "enum")) {
    if (!values->is_array()) Refuse(at, "enum must be an array");
    c->values = values->get<std::vector<Json>>();
  }
  if (const Json* value = Find(schema, "const")) {
    Constraints one;
    one.values = std::vector<Json>{*value};
    *c = Merged(std::move(*c), one);
  }
}

void SchemaCompiler::ReadNumbers(const Json& schema, Where at, Constraints* c) const {
  const auto number = [&](const char* key) -> std::optional<Decimal> {
    const Json* value = Find(schema, key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number()) Refuse(at, fmt::format("{} must be a number", key));
    c->implied |= kNumber;
    return ToDecimal(*value);
  };
  Constraints limits;
  const auto bound = [&](const char* key, std::optional<DecimalBound> NumberLimits::*end,
                         bool within) {
    if (const auto value = number(key)) {
      limits.numbers = {};
      limits.numbers.*end = DecimalBound{*value, within};
      *c = Merged(std::move(*c), limits);
    }
  };
  bound("minimum", &NumberLimits::min, true);
  bound("exclusiveMinimum", &NumberLimits::min, false);
  bound("maximum", &NumberLimits::max, true);
  bound("exclusiveMaximum", &NumberLimits::max, false);
  if (const auto divisor = number("multipleOf")) {
    if (divisor->negative || divisor->is_zero()) Refuse(at, "multipleOf must be more than 0");
    c->numbers.multiples.push_back(*divisor);
  }
}

void SchemaCompiler::ReadStrings(const Json& schema, Where at, Constraints* c) {
  for (const char* key : {"minLength", "maxLength", "pattern"}) {
    if (schema.contains(key)) c->implied |= kString;
  }
  c->strings.min = Count(schema, "minLength", 0, at);
  c->strings.max = Count(schema, "maxLength", kUnbounded, at);
  if (const Json* pattern = Find(schema, "pattern")) {
    if (!pattern->is_string()) Refuse(at, "pattern must be a string");
    c->strings.patterns.push_back(pattern->get<std::string>());
  }
  const Json* format = Find(schema, "format");
  if (format != nullptr && format->is_string() && FormatPattern(format->get<std::string>())) {
    c->implied |= kString;
    c->strings.formats.push_back(format->get<std::string>());
  }
}

void SchemaCompiler::ReadArrays(const Json& schema, Where at, Constraints* c) {
  for (const char* key : {"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains",
                          "unevaluatedItems"}) {
    if (schema.contains(key)) c->implied |= kArray;
  }
  Constraints::Arrays& a = c->arrays;
  const Json *items = Find(schema, "items"), *firsts = Find(schema, "prefixItems");
  if (items != nullptr && items->is_array()) {  // as older drafts write it
    firsts = items;
    items = Find(schema, "additionalItems");
  }
  if (firsts != nullptr) {
    if (!firsts->is_array()) Refuse(at, "prefixItems must be an array of schemas");
    a.firsts = firsts->get<std::vector<Json>>();
  }
  if (items != nullptr) a.items = *items;
  a.negated = negating_ && items != nullptr;
  if (!negating_) a.evaluated = a.firsts.size();
  a.min = Count(schema, "minItems", 0, at);
  a.max = Count(schema, "maxItems", kUnbounded, at);
  const Json* unique = Find(schema, "uniqueItems");
  a.unique = unique != nullptr && *unique == true;
  if (const Json* contained = Find(schema, "contains")) {
    a.contained.push_back({*contained, Count(schema, "minContains", 1, at),
                           Count(schema, "maxContains", kUnbounded, at)});
  }
}

void SchemaCompiler::ReadObjects(const Json& schema, Where at, Constraints* c) {
  for (const char* key : {"properties", "required", "additionalProperties", "patternProperties",
                          "propertyNames", "minProperties", "maxProperties", "dependentRequired",
                          "dependentSchemas", "dependencies", "unevaluatedProperties"}) {
    if (schema.contains(key)) c->implied |= kObject;
  }
  Constraints::Objects& o = c->objects;
  for (const auto& [key, map] :
       {std::pair("properties", &o.properties), std::pair("patternProperties", &o.patterns)}) {
    const Json* schemas = Find(schema, key);
    if (schemas == nullptr) continue;
    if (!schemas->is_object()) Refuse(at, fmt::format("{} must be an object", key));
    *map = *schemas;
  }
  if (const Json* others = Find(schema, "additionalProperties")) o.others = *others;
  if (const Json* names = Find(schema, "propertyNames")) o.names = *names;
  if (const Json* required = Find(schema, "required")) {
    const bool names = required->is_array() && std::ranges::all_of(*required, [](const Json& name) {
                         return name.is_string();
                       });
    if (!names) Refuse(at, "required must be an array of names");
    o.required = required->get<std::vector<std::string>>();
  }
  if (!negating_) {
    for (const auto& item : o.properties.items()) o.evaluated.insert(item.key());
  }
  o.min = Count(schema, "minProperties", 0, at);
  o.max = Count(schema, "maxProperties", kUnbounded, at);
  ReadDependents(schema, at, c);
}

// A name is absent, or what depends on it holds.
void SchemaCompiler::ReadDependents(const Json& schema, Where at, Constraints* c) {
  if (shallow_) return;
  for (const char* key : {"dependentRequired", "dependentSchemas", "dependencies"}) {
    const Json* dependents = Find(schema, key);
    if (dependents == nullptr) continue;
    if (!dependents->is_object()) Refuse(at, fmt::format("{} must be an object", key));
    for (const auto& item : dependents->items()) {
      Json then = item.value();
      if (then.is_array()) then = {{"required", then}};
      const Json present = {{"allOf", Json::array({Present(item.key()), std::move(then)})}};
      c->choices.push_back({Absent(item.key()), present});
    }
  }
}

void SchemaCompiler::ReadCombinations(const Json& schema, Where at, Constraints* c) {
  if (shallow_) return;
  for (const char* key : {"anyOf", "oneOf"}) {
    const Json* members = Find(schema, key);
    if (members == nullptr) continue;
    if (!members->is_array() || members->empty()) {
      Refuse(at, fmt::format("{} must be an array of schemas", key));
    }
    auto list = members->get<std::vector<Json>>();
    if (std::string_view(key) == "oneOf") list = OneOf(list, at);
    c->choices.push_back(std::move(list));
  }
  const Json* condition = Find(schema, "if");
  if (condition == nullptr || (!schema.contains("then") && !schema.contains("else"))) return;
  const auto part = [&](const char* key) {
    const Json* found = Find(schema, key);
    return found == nullptr ? Json(true) : *found;
  };
  c->choices.push_back({Both(*condition, part("then")), Both({{"not", *condition}}, part("else"))});
}

// Exactly one member of "oneOf" holds: each is taken without those others that may hold beside it.
// The types that a member's keywords are about are added to it, since AreApart relies on them.
std::vector<Json> SchemaCompiler::OneOf(const std::vector<Json>& members, Where at) {
  std::vector<Constraints> known;
  for (const Json& member : members) known.push_back(ReadShallow(member, at));
  std::vector<Json> all;
  for (size_t i = 0; i < members.size(); ++i) {
    const bool implies = known[i].types == kAnyType && known[i].implied != 0;
    Json alone = implies ? Both(members[i], OfTypes(known[i].implied)) : members[i];
    for (size_t other = 0; other < members.size(); ++other) {
      if (other == i || AreApart(known[i], known[other], at, 0)) continue;
      Charge(kPairWork + JsonDump(members[other]).size(), at);
      const bool can_be_negated = Held(at, [&] { Negated(members[other], at); });
      if (can_be_negated) alone = Both(alone, {{"not", members[other]}});
    }
    all.push_back(std::move(alone));
  }
  return all;
}

// Reads a schema without what leads to choices, and so only a part of what it says.
Constraints SchemaCompiler::ReadShallow(const Json& schema, Where at) {
  const bool before = std::exchange(shallow_, true);
  Constraints c = Read(schema, at);
  shallow_ = before;
  return c;
}

// Returns true if no value that the grammar writes for x satisfies y, as far as can be seen at
// once.
bool SchemaCompiler::AreApart(const Constraints& x, const Constraints& y, Where at, int depth) {
  Charge(kPairWork, at);
  const unsigned written = x.types == kAnyType && x.implied != 0 ? x.implied : x.types;
  if ((written & y.types) == 0) return true;
  if (x.values && y.values) {
    return std::ranges::none_of(*x.values, [&](const Json& value) {
      return std::ranges::find(*y.values, value) != y.values->end();
    });
  }
  if ((written & y.types) != kObject || depth > kMaxApart) return false;
  const Json &ours = x.objects.properties, &theirs = y.objects.properties;
  return std::ranges::any_of(x.objects.required, [&](const std::string& name) {
    if (!theirs.contains(name)) {
      return y.objects.others == Json(false) && y.objects.patterns.empty();
    }
    return ours.contains(name) && AreApart(ReadShallow(ours.at(name), at),
                                           ReadShallow(theirs.at(name), at), at, depth + 1);
  });
}

// Adds to *c what references and allOf say. Such a part with unevaluated properties or items of its
// own is refused or noted.
void SchemaCompiler::JoinParts(const Json& schema, Where at, Constraints* c) {
  std::vector<std::pair<Json, std::string>> parts;
  for (const char* key : {"$ref", "$dynamicRef"}) {
    const Json* reference = Find(schema, key);
    if (reference == nullptr) continue;
    const Json& target = Resolve(*reference, at);
    parts.emplace_back(target, reference->get<std::string>());
  }
  if (const Json* members = Find(schema, "allOf")) {
    if (!members->is_array()) Refuse(at, "allOf must be an array of schemas");
    for (size_t i = 0; i < members->size(); ++i) {
      parts.emplace_back((*members)[i], Below(at, fmt::format("allOf.{}", i)));
    }
  }
  for (const auto& [part, place] : parts) {
    Charge(JsonDump(part).size(), at);
    const Constraints more = Read(part, place);
    if (more.objects.unevaluated || more.arrays.unevaluated) {
      LeaveOut(place, kUnevaluated);
    }
    *c = Merged(std::move(*c), more);
  }
}

// Once no choice is open, the unevaluated properties and items are those that nothing else is said
// of.
void SchemaCompiler::CloseUnevaluated(Where at, Constraints* c) {
  if (!c->choices.empty()) return;
  Constraints::Objects& objects = c->objects;
  Constraints::Arrays& arrays = c->arrays;
  if (objects.unevaluated && !objects.others) {
    objects.others = objects.unevaluated;
    for (const auto& item : objects.properties.items()) {
      if (objects.evaluated.contains(item.key())) continue;
      item.value() = Both(item.value(), *objects.unevaluated);
    }
  }
  objects.unevaluated.reset();
  if (!arrays.unevaluated) return;
  if (!arrays.contained.empty() || arrays.negated) {
    LeaveOut(at, "\"unevaluatedItems\" beside \"contains\" or \"not\" is not supported");
  } else if (!arrays.items) {
    arrays.items = arrays.unevaluated;
    for (size_t i = arrays.evaluated; i < arrays.firsts.size(); ++i) {
      arrays.firsts[i] = Both(arrays.firsts[i], *arrays.unevaluated);
    }
  }
  arrays.unevaluated.reset();
}

Constraints SchemaCompiler::Read(const Json& schema, Where at) {
  Constraints c;
  if (schema.is_boolean()) {
    if (!schema.get<bool>()) c.values.emplace();
    return c;
  }
  if (!schema.is_object()) Refuse(at, "a schema must be an object, true or false");
  if (merging_ >= kMaxMerging) Refuse(at, "allOf and $ref lead into each other without an end");
  ++merging_;
  ReadTypes(schema, at, &c);
  ReadNumbers(schema, at, &c);
  ReadStrings(schema, at, &c);
  ReadArrays(schema, at, &c);
  ReadObjects(schema, at, &c);
  JoinParts(schema, at, &c);
  if (!shallow_) ReadNot(schema, at, &c);
  ReadCombinations(schema, at, &c);
  if (const Json* others = Find(schema, "unevaluatedProperties")) c.objects.unevaluated = *others;
  if (const Json* items = Find(schema, "unevaluatedItems")) c.arrays.unevaluated = *items;
  if (!shallow_) CloseUnevaluated(at, &c);
  --merging_;
  return c;
}

}  // namespace nibble::grammar
