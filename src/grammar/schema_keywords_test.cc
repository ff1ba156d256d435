// SPDX-License-Identifier: Apache-2.0
// Keywords that need sets of texts, choices or counts.
#include <gmock/gmock.h>

#include <cmath>

#include "grammar/decimal_sets.h"
#include "grammar/grammar_testing.h"

namespace nibble {
namespace {

using grammar::Numbers;
using grammar::TextSet;
using test::CheckSchemas;

TEST(TextSet, AndAndWithout) {
  const auto set = [](const char* pattern) {
    GrammarBuilder builder("test");
    return TextSet::Of(grammar::Regex(&builder, pattern, "test"));
  };
  const TextSet ends = set("[a-z]*z"), begins = set("a.*");
  for (const char* text : {"", "a", "z", "az", "abz", "abzc", "aéz"}) {
    const bool in_ends = ends.Contains(text), in_begins = begins.Contains(text);
    EXPECT_EQ(ends.And(begins).Contains(text), in_ends && in_begins) << text;
    EXPECT_EQ(ends.Without(begins).Contains(text), in_ends && !in_begins) << text;
    EXPECT_TRUE(TextSet::All().Contains(text));
  }
  EXPECT_TRUE(ends.Contains("abz"));
  EXPECT_FALSE(ends.Contains("abzc"));
  EXPECT_TRUE(begins.And(set("b.*")).empty());
  EXPECT_FALSE(TextSet::OfLengths(1, 2).Contains(""));
  EXPECT_TRUE(TextSet::OfLengths(1, 2).Contains("éé"));
  EXPECT_FALSE(TextSet::OfLengths(1, 2).Contains("abc"));
  for (const char* bomb : {".*a.{16}", ".*a.{1000}", "(a{0,200}){200}", "(a|b|c?){0,50}.{0,900}"}) {
    EXPECT_NE(test::ErrorOf([&] { set(bomb).And(set(".*b.{17}")); }), "") << bomb;
  }
}

// All numbers of two digits behind the point, against doubles that hold them exactly enough.
TEST(DecimalSets, AreTheirNumbers) {
  const auto decimal = [](int hundredths) {
    return grammar::ToDecimal(Json(static_cast<double>(hundredths) / 100));
  };
  Rng rng(3);
  for (int run = 0; run < 60; ++run) {
    const auto any = [&] { return static_cast<int>(rng.Below(600)) - 300; };
    const int a = any(), b = any(), min = std::min(a, b), max = std::max(a, b);
    const int divisor = static_cast<int>(rng.Below(40)) + 1;
    const bool within = run % 2 == 0;
    const auto bound = [&](int n) { return grammar::DecimalBound{decimal(n), within}; };
    const TextSet limited = Numbers({.min = bound(min), .max = bound(max)});
    const TextSet multiples = Numbers({.multiples = {decimal(divisor)}});
    const TextSet others = Numbers({.non_multiples = {decimal(divisor)}});
    for (int n = -310; n <= 310; ++n) {
      const std::string text =
          fmt::format("{}{}.{:02}", n < 0 ? "-" : "", std::abs(n) / 100, std::abs(n) % 100);
      ASSERT_EQ(limited.Contains(text), within ? n >= min && n <= max : n > min && n < max)
          << min << " " << max << " " << text;
      ASSERT_EQ(multiples.Contains(text), n % divisor == 0) << divisor << " " << text;
      ASSERT_EQ(others.Contains(text), n % divisor != 0) << divisor << " " << text;
    }
  }
  const TextSet seconds = Numbers({.integer = true, .multiples = {grammar::ToDecimal(86400)}});
  for (const char* text : {"0", "86400", "-172800", "864000"}) EXPECT_TRUE(seconds.Contains(text));
  for (const char* text : {"8640", "1", "86401", "43200", "-0", "086400"}) {
    EXPECT_FALSE(seconds.Contains(text)) << text;
  }
}

TEST(DecimalSets, ReadAnyNumberOfJson) {
  const std::pair<const char*, grammar::Decimal> cases[] = {
      {"0", {false, "0", ""}},
      {"-0.0", {false, "0", ""}},
      {"-12.50", {true, "12", "5"}},
      {"1e3", {false, "1000", ""}},
      {"1.5e-3", {false, "0", "0015"}},
      {"1e-7", {false, "0", "0000001"}},
      {"1.25e20", {false, "125000000000000000000", ""}},
      {"18446744073709551615", {false, "18446744073709551615", ""}}};
  for (const auto& [text, decimal] : cases) {
    EXPECT_EQ(grammar::ToDecimal(ParseJson(text, "test")), decimal) << text;
  }
}

TEST(SchemaKeywords, Numbers) {
  CheckSchemas({
      {R"({"type": "number", "exclusiveMinimum": 0.5, "maximum": 2.25})",
       {"0.51", "0.500001", "1", "2.25", "2.250"},
       {"0.5", "0.50", "0", "2.26", "3", "-1", "05"}},
      {R"({"type": "number", "minimum": -0.1, "exclusiveMaximum": 0.1})",
       {"-0.1", "-0.05", "0", "0.0999"},
       {"-0.11", "0.1", "0.10", "-0"}},
      {R"({"type": "integer", "multipleOf": 5, "minimum": -10, "maximum": 20})",
       {"-10", "-5", "0", "5", "20"},
       {"-15", "25", "3", "1"}},
      {R"({"type": "number", "multipleOf": 0.25})", {"0.25", "1.5", "-2", "3.00"}, {"0.3", "1.1"}},
      {R"({"allOf": [{"multipleOf": 4}, {"multipleOf": 6}], "type": "integer"})",
       {"0", "12", "24"},
       {"4", "6", "8"}},
      {R"({"type": "integer", "maximum": 18446744073709551615, "minimum": 0})",
       {"0", "999999999999999999"},
       {"-1"}},
      {R"({"type": "integer", "not": {"enum": [3, 4]}, "minimum": 2, "maximum": 5})",
       {"2", "5"},
       {"3", "4"}},
  });
}

TEST(SchemaKeywords, Strings) {
  CheckSchemas({
      {R"({"type": "string", "pattern": "^[a-z]+$", "maxLength": 3})",
       {R"("abc")"},
       {R"("abcd")", R"("A")"}},
      {R"({"type": "string", "pattern": "a", "minLength": 2, "maxLength": 3})",
       {R"("ba")", R"("bab")"},
       {R"("a")", R"("bb")", R"("abbb")"}},
      {R"({"allOf": [{"pattern": "^a"}, {"pattern": "z$"}], "type": "string"})",
       {R"("az")", R"("abz")"},
       {R"("a")", R"("z")"}},
      {R"({"type": "string", "format": "email", "pattern": "^[a-z.@]*$"})",
       {R"("a@b.de")"},
       {R"("A@b.de")", R"("ab.de")"}},
      {R"({"type": "string", "not": {"pattern": "x"}})", {R"("ab")", R"("")"}, {R"("axb")"}},
      {R"({"type": "string", "not": {"const": "none"}})", {R"("no")", R"("nones")"}, {R"("none")"}},
      {R"({"type": "string", "format": "uri", "minLength": 1, "maxLength": 2083})",
       {R"("https://example.org/a?b=%20#c")", R"("mailto:a@b.de")"},
       {R"("example.org")", R"("https://a b")"}},
      {R"({"type": "string", "format": "duration"})",
       {R"("P1DT2H")", R"("PT5M")", R"("P3W")"},
       {R"("P")", R"("5M")"}},
      {R"({"type": "string", "format": "ipv6"})",
       {R"("::1")", R"("2001:db8::8:800:200c:417a")"},
       {R"("1::2::3")", R"(":::")"}},
      {R"({"type": "string", "format": "hostname"})",
       {R"("a-b.example.org")"},
       {R"("-a.org")", R"("a..b")"}},
      {R"({"type": "string", "format": "password"})", {R"("anything")"}, {"1"}},
      {R"({"enum": ["a", "abc", "b"], "pattern": "^a", "maxLength": 2})",
       {R"("a")"},
       {R"("abc")", R"("b")"}},
  });
}

TEST(SchemaKeywords, Objects) {
  CheckSchemas({
      {R"({"type": "object", "patternProperties": {"^x-": {"type": "string"}, "y$": {"minLength": 2}},
           "additionalProperties": false})",
       {"{}", R"({"x-a":""})", R"({"x-y":"ab"})", R"({"ay":"ab"})"},
       {R"({"b":1})", R"({"x-y":"a"})", R"({"x-a":1})"}},
      {R"({"type": "object", "properties": {"ab": {"type": "integer"}},
           "patternProperties": {"^a": {"maximum": 3}}})",
       {R"({"ab":3})", R"({"ac":2,"b":9})"},
       {R"({"ab":4})", R"({"ac":4})"}},
      {R"({"type": "object", "propertyNames": {"pattern": "^[a-z]{1,3}$"}})",
       {R"({"abc":1})"},
       {R"({"abcd":1})", R"({"A":1})"}},
      {R"({"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "integer"}})",
       {R"({"a":1,"b":2})", "{}"},
       {R"({"c":1})", R"({"a":null})"}},
      {R"({"type": "object", "properties": {"a": true, "b": true, "c": true}, "minProperties": 2,
           "maxProperties": 2, "additionalProperties": false})",
       {R"({"a":1,"b":1})", R"({"a":1,"c":1})", R"({"b":1,"c":1})"},
       {"{}", R"({"a":1})", R"({"a":1,"b":1,"c":1})", R"({"a":1"b":1})"}},
      {R"({"type": "object", "minProperties": 1, "maxProperties": 2, "additionalProperties": {"type": "null"}})",
       {R"({"a":null})", R"({"a":null,"b":null})"},
       {"{}", R"({"a":null,"b":null,"c":null})"}},
      {R"({"type": "object", "properties": {"card": true, "code": true}, "dependentRequired": {"card": ["code"]},
           "additionalProperties": false})",
       {"{}", R"({"code":1})", R"({"card":1,"code":2})"},
       {R"({"card":1})"}},
      {R"({"type": "object", "properties": {"a": true}, "dependentSchemas":
           {"a": {"properties": {"b": {"type": "integer"}}, "required": ["b"]}}})",
       {R"({"b":"x"})", R"({"a":1,"b":2})"},
       {R"({"a":1})", R"({"a":1,"b":"x"})"}},
      {R"({"allOf": [{"properties": {"a": {"type": "integer"}}}], "properties": {"b": true},
           "unevaluatedProperties": false})",
       {R"({"b":1,"a":2})"},
       {R"({"c":1})", R"({"a":"x"})"}},
  });
}

