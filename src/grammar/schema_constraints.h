// SPDX-License-Identifier: Apache-2.0
// The constraints that one schema puts on a value, keyword by keyword, with those that its
// references and allOf add. A value satisfies the schema when all of them hold. Schemas of parts
// stay JSON.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/json.h"
#include "grammar/decimal_sets.h"

namespace nibble::grammar {

// Sets of types are sums of these. "integer" is a number whose limits say so.
enum : unsigned {
  kNull = 1,
  kBoolean = 2,
  kNumber = 4,
  kString = 8,
  kArray = 16,
  kObject = 32,
  kAnyType = 63
};
// The type of a value of JSON.
unsigned TypeOf(const Json& value);

struct Constraints {
  unsigned types = kAnyType;
  unsigned implied = 0;                          // types that the keywords are about
  std::optional<std::vector<Json>> values = {};  // enum and const: one of these
  std::vector<Json> excluded = {};               // none of these

  NumberLimits numbers = {};

  struct Strings {
    int64_t min = 0, max = kUnbounded;
    std::vector<std::string> patterns = {}, formats = {}, non_patterns = {};
    bool operator==(const Strings&) const = default;
  } strings = {};

  struct Contained {
    Json schema;
    int64_t min, max;
    bool operator==(const Contained&) const = default;
  };
  struct Arrays {
    std::vector<Json> firsts = {};
    std::optional<Json> items = {}, unevaluated = {};  // of the further ones
    int64_t min = 0, max = kUnbounded;
    bool unique = false;
    size_t evaluated = 0;  // firsts that not only a "not" declares
    bool negated = false;  // whether a "not" says something of all items
    std::vector<Contained> contained = {};
    bool operator==(const Arrays&) const = default;
  } arrays = {};

  struct Objects {
    Json properties = Json::object(), patterns = Json::object();  // schemas by name or pattern
    std::optional<Json> others = {}, unevaluated = {};            // additionalProperties
    std::set<std::string> evaluated = {};  // properties that not only a "not" declares
    std::vector<std::string> required = {};
    std::optional<Json> names = {};  // propertyNames
    int64_t min = 0, max = kUnbounded;
    bool operator==(const Objects&) const = default;
  } objects = {};

  // One schema of each list holds.
  std::vector<std::vector<Json>> choices = {};

  bool operator==(const Constraints&) const = default;
};

// A schema for values for which both hold.
Json Both(const Json& a, const Json& b);
// The constraints of both.
Constraints Merged(Constraints a, const Constraints& b);

}  // namespace nibble::grammar
