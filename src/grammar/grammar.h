// SPDX-License-Identifier: Apache-2.0
// A Grammar says what a text may be. It is compiled from a JSON schema, a pattern, a grammar in a
// notation like GBNF, or expressions (expression.h), and immutable, so that requests may share one.
// Errors of what a request asks for are kUsage and begin with `where`.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "grammar/expression.h"
#include "grammar/limits.h"
#include "grammar/program.h"

namespace nibble {

class Grammar {
 public:
  explicit Grammar(grammar::Program program) : program_(std::move(program)) {}
  const grammar::Program& program() const { return program_; }

 private:
  const grammar::Program program_;
};

// Rules by number. A name is for messages and to find a rule again; names with a space are this
// folder's own.
class GrammarBuilder {
 public:
  struct Rule {
    std::string name;
    grammar::Expr body;
  };
  explicit GrammarBuilder(std::string where) : where_(std::move(where)) {}

  int32_t AddRule(std::string name, grammar::Expr body = nullptr);
  void SetRule(int32_t rule, grammar::Expr body);
  std::optional<int32_t> FindRule(std::string_view name) const;
  const std::string& where() const { return where_; }
  const std::vector<Rule>& rules() const { return rules_; }

  std::shared_ptr<const Grammar> Compile(const grammar::Expr& root) const;

 private:
  std::string where_;
  std::vector<Rule> rules_;
  std::map<std::string, int32_t, std::less<>> ids_;
};

// Each note names a place of a schema and what of it the grammar does not hold to.
using SchemaNotes = std::vector<std::string>;

namespace grammar {

// Any JSON value or object, as the texts below write them.
Expr JsonValue(GrammarBuilder* builder);
Expr JsonObject(GrammarBuilder* builder);
// Values for which `schema` holds (json_schema.h says which schemas). Error messages begin with the
// builder's `where`. With `notes`, what of a schema cannot be held is left out and noted there.
Expr JsonSchema(GrammarBuilder* builder, const Json& schema, SchemaNotes* notes = nullptr);
// Puts white space, or none, in front of a value of JsonSchema or JsonObject.
Expr SpacedJson(GrammarBuilder* builder, Expr value);
// Texts that a grammar of TextGrammar's notation has; it adds its rules to the builder's.
Expr TextRules(GrammarBuilder* builder, std::string_view source);
// Texts that a regular expression matches from end to end (regex_pattern.h says which).
Expr Regex(GrammarBuilder* builder, std::string_view pattern, const std::string& where);

}  // namespace grammar

std::shared_ptr<const Grammar> JsonObjectGrammar();
std::shared_ptr<const Grammar> JsonSchemaGrammar(const Json& schema, const std::string& where,
                                                 SchemaNotes* notes = nullptr);
std::shared_ptr<const Grammar> RegexGrammar(std::string_view pattern, const std::string& where);
// rule ::= "literal" [class] . ( ) | ? * + {m,n} # comment; `root` is the start (text_grammar.cc).
std::shared_ptr<const Grammar> TextGrammar(std::string_view source, const std::string& where);

}  // namespace nibble
