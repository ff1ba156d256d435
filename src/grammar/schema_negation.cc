// SPDX-License-Identifier: Apache-2.0
// "not": a schema does not hold where one of its keywords does not. What is written of each keyword
// is a schema for values for which it fails; a keyword whose failing is not expressed gives none,
// which makes the choice smaller and never wrong.
#include <algorithm>
#include <set>
#include <utility>

#include "grammar/json_schema.h"
#include "grammar/json_text.h"

namespace nibble::grammar {
namespace {

// Negations that Constraints have a place for.
constexpr const char* kKept[] = {"enum", "const", "pattern", "multipleOf"};

Json Not(const Json& schema) {
  return {{"not", schema}};
}

// The other end of a limit on `type`: failing a minimum is being below it.
struct Limit {
  const char *keyword, *type, *opposite;
  int change;  // of the count
};
constexpr Limit kLimits[] = {{"minimum", "number", "exclusiveMaximum", 0},
                             {"exclusiveMinimum", "number", "maximum", 0},
                             {"maximum", "number", "exclusiveMinimum", 0},
                             {"exclusiveMaximum", "number", "minimum", 0},
                             {"minLength", "string", "maxLength", -1},
                             {"maxLength", "string", "minLength", 1},
                             {"minItems", "array", "maxItems", -1},
                             {"maxItems", "array", "minItems", 1},
                             {"minProperties", "object", "maxProperties", -1},
                             {"maxProperties", "object", "minProperties", 1}};

std::optional<Json> NegatedLimit(const std::string& key, const Json& value) {
  for (const auto& [keyword, type, opposite, change] : kLimits) {
    if (key != keyword || !value.is_number()) continue;
    if (change == 0) return Json{{"type", type}, {opposite, value}};
    const double count = value.get<double>() + change;
    return count < 0 ? Json(false) : Json{{"type", type}, {opposite, count}};
  }
  return std::nullopt;
}

Json NegatedTypes(const Json& named) {
  std::set<std::string> types;
  for (const Json& type : named.is_array() ? named : Json::array({named})) {
    if (type.is_string()) types.insert(type.get<std::string>());
  }
  // Numbers that are no integers are not expressed.
  if (types.contains("integer")) types.insert("number");
  Json others = Json::array();
  for (const char* type : {"null", "boolean", "number", "string", "array", "object"}) {
    if (!types.contains(type)) others.push_back(type);
  }
  return others.empty() ? Json(false) : Json{{"type", others}};
}

// Keywords about the parts of arrays and objects.
std::vector<Json> NegatedParts(const Json& schema, const std::string& key, const Json& value) {
  std::vector<Json> all;
  if (key == "properties" && value.is_object()) {
    for (const auto& item : value.items()) {
      all.push_back({{"type", "object"},
                     {"required", Json::array({item.key()})},
                     {"properties", {{item.key(), Not(item.value())}}}});
    }
  } else if (key == "required" && value.is_array()) {
    for (const Json& name : value) {
      if (!name.is_string()) continue;
      all.push_back({{"type", "object"}, {"properties", {{name.get<std::string>(), false}}}});
    }
  } else if (key == "items" && !value.is_array() && !schema.contains("prefixItems")) {
    all.push_back({{"type", "array"}, {"contains", Not(value)}});
  } else if (key == "prefixItems" && value.is_array()) {
    for (size_t i = 0; i < value.size(); ++i) {
      Json firsts(i, Json(true));
      if (!firsts.is_array()) firsts = Json::array();
      firsts.push_back(Not(value[i]));
      all.push_back({{"type", "array"}, {"minItems", i + 1}, {"prefixItems", firsts}});
    }
  } else if (key == "contains" && !schema.contains("minContains") &&
             !schema.contains("maxContains")) {
    all.push_back({{"type", "array"}, {"items", Not(value)}});
  }
  return all;
}

}  // namespace

std::vector<Json> SchemaCompiler::Negated(const Json& schema, Where at) {
  if (schema.is_boolean()) return {Json(!schema.get<bool>())};
  if (!schema.is_object()) Refuse(at, "a schema must be an object, true or false");
  Charge(JsonDump(schema).size(), at);
  std::vector<Json> all;
  bool expressed = true;
  const auto add = [&](const std::vector<Json>& more) {
    all.insert(all.end(), more.begin(), more.end());
  };
  const auto none_of = [](const Json& members) {
    Json none = Json::array();
    for (const Json& member : members) none.push_back(Not(member));
    return Json{{"allOf", none}};
  };
  for (const auto& item : schema.items()) {
    const std::string& key = item.key();
    const Json& value = item.value();
    const bool is_list = value.is_array();
    if (const auto limit = NegatedLimit(key, value)) {
      add({*limit});
    } else if (std::ranges::find(kKept, key) != std::end(kKept)) {
      add({Not({{key, value}})});
    } else if (key == "type") {
      add({NegatedTypes(value)});
    } else if (key == "not") {
      add({value});
    } else if (key == "$ref") {
      add({Not(Resolve(value, at))});
    } else if (key == "allOf" && is_list) {
      for (const Json& member : value) add({Not(member)});
    } else if (key == "anyOf" && is_list) {
      add({none_of(value)});
    } else if (key == "oneOf" && is_list) {
      add({none_of(value)});
      for (size_t i = 1; i < value.size(); ++i) add({Both(value[0], value[i])});
    } else if (key == "if") {
      add({Both(value, Not(schema.value("then", Json(true)))),
           Both(Not(value), Not(schema.value("else", Json(true))))});
    } else if (IsKeyword(key) && key != "then" && key != "else" && key != "format") {
      const std::vector<Json> parts = NegatedParts(schema, key, value);
      expressed = expressed && !parts.empty();
      add(parts);
    }
  }
  if (all.empty() && !expressed) {
    std::vector<std::string> keywords;
    for (const auto& item : schema.items()) {
      if (IsKeyword(item.key())) keywords.push_back(item.key());
    }
    FailUsage("\"not\" of {} is not supported", fmt::join(keywords, ", "));
  }
  return all;
}

void SchemaCompiler::ReadNot(const Json& schema, Where at, Constraints* c) {
  const auto found = schema.find("not");
  if (found == schema.end()) return;
  const Json& inner = *found;
  if (inner.is_object() && inner.size() == 1) {
    const std::string& key = inner.begin().key();
    const Json& value = inner.begin().value();
    if (key == "const" || (key == "enum" && value.is_array())) {
      for (const Json& one : key == "const" ? Json::array({value}) : value) {
        c->excluded.push_back(one);
      }
      return;
    }
    if (key == "pattern" && value.is_string()) {
      c->types &= kString;
      c->strings.non_patterns.push_back(value.get<std::string>());
      return;
    }
    if (key == "multipleOf" && value.is_number() && value > 0) {
      c->types &= kNumber;
      c->numbers.non_multiples.push_back(ToDecimal(value));
      return;
    }
  }
  std::vector<Json> choices;
  if (!Held(at, [&] { choices = Negated(inner, at); })) return;
  if (choices.size() == 1) {
    const bool before = std::exchange(negating_, true);
    *c = Merged(std::move(*c), Read(choices[0], at));
    negating_ = before;
    return;
  }
  for (Json& choice : choices) choice = Not(Not(choice));  // to be read as this one is
  c->choices.push_back(std::move(choices));
}

}  // namespace nibble::grammar
