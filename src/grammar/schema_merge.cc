// SPDX-License-Identifier: Apache-2.0
// One schema for values for which two hold: for allOf, and for what stands beside $ref and anyOf.
#include <algorithm>

#include "grammar/json_schema.h"
#include "grammar/json_text.h"

namespace nibble::grammar {
namespace {

constexpr int kMaxMerging = 64;

// Which of two values of a keyword holds for both.
const std::set<std::string> kTakeLargest = {"minimum", "exclusiveMinimum", "minLength", "minItems"};
const std::set<std::string> kTakeSmallest = {"maximum", "exclusiveMaximum", "maxLength",
                                             "maxItems"};

Json Both(const Json& a, const Json& b) {
  if (a == b || b == true) return a;
  if (a == true) return b;
  if (a == false || b == false) return false;
  return Json{{"allOf", Json::array({a, b})}};
}

Json AsList(const Json& value) {
  return value.is_array() ? value : Json::array({value});
}

bool Contains(const Json& list, const Json& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

Json CommonTypes(const Json& a, const Json& b) {
  Json common = Json::array();
  const Json first = AsList(a), second = AsList(b);
  for (const Json& type : first) {
    if (Contains(second, type)) common.push_back(type);
    const bool numbers = type == "number" && !Contains(second, "number");
    if (numbers && Contains(second, "integer") && !Contains(first, "integer")) {
      common.push_back("integer");
    }
    if (type == "integer" && Contains(second, "number") && !Contains(second, "integer")) {
      common.push_back(type);
    }
  }
  return common;
}

Json ValueOf(const Json& object, const char* key, Json otherwise) {
  const auto it = object.find(key);
  return it == object.end() ? std::move(otherwise) : *it;
}

bool IsAboutNames(const std::string& key) {
  return key == "properties" || key == "additionalProperties";
}

// A name that one of them does not declare is of its additionalProperties.
void MergeNames(const Json& a, const Json& b, Json* into) {
  const Json names_a = ValueOf(a, "properties", Json::object());
  const Json names_b = ValueOf(b, "properties", Json::object());
  const Json others_a = ValueOf(a, "additionalProperties", true);
  const Json others_b = ValueOf(b, "additionalProperties", true);
  Json names = Json::object();
  for (const auto& item : names_a.items()) {
    const auto other = names_b.find(item.key());
    names[item.key()] = Both(item.value(), other == names_b.end() ? others_b : *other);
  }
  for (const auto& item : names_b.items()) {
    if (!names_a.contains(item.key())) names[item.key()] = Both(others_a, item.value());
  }
  if (a.contains("properties") || b.contains("properties")) (*into)["properties"] = names;
  if (a.contains("additionalProperties") || b.contains("additionalProperties")) {
    (*into)["additionalProperties"] = Both(others_a, others_b);
  }
}

}  // namespace

// Without annotations, $ref and allOf; what the keywords hold stays as it is.
Json SchemaCompiler::Flattened(const Json& schema, Where at) {
  if (schema.is_boolean()) {
    return schema.get<bool>() ? Json::object() : Json{{"enum", Json::array()}};
  }
  if (!schema.is_object()) Refuse(at, "a schema must be an object, true or false");
  CheckKeywords(schema, at);
  Json flat = Json::object();
  for (const auto& item : schema.items()) {
    const std::string& key = item.key();
    if (key != "$ref" && key != "allOf" && !IsAnnotation(key)) flat[key] = item.value();
  }
  if (!schema.contains("$ref") && !schema.contains("allOf")) return flat;
  if (++merging_ > kMaxMerging) Refuse(at, "allOf and $ref lead into each other without an end");
  if (schema.contains("$ref")) {
    const Json& ref = schema.at("$ref");
    if (!ref.is_string()) Refuse(at, "$ref must be a string");
    flat = Merged(flat, Resolve(ref.get<std::string>(), at), at);
  }
  for (const Json& member : AsList(ValueOf(schema, "allOf", Json::array()))) {
    flat = Merged(flat, member, at);
  }
  --merging_;
  return flat;
}

Json SchemaCompiler::Merged(const Json& first, const Json& second, Where at) {
  Charge(JsonDump(first).size() + JsonDump(second).size(), at);
  const Json a = Flattened(first, at), b = Flattened(second, at);
  Json all = a;
  for (const auto& [key, value] : b.items()) {
    const auto known = all.find(key);
    if (IsAboutNames(key)) continue;
    if (known == all.end()) {
      all[key] = value;
    } else if (*known == value) {
      continue;
    } else if (key == "required" || key == "enum") {
      Json both = key == "enum" ? Json::array() : *known;
      for (const Json& one : value) {
        if (Contains(*known, one) == (key == "enum")) both.push_back(one);
      }
      *known = both;
    } else if (key == "type") {
      *known = CommonTypes(*known, value);
      if (known->empty()) return Json{{"enum", Json::array()}};
    } else if (kTakeLargest.contains(key) || kTakeSmallest.contains(key)) {
      if (!known->is_number() || !value.is_number()) Refuse(at, key + " must be a number");
      *known = kTakeLargest.contains(key) == (*known < value) ? value : *known;
    } else if (key == "items") {
      *known = Both(*known, value);
    } else if (key == "const") {
      return Json{{"enum", Json::array()}};
    } else {
      Refuse(at, fmt::format("two values of \"{}\" cannot be joined", key));
    }
  }
  const bool prefixed = a.contains("prefixItems") != b.contains("prefixItems");
  if (prefixed && a.contains("items") + b.contains("items") > 0) {
    Refuse(at, "\"prefixItems\" and \"items\" of two schemas cannot be joined");
  }
  for (const Json* part : {&a, &b}) {
    if (part->contains("properties") && !part->at("properties").is_object()) {
      Refuse(at, "properties must be an object");
    }
  }
  MergeNames(a, b, &all);
  return all;
}

}  // namespace nibble::grammar