TEST(SchemaKeywords, Arrays) {
  CheckSchemas({
      {R"({"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": true, "minItems": 1})",
       {R"(["a"])", R"(["a","c"])", R"(["a","b","c"])"},
       {"[]", R"(["a","a"])", R"(["b","c","b"])"}},
      {R"({"type": "array", "items": {"type": "boolean"}, "uniqueItems": true})",
       {"[]", "[false,true]"},
       {"[true,true]"}},
      {R"({"type": "array", "items": {"type": "integer"}, "contains": {"minimum": 5}, "minContains": 2,
           "maxContains": 2, "maxItems": 4})",
       {"[5,6]", "[1,5,2,6]"},
       {"[5]", "[5,6,7]", "[1,2,3,5,6]"}},
      {R"({"type": "array", "contains": {"const": "x"}})",
       {R"(["x"])", R"([1,"x",{}])"},
       {"[]", "[1]"}},
      {R"({"type": "array", "items": [{"type": "integer"}], "additionalItems": false})",
       {"[]", "[1]"},
       {"[1,2]", R"(["a"])"}},
      {R"({"type": "array", "items": {"type": "string"}, "maxItems": 4294967295})",
       {R"(["a"])"},
       {"[1]"}},
  });
}

// Found by random schemas.
TEST(SchemaKeywords, StrangeOnesEnd) {
  const auto error = [](const char* schema) { return test::SchemaError(schema); };
  EXPECT_EQ(error(R"({"$ref": 3, "type": "integer"})"), "schema: $ref must be a string");
  EXPECT_EQ(error(R"({"$dynamicRef": []})"), "schema: $ref must be a string");
  EXPECT_EQ(error(R"({"contains": true, "minContains": 2000000})"),
            "schema: minContains is over 1000000");
  EXPECT_THAT(error(R"({"enum": [1, {}, "\u00e9"], "additionalProperties": {"$ref": "#"},
                       "minLength": 1})"),
              testing::HasSubstr("within itself"));
  const std::string accents = fmt::format(R"({{"not": {{"uniqueItems": true, "title": "{}"}}}})",
                                          std::string(99, 'a') + "\xC3\xA9");
  EXPECT_EQ(error(accents.c_str()), "schema: \"not\" of uniqueItems is not supported");
  EXPECT_EQ(error(R"({"type": "string", "pattern": "^[a-z]+x.*y$", "maxLength": 100000})"), "");
  // Each of these patterns takes all the states that there are.
  Json many = {{"type", "object"}, {"properties", Json::object()}};
  for (int i = 0; i < 100; ++i) {
    many["properties"][fmt::format("p{}", i)] = {{"pattern", fmt::format(".*{}.{{16}}", i)},
                                                 {"maxLength", 30}};
  }
  SchemaNotes notes;
  EXPECT_THAT(test::ErrorOf([&] { JsonSchemaGrammar(many, "schema", &notes); }),
              testing::HasSubstr("too large"));
  CheckSchemas({{R"({"$id": "http://a/b", "properties": {"x": {"$id": "c", "enum": ["a", "bb"],
                     "$ref": "#/$defs/s", "$defs": {"s": {"minLength": 2}}}}, "required": ["x"]})",
                 {R"({"x":"bb"})"},
                 {R"({"x":"a"})"}}});
}

