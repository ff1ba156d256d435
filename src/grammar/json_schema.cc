// SPDX-License-Identifier: Apache-2.0
#include "grammar/json_schema.h"

#include <algorithm>
#include <set>

#include "grammar/automaton.h"
#include "grammar/json_text.h"
#include "grammar/schema_references.h"

namespace nibble {
namespace grammar {
namespace {

// Bytes that are made while a schema is compiled, about: of copies for allOf and anyOf, and of
// expressions. A second's work.
constexpr size_t kMaxWork = 64 << 20, kValueWork = 2048, kConstantWork = 64;
constexpr size_t kStateWork = 256, kSetWork = 12 << 20;
// A text of JSON has 64 levels.
constexpr int kMaxDepth = 128;
constexpr size_t kMaxNotes = 16;
constexpr int kMaxInner = 4;  // compilers that look which listed values satisfy the rest

const std::set<std::string> kKeywords = {"type",
                                         "enum",
                                         "const",
                                         "minimum",
                                         "maximum",
                                         "exclusiveMinimum",
                                         "exclusiveMaximum",
                                         "multipleOf",
                                         "minLength",
                                         "maxLength",
                                         "pattern",
                                         "format",
                                         "items",
                                         "additionalItems",
                                         "prefixItems",
                                         "minItems",
                                         "maxItems",
                                         "uniqueItems",
                                         "contains",
                                         "minContains",
                                         "maxContains",
                                         "properties",
                                         "patternProperties",
                                         "additionalProperties",
                                         "propertyNames",
                                         "required",
                                         "minProperties",
                                         "maxProperties",
                                         "dependentRequired",
                                         "dependentSchemas",
                                         "dependencies",
                                         "unevaluatedItems",
                                         "unevaluatedProperties",
                                         "anyOf",
                                         "oneOf",
                                         "allOf",
                                         "not",
                                         "if",
                                         "then",
                                         "else",
                                         "$ref",
                                         "$dynamicRef"};

// The schema without annotations.
Json Stripped(const Json& schema) {
  Json stripped = Json::object();
  for (const auto& item : schema.items()) {
    if (kKeywords.contains(item.key())) stripped[item.key()] = item.value();
  }
  return stripped;
}

}  // namespace

bool IsKeyword(const std::string& key) {
  return kKeywords.contains(key);
}

std::string Below(const std::string& at, const std::string& step) {
  return at.empty() ? step : at + "." + step;
}

void SchemaCompiler::Refuse(Where at, const std::string& what) const {
  FailUsage("{}: {}{}{}", builder_->where(), at, at.empty() ? "" : ": ", what);
}

void SchemaCompiler::LeaveOut(Where at, const std::string& what) {
  if (notes_ == nullptr) Refuse(at, what);
  const std::string note = fmt::format("{}{}{}", at, at.empty() ? "" : ": ", what);
  const bool is_new = std::ranges::find(*notes_, note) == notes_->end();
  if (is_new && notes_->size() < kMaxNotes) notes_->push_back(note);
}

bool SchemaCompiler::Held(Where at, const std::function<void()>& use) {
  try {
    use();
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUsage) throw;
    LeaveOut(at, error.what());
    return false;
  }
}

void SchemaCompiler::Charge(size_t work, Where at) {
  work_ += work;
  if (work_ > kMaxWork) Refuse(at, "the schema is too large with all that it combines");
}

TextSet SchemaCompiler::Paid(Where at, const std::function<TextSet()>& make) {
  Charge(kSetWork, at);
  TextSet set = make();
  work_ -= kSetWork;
  Charge(std::min(set.size() * kStateWork, kSetWork), at);
  return set;
}

SchemaCompiler::SchemaCompiler(GrammarBuilder* builder, const Json& root, SchemaNotes* notes)
    : builder_(builder),
      root_(WithPointers(root)),
      notes_(notes),
      number_(builder->rules().size()) {}

Expr SchemaCompiler::Shared(Expr expression) {
  return Reference(builder_->AddRule(fmt::format("schema {} part {}", number_, parts_++),
                                     std::move(expression)));
}

Expr SchemaCompiler::Known(const std::string& name, const std::function<Expr()>& make) {
  if (const auto known = builder_->FindRule(name)) return Reference(*known);
  Expr expression = make();
  return Reference(builder_->AddRule(name, std::move(expression)));
}

// Rules are compiled one after the other, since chains of references may be long.
Expr SchemaCompiler::Run() {
  const size_t bytes = JsonDump(root_).size();
  if (bytes > GrammarLimits::kSourceBytes) {
    Refuse("",
           fmt::format("{} bytes, at most {} are accepted", bytes, GrammarLimits::kSourceBytes));
  }
  const Expr value = Value(root_, "");
  CompilePending();
  return value;
}

void SchemaCompiler::CompilePending() {
  while (!pending_.empty()) {
    const PendingRule next = std::move(pending_.front());
    pending_.pop_front();
    builder_->SetRule(next.rule, Value(next.schema, next.at));
  }
}

// The rule of a schema that is compiled after what refers to it.
Expr SchemaCompiler::LaterRule(const std::string& key, const Json& schema, Where at) {
  const std::string name = fmt::format("schema {} {}", number_, key);
  if (const auto known = builder_->FindRule(name)) return Reference(*known);
  const int32_t rule = builder_->AddRule(name);
  pending_.push_back({rule, schema, at});
  return Reference(rule);
}

Expr SchemaCompiler::Value(const Json& schema, Where at) {
  Charge(kValueWork, at);
  // Recursion goes through references, and through allOf of what they lead to.
  const bool refers = schema.is_object() && schema.contains("$ref");
  if (refers || (schema.is_object() && schema.contains("allOf") && depth_ > 0)) {
    Json stripped = Stripped(schema);
    if (refers && stripped.size() == 1) {
      const Json& target = Resolve(stripped["$ref"], at);
      const auto name = stripped["$ref"].get<std::string>();
      return LaterRule(name, target, name);
    }
    if (depth_ > 0) return LaterRule(JsonDump(stripped), stripped, at);
  }
  if (depth_ == kMaxDepth) Refuse("", "nested too deeply");
  ++depth_;
  Expr value = ValueOf(Read(schema, at), at);
  --depth_;
  return value;
}

Expr SchemaCompiler::ValueOf(const Constraints& c, Where at) {
  if (!c.choices.empty()) return OfChoice(c, at);
  if (c.values) return OfValues(c, at);
  unsigned types = c.types;
  if (types == kAnyType && c.implied != 0) types = c.implied;
  if (types == kAnyType && c == Constraints()) return JsonValue(builder_);
  // Arrays and objects are not compared: if one is excluded, its type is.
  for (const Json& value : c.excluded) {
    if (value.is_structured()) types &= ~TypeOf(value);
  }
  const auto excludes = [&](const Json& value) {
    return std::ranges::find(c.excluded, value) != c.excluded.end();
  };
  std::vector<Expr> values;
  if ((types & kNull) != 0 && !excludes(nullptr)) values.push_back(Literal("null"));
  for (const bool value : {true, false}) {
    if ((types & kBoolean) != 0 && !excludes(value)) {
      values.push_back(Literal(value ? "true" : "false"));
    }
  }
  if ((types & kNumber) != 0) values.push_back(Number(c, at));
  if ((types & kString) != 0) values.push_back(String(c, at));
  if ((types & kArray) != 0) values.push_back(Array(c, at));
  if ((types & kObject) != 0) values.push_back(Object(c, at));
  return Choice(std::move(values));
}

// The first list of choices: each of its schemas with all the rest.
Expr SchemaCompiler::OfChoice(const Constraints& c, Where at) {
  Constraints rest = c;
  rest.choices.erase(rest.choices.begin());
  std::vector<Expr> values;
  if (depth_ == kMaxDepth) Refuse("", "nested too deeply");
  ++depth_;
  for (const Json& choice : c.choices.front()) {
    if (rest == Constraints()) {
      values.push_back(Value(choice, at));
      continue;
    }
    Charge(kValueWork + JsonDump(choice).size(), at);
    const Constraints chosen = Read(choice, at);
    if (chosen.objects.unevaluated || chosen.arrays.unevaluated) LeaveOut(at, kUnevaluated);
    Constraints all = Merged(rest, chosen);
    CloseUnevaluated(at, &all);
    values.push_back(ValueOf(all, at));
  }
  --depth_;
  return Choice(std::move(values));
}

// Returns the `values` of c for which the rest of c holds, as they are texts of its grammar.
std::vector<Json> SchemaCompiler::Admitted(const Constraints& c, Where at) {
  Constraints rest = c;
  rest.values.reset();
  std::vector<Json> admitted;
  const auto by_type = [&](const Json& value) {
    const bool whole =
        !value.is_number() || !c.numbers.integer || ToDecimal(value).fraction.empty();
    return (c.types & TypeOf(value)) != 0 && whole;
  };
  std::ranges::copy_if(*c.values, std::back_inserter(admitted), by_type);
  rest.types = kAnyType;
  rest.numbers.integer = false;
  rest.implied = 0;
  if (rest == Constraints() || admitted.empty()) return admitted;
  // Values of other types than the rest is about satisfy it.
  rest.types = 0;
  for (const Json& value : admitted) rest.types |= TypeOf(value);
  if (inner_ == kMaxInner) {
    LeaveOut(at.substr(0, at.find('.')),
             "enum or const of a schema within itself is not supported");
    return admitted;
  }
  GrammarBuilder builder(builder_->where());
  SchemaCompiler alone(&builder, root_, notes_);
  alone.work_ = work_;
  alone.inner_ = inner_ + 1;
  const Expr value = alone.ValueOf(rest, at);
  alone.CompilePending();
  work_ = alone.work_;
  std::shared_ptr<const Grammar> grammar;
  try {
    grammar = builder.Compile(value);
  } catch (const Error&) {
    return {};  // no text satisfies the rest
  }
  Automaton automaton(grammar);
  std::erase_if(admitted, [&](const Json& one) { return !automaton.Accepts(JsonDump(one)); });
  return admitted;
}

Expr SchemaCompiler::OfValues(const Constraints& c, Where at) {
  std::vector<Expr> all;
  for (const Json& value : Admitted(c, at)) {
    Charge(JsonDump(value).size() * kConstantWork, at);
    all.push_back(JsonConstant(builder_, value));
  }
  return Choice(std::move(all));
}

Expr JsonSchema(GrammarBuilder* builder, const Json& schema, SchemaNotes* notes) {
  return SchemaCompiler(builder, schema, notes).Run();
}

}  // namespace grammar

std::shared_ptr<const Grammar> JsonSchemaGrammar(const Json& schema, const std::string& where,
                                                 SchemaNotes* notes) {
  GrammarBuilder builder(where);
  const grammar::Expr value = grammar::JsonSchema(&builder, schema, notes);
  return builder.Compile(grammar::SpacedJson(&builder, value));
}

}  // namespace nibble
