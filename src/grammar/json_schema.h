// SPDX-License-Identifier: Apache-2.0
// JSON Schema (2020-12, and what of older drafts means the same) as expressions. Every text of the
// grammar is a value for which the schema holds. Of such values the grammar has those that are
// written as json_text.h says, with
//
//   - properties in declared order, then others with other names (one may come twice);
//   - without "type", a type that other keywords are about, if any;
//   - numbers with limits without exponents;
//   - characters of patterns, formats and described names in their shortest form;
//   - where "uniqueItems" is of listed values, these in that order.
//
// Unknown keywords and formats say nothing, as the standard has it. What the standard knows and
// expressions cannot hold is refused with its name and place, or left out and noted.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/schema_constraints.h"

namespace nibble::grammar {

class SchemaCompiler {
 public:
  // If `notes` is null, a schema that cannot be held to is refused.
  SchemaCompiler(GrammarBuilder* builder, const Json& root, SchemaNotes* notes);
  Expr Run();

 private:
  using Where = const std::string&;  // a place in the schema: "properties.a"
  struct PendingRule {
    int32_t rule;
    Json schema;
    std::string at;
  };

  [[noreturn]] void Refuse(Where at, const std::string& what) const;
  void LeaveOut(Where at, const std::string& what);
  // Calls use() and returns whether it ended without an Error; what failed is left out.
  bool Held(Where at, const std::function<void()>& use);
  void Charge(size_t work, Where at);
  // Returns make() and charges for its states; a failing call is charged the most there can be.
  TextSet Paid(Where at, const std::function<TextSet()>& make);
  Expr Shared(Expr expression);  // a rule that can be used more than once
  // The rule of this name, made when it is first asked for.
  Expr Known(const std::string& name, const std::function<Expr()>& make);

  void CompilePending();
  Expr Value(const Json& schema, Where at);
  Expr ValueOf(const Constraints& c, Where at);
  Expr OfChoice(const Constraints& c, Where at);
  Expr OfValues(const Constraints& c, Where at);
  Expr LaterRule(const std::string& key, const Json& schema, Where at);
  std::vector<Json> Admitted(const Constraints& c, Where at);

  // schema_reader.cc
  Constraints Read(const Json& schema, Where at);
  void ReadTypes(const Json& schema, Where at, Constraints* c) const;
  void ReadNumbers(const Json& schema, Where at, Constraints* c) const;
  void ReadStrings(const Json& schema, Where at, Constraints* c);
  void ReadArrays(const Json& schema, Where at, Constraints* c);
  void ReadObjects(const Json& schema, Where at, Constraints* c);
  void ReadCombinations(const Json& schema, Where at, Constraints* c);
  void ReadDependents(const Json& schema, Where at, Constraints* c);
  std::vector<Json> OneOf(const std::vector<Json>& members, Where at);
  Constraints ReadShallow(const Json& schema, Where at);
  bool AreApart(const Constraints& x, const Constraints& y, Where at, int depth);
  void CloseUnevaluated(Where at, Constraints* c);
  void JoinParts(const Json& schema, Where at, Constraints* c);
  int64_t Count(const Json& schema, const char* key, int64_t otherwise, Where at);
  const Json& Resolve(const Json& reference, Where at) const;

  // schema_negation.cc. Schemas of which one holds where `schema` does not.
  std::vector<Json> Negated(const Json& schema, Where at);
  void ReadNot(const Json& schema, Where at, Constraints* c);

  // schema_objects.cc
  Expr Object(const Constraints& c, Where at);
  struct Member {
    Expr text;  // name, colon and value
    bool required;
  };
  // `least` to `most` of the members in their order, and further ones behind.
  Expr Members(const std::vector<Member>& members, const Expr& further, int64_t min, int64_t max,
               Where at);
  Expr Members(const std::vector<Member>& members, const Expr& further);
  Expr CountedMembers(const std::vector<Member>& members, const Expr& further, int64_t min,
                      int64_t max, int64_t counted);
  struct NamePattern {
    TextSet names;
    Json schema;
  };
  std::vector<NamePattern> NamePatterns(const Constraints::Objects& o, Where at);
  Expr FurtherMember(const Constraints::Objects& o, const std::vector<NamePattern>& patterns,
                     const std::optional<TextSet>& allowed,
                     const std::vector<std::string>& declared, Where at);
  Expr FurtherName(const std::vector<std::string>& declared, Where at);
  std::optional<TextSet> NameSet(const Json& schema, Where at);

  // schema_arrays.cc
  Expr Array(const Constraints& c, Where at);
  Expr UniqueArray(const Constraints::Arrays& a, Where at);
  Expr ContainingArray(const Constraints::Arrays& a, Where at);
  std::optional<std::vector<Json>> FiniteValues(const Json& schema, Where at);

  // schema_scalars.cc
  Expr String(const Constraints& c, Where at);
  std::optional<Expr> SimpleString(const Constraints& c);
  Expr Written(const TextSet& texts);  // between the quotes of a string
  TextSet StringSet(const Constraints& c, Where at);
  Expr Number(const Constraints& c, Where at);

  GrammarBuilder* builder_;
  const Json root_;  // with references as pointers
  SchemaNotes* notes_;
  std::deque<PendingRule> pending_;
  size_t number_;  // among the schemas of a builder
  size_t work_ = 0, parts_ = 0;
  int depth_ = 0;                            // of values within each other
  int merging_ = 0;                          // references and allOf within each other
  int inner_ = 0;                            // compilers around this one
  bool shallow_ = false, negating_ = false;  // how Read() reads
};

inline constexpr const char* kUnevaluated =
    "unevaluated properties or items of one of several schemas are not supported";

// Returns whether the key of a schema says something about values, as annotations do not.
bool IsKeyword(const std::string& key);
// A place below another.
std::string Below(const std::string& at, const std::string& step);

}  // namespace nibble::grammar