TEST(SchemaKeywords, Conditions) {
  CheckSchemas({
      {R"({"type": "object", "properties": {"c": {"enum": ["US", "DE"]}, "zip": {"type": "string"}},
           "required": ["c", "zip"], "if": {"properties": {"c": {"const": "US"}}},
           "then": {"properties": {"zip": {"pattern": "^[0-9]{5}$"}}},
           "else": {"properties": {"zip": {"maxLength": 2}}}})",
       {R"({"c":"US","zip":"12345"})", R"({"c":"DE","zip":"ab"})"},
       {R"({"c":"US","zip":"1"})", R"({"c":"DE","zip":"12345"})"}},
      {R"({"oneOf": [{"type": "integer", "minimum": 5}, {"type": "integer", "maximum": 8}]})",
       {"9", "4"},
       {"5", "6", "8"}},
      {R"({"type": "object", "properties": {"a": true, "b": true}, "additionalProperties": false,
           "oneOf": [{"required": ["a"]}, {"required": ["b"]}]})",
       {R"({"a":1})", R"({"b":1})"},
       {"{}", R"({"a":1,"b":1})"}},
      {R"({"minLength": 1, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]})",
       {R"({"a":1})"},
       {R"("x")", R"({"a":1,"b":1})"}},
      {R"({"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "oneOf": [{"required": ["c"]},
           {"required": ["d"]}], "type": "object"})",
       {R"({"a":1,"c":1})", R"({"b":1,"d":1})"},
       {R"({"a":1})", R"({"c":1})", R"({"a":1,"c":1,"d":1})"}},
      {R"({"not": {"type": ["string", "object"]}})", {"1", "null", "[]"}, {R"("a")", "{}"}},
      {R"({"not": {"anyOf": [{"type": "string"}, {"minimum": 3}]}, "type": ["string", "integer"]})",
       {"2"},
       {"3", R"("a")"}},
      {R"({"type": "array", "not": {"items": {"type": "integer"}}})",
       {R"([1,"a"])"},
       {"[1]", "[]"}},
      {R"({"properties": {"n": {"$ref": "#", "description": "next"}}, "type": "object",
           "additionalProperties": false})",
       {R"({"n":{"n":{}}})"},
       {R"({"m":1})"}},
      {R"({"$ref": "#item", "$defs": {"i": {"$anchor": "item", "type": "integer"}}})",
       {"1"},
       {"null"}},
      {R"({"$id": "https://a.example/root", "properties": {"x": {"$ref": "part#/$defs/n"}},
           "required": ["x"], "$defs": {"p": {"$id": "part", "$defs": {"n": {"type": "null"}}}}})",
       {R"({"x":null})"},
       {R"({"x":1})"}},
  });
}

}  // namespace
}  // namespace nibble
