// SPDX-License-Identifier: Apache-2.0
#include "grammar/json_schema.h"

#include <algorithm>
#include <charconv>

#include "grammar/json_text.h"

namespace nibble {
namespace grammar {
namespace {

// Bytes that are made while a schema is compiled, about: of copies for allOf and anyOf, and of
// expressions. A second's work.
constexpr size_t kMaxWork = 64 << 20, kValueWork = 2048, kConstantWork = 64;
// A text of JSON has 64 levels; allOf of schemas that recur never ends.
constexpr int kMaxDepth = 128;

const std::set<std::string> kAnnotations = {
    "$schema", "$id",      "$comment", "$defs",      "definitions", "title",     "description",
    "default", "examples", "example",  "deprecated", "readOnly",    "writeOnly", "discriminator"};
const std::set<std::string> kCombining = {"type",  "enum",  "const", "anyOf",
                                          "oneOf", "allOf", "$ref"};
// About values of one type; they say nothing about others.
const std::pair<const char*, std::set<std::string>> kOfTypes[] = {
    {"object", {"properties", "required", "additionalProperties"}},
    {"array", {"items", "prefixItems", "minItems", "maxItems"}},
    {"string", {"minLength", "maxLength", "pattern", "format"}},
    {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}}};
const std::set<std::string> kTypeNames = {"null",   "boolean", "object", "array",
                                          "number", "integer", "string"};

bool HasType(const Json& value, const std::set<std::string>& types) {
  if (value.is_number()) {
    const double number = value.get<double>();
    const bool whole =
        value.is_number_integer() || number == static_cast<double>(std::floor(number));
    return types.contains("number") || (whole && types.contains("integer"));
  }
  return types.contains(value.type_name());  // nlohmann's names are those of JSON Schema
}

// "%41" and, of JSON pointers, "~1", "~0".
std::string Unescaped(std::string_view step) {
  std::string text;
  for (size_t i = 0; i < step.size(); ++i) {
    uint8_t byte = 0;
    const char* hex = step.data() + i + 1;
    if (step[i] == '%' && i + 2 < step.size() &&
        std::from_chars(hex, hex + 2, byte, 16).ptr == hex + 2) {
      text += static_cast<char>(byte);
      i += 2;
    } else if (step[i] == '~' && i + 1 < step.size()) {
      text += step[++i] == '1' ? '/' : '~';
    } else {
      text += step[i];
    }
  }
  return text;
}

}  // namespace

bool IsAnnotation(const std::string& keyword) {
  return kAnnotations.contains(keyword);
}

void SchemaCompiler::Refuse(Where at, const std::string& what) const {
  FailUsage("{}: {}{}{}", builder_->where(), at, at.empty() ? "" : ": ", what);
}

void SchemaCompiler::Charge(size_t work, Where at) {
  work_ += work;
  if (work_ > kMaxWork) Refuse(at, "the schema is too large with all that it combines");
}

SchemaCompiler::SchemaCompiler(GrammarBuilder* builder, const Json& root)
    : builder_(builder), root_(root), number_(builder->rules().size()) {}

Expr SchemaCompiler::Shared(Expr expression) {
  return Reference(builder_->AddRule(fmt::format("schema {} part {}", number_, parts_++),
                                     std::move(expression)));
}

// Rules are compiled one after the other, since chains of references may be long.
Expr SchemaCompiler::Run() {
  const size_t bytes = JsonDump(root_).size();
  if (bytes > GrammarLimits::kSourceBytes) {
    Refuse("",
           fmt::format("{} bytes, at most {} are accepted", bytes, GrammarLimits::kSourceBytes));
  }
  const Expr value = Value(root_, "");
  while (!pending_.empty()) {
    const PendingRule next = pending_.front();
    pending_.pop_front();
    builder_->SetRule(next.rule, Value(*next.schema, next.at));
  }
  return value;
}

void SchemaCompiler::CheckKeywords(const Json& schema, Where at) const {
  for (const auto& item : schema.items()) {
    const std::string& key = item.key();
    bool known = IsAnnotation(key) || kCombining.contains(key);
    for (const auto& [type, keywords] : kOfTypes) known = known || keywords.contains(key);
    // What says nothing about any value.
    known = known || (key == "uniqueItems" && item.value() == false) ||
            (key == "multipleOf" && item.value() == 1 && schema.value("type", Json()) == "integer");
    if (!known) Refuse(at, fmt::format("keyword \"{}\" is not supported", key));
  }
}

Expr SchemaCompiler::Value(const Json& schema, Where at) {
  Charge(kValueWork, at);
  if (depth_ == kMaxDepth) Refuse(at.substr(0, 100), "nested too deeply, or allOf of recursion");
  ++depth_;
  Expr value = ValueInside(schema, at);
  --depth_;
  return value;
}

Expr SchemaCompiler::ValueInside(const Json& schema, Where at) {
  if (schema.is_boolean()) return schema.get<bool>() ? JsonValue(builder_) : Choice({});
  if (!schema.is_object()) Refuse(at, "a schema must be an object, true or false");
  CheckKeywords(schema, at);
  const bool combines =
      schema.contains("allOf") || schema.contains("anyOf") || schema.contains("oneOf");
  if (schema.contains("$ref")) {
    const auto& ref = schema.at("$ref");
    if (!ref.is_string()) Refuse(at, "$ref must be a string");
    for (const auto& item : schema.items()) {
      if (item.key() != "$ref" && !IsAnnotation(item.key())) return OfAll(schema, at);
    }
    return OfRef(ref.get<std::string>(), at);
  }
  if (schema.contains("allOf")) return OfAll(schema, at);
  if (combines) return OfAny(schema, schema.contains("anyOf") ? "anyOf" : "oneOf", at);
  if (schema.contains("enum") || schema.contains("const")) return OfEnum(schema, at);
  std::vector<Expr> values;
  for (const std::string& type : Types(schema, at)) values.push_back(OfType(type, schema, at));
  return values.empty() ? JsonValue(builder_) : Choice(std::move(values));
}

const Json& SchemaCompiler::Resolve(const std::string& pointer, Where at) const {
  const auto missing = [&]() {
    Refuse(at, fmt::format("$ref \"{}\" leads nowhere in the schema", pointer));
  };
  if (!pointer.starts_with('#')) missing();
  const Json* found = &root_;
  std::string_view rest = std::string_view(pointer).substr(1);
  while (!rest.empty()) {
    if (rest[0] != '/') missing();
    rest.remove_prefix(1);
    const std::string step = Unescaped(rest.substr(0, rest.find('/')));
    rest.remove_prefix(std::min(rest.size(), rest.find('/')));
    size_t index = 0;
    const auto [end, error] = std::from_chars(step.data(), step.data() + step.size(), index);
    const bool is_index = error == std::errc() && end == step.data() + step.size();
    if (found->is_object() && found->contains(step)) {
      found = &found->at(step);
    } else if (found->is_array() && is_index && index < found->size()) {
      found = &(*found)[index];
    } else {
      missing();
    }
  }
  return *found;
}

Expr SchemaCompiler::OfRef(const std::string& pointer, Where at) {
  const std::string name = fmt::format("schema {} {}", number_, pointer);
  if (const auto known = builder_->FindRule(name)) return Reference(*known);
  const Json& schema = Resolve(pointer, at);
  const int32_t rule = builder_->AddRule(name);
  pending_.push_back({rule, &schema, pointer});
  return Reference(rule);
}

Expr SchemaCompiler::OfAny(const Json& schema, const char* keyword, Where at) {
  const Json& members = schema.at(keyword);
  if (!members.is_array() || members.empty()) {
    Refuse(at, fmt::format("{} must be an array of schemas", keyword));
  }
  Json rest = Json::object();
  for (const auto& item : schema.items()) {
    if (item.key() != keyword && !IsAnnotation(item.key())) rest[item.key()] = item.value();
  }
  std::vector<Expr> values;
  for (size_t i = 0; i < members.size(); ++i) {
    const std::string place = fmt::format("{}{}{}.{}", at, at.empty() ? "" : ".", keyword, i);
    values.push_back(Value(rest.empty() ? members[i] : Merged(rest, members[i], place), place));
  }
  return Choice(std::move(values));
}

Expr SchemaCompiler::OfAll(const Json& schema, Where at) {
  const Json members = schema.value("allOf", Json::array());
  if (!members.is_array()) Refuse(at, "allOf must be an array of schemas");
  Json all = Json::object();
  for (const auto& item : schema.items()) {
    if (item.key() != "allOf" && item.key() != "$ref" && !IsAnnotation(item.key())) {
      all[item.key()] = item.value();
    }
  }
  const bool has_ref = schema.contains("$ref");
  if (members.size() == 1 && all.empty() && !has_ref) return Value(members[0], at + ".allOf.0");
  if (has_ref) all = Merged(all, Json{{"$ref", schema.at("$ref")}}, at);
  for (const Json& member : members) all = Merged(all, member, at);
  return Value(all, at);
}

Expr SchemaCompiler::OfEnum(const Json& schema, Where at) {
  Json values = Json::array();
  if (schema.contains("enum")) {
    values = schema.at("enum");
    if (!values.is_array()) Refuse(at, "enum must be an array");
  } else {
    values.push_back(schema.at("const"));
  }
  Charge(JsonDump(values).size() * kConstantWork, at);
  for (const auto& [type, keywords] : kOfTypes) {
    const std::set<std::string> wanted = {type};
    const bool matters =
        std::ranges::any_of(values, [&](const Json& value) { return HasType(value, wanted); });
    for (const std::string& key : keywords) {
      if (matters && schema.contains(key)) {
        Refuse(at, fmt::format("\"{}\" beside enum or const is not supported", key));
      }
    }
  }
  const std::set<std::string> types = schema.contains("type") ? Types(schema, at) : kTypeNames;
  std::vector<Expr> all;
  for (const Json& value : values) {
    const bool chosen = !schema.contains("const") || value == schema.at("const");
    if (chosen && HasType(value, types)) all.push_back(JsonConstant(builder_, value));
  }
  return Choice(std::move(all));
}

std::set<std::string> SchemaCompiler::Types(const Json& schema, Where at) const {
  std::set<std::string> types;
  if (!schema.contains("type")) {
    for (const auto& [type, keywords] : kOfTypes) {
      for (const std::string& key : keywords) {
        if (schema.contains(key)) types.insert(type);
      }
    }
    return types;
  }
  const Json& named = schema.at("type");
  for (const Json& type : named.is_array() ? named : Json::array({named})) {
    if (!type.is_string() || !kTypeNames.contains(type.get<std::string>())) {
      Refuse(at, fmt::format("type {} is unknown", JsonDump(type)));
    }
    types.insert(type.get<std::string>());
  }
  if (types.contains("number")) types.erase("integer");
  if (types.empty()) Refuse(at, "type names none");
  return types;
}

Expr SchemaCompiler::OfType(const std::string& type, const Json& schema, Where at) {
  if (type == "null") return Literal("null");
  if (type == "boolean") return Choice({Literal("true"), Literal("false")});
  if (type == "object") return Object(schema, at);
  if (type == "array") return Array(schema, at);
  if (type == "string") return String(schema, at);
  return Number(schema, type == "integer", at);
}

Expr JsonSchema(GrammarBuilder* builder, const Json& schema) {
  return SchemaCompiler(builder, schema).Run();
}

}  // namespace grammar

std::shared_ptr<const Grammar> JsonSchemaGrammar(const Json& schema, const std::string& where) {
  GrammarBuilder builder(where);
  const grammar::Expr value = grammar::JsonSchema(&builder, schema);
  return builder.Compile(grammar::Sequence({grammar::JsonSpace(&builder), value}));
}

}  // namespace nibble
