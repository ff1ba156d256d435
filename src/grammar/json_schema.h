// SPDX-License-Identifier: Apache-2.0
// JSON Schema (2020-12, and what of draft 7 means the same) as expressions. Every text of the
// grammar is a value for which the schema holds; of the values for which it holds, the grammar has
// those that are written as json_text.h says and
//   - properties in the order of "properties", then others (where additionalProperties allows them;
//     their names differ from those declared, but one may come twice);
//   - without "type", of the types that the schema's other keywords are about, if there are any;
//   - numbers with bounds without exponents, and their bounds are integers;
//   - "pattern" characters in their shortest writing; a date's February has 28 days.
// Understood: type, enum, const, properties, required, additionalProperties, items, prefixItems,
// minItems, maxItems, minLength, maxLength, pattern, format (date, time, date-time, uuid, email,
// ipv4), minimum, maximum, exclusiveMinimum, exclusiveMaximum, anyOf, oneOf (as anyOf), allOf (as
// the one schema that says what all say; refused where keywords cannot be joined), $ref within the
// schema, true and false. Annotations say nothing. Any other keyword is refused with its name and
// place.
#pragma once

#include <deque>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "grammar/grammar.h"

namespace nibble::grammar {

class SchemaCompiler {
 public:
  SchemaCompiler(GrammarBuilder* builder, const Json& root);
  Expr Run();

 private:
  using Where = const std::string&;  // a place in the schema: "properties.a"
  struct PendingRule {
    int32_t rule;
    const Json* schema;
    std::string at;
  };

  [[noreturn]] void Refuse(Where at, const std::string& what) const;
  void Charge(size_t work, Where at);
  Expr Shared(Expr expression);  // as a rule, to be used more than once

  Expr Value(const Json& schema, Where at);
  Expr ValueInside(const Json& schema, Where at);
  Expr OfRef(const std::string& pointer, Where at);
  const Json& Resolve(const std::string& pointer, Where at) const;
  Expr OfAll(const Json& schema, Where at);
  Expr OfAny(const Json& schema, const char* keyword, Where at);
  Expr OfEnum(const Json& schema, Where at);
  std::set<std::string> Types(const Json& schema, Where at) const;
  Expr OfType(const std::string& type, const Json& schema, Where at);
  void CheckKeywords(const Json& schema, Where at) const;

  // schema_merge.cc. A schema for values for which both hold.
  Json Merged(const Json& a, const Json& b, Where at);
  Json Flattened(const Json& schema, Where at);

  // schema_objects.cc
  Expr Object(const Json& schema, Where at);
  struct Member {
    Expr text;  // name, colon and value
    bool required;
  };
  Expr Members(const std::vector<Member>& members, const Expr& further);
  Expr FurtherName(const std::vector<std::string>& declared, Where at);
  Expr Array(const Json& schema, Where at);

  // schema_scalars.cc
  Expr String(const Json& schema, Where at);
  struct Bound {
    int64_t value;
    bool within;
  };
  // The least or the largest number.
  std::optional<Bound> End(const Json& schema, bool least, bool integer, Where at) const;
  Expr Number(const Json& schema, bool integer, Where at);
  static Expr Decimals(Bound from, Bound to);
  int64_t Count(const Json& schema, const char* key, int64_t otherwise, Where at) const;

  GrammarBuilder* builder_;
  const Json& root_;
  std::deque<PendingRule> pending_;
  size_t number_;  // among the schemas of a builder
  size_t work_ = 0, parts_ = 0;
  int depth_ = 0;    // of values within each other
  int merging_ = 0;  // references and allOf within each other
};

// Whether the schema says nothing.
bool IsAnnotation(const std::string& keyword);

}  // namespace nibble::grammar
