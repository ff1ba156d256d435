// SPDX-License-Identifier: Apache-2.0
// Schemas: each keyword by hand, and many at once against the package jsonschema, whose verdicts
// are in tests/golden/json_schemas.json.
#include "grammar/json_schema.h"

#include <chrono>

#include "grammar/grammar_testing.h"

namespace nibble {
namespace {

using test::Accepts;
using test::CheckSchemas;
using test::ErrorOf;
using test::SchemaError;

TEST(JsonSchema, Values) {
  CheckSchemas({
      {"true",
       {"1", "{\"a\": [null, true]}", "\"\\uD83D\\uDE00\"", "-1.5e-7", " []"},
       {"", "01", "1.", "\"\\uD83D\"", "\"\n\"", "{\"a\":1,}", "[1 2]", "1e999", "nul"}},
      {R"({"type": "null"})", {"null"}, {"0", "nulll"}},
      {R"({"type": "boolean"})", {"true", "false"}, {"null"}},
      {R"({"type": ["null", "integer"]})", {"null", "-3", "0"}, {"true", "1.5", "-0", "00"}},
      {R"({"type": "number"})", {"0", "-0.5", "1e9", "12.25E+3"}, {"+1", ".5", "1.e3", "0x1"}},
      {R"({"type": "string"})", {R"("")", R"("é\n\"\u00e9")"}, {R"("a)", "a", R"("\x")"}},
      {R"({"enum": ["a", "ab", 1, 1.5, null, {"k": [1, 2]}, "\n"]})",
       {R"("a")", R"("ab")", "1", "1.5", "null", R"({"k":[1,2]})", "{ \"k\": [1, 2]\n}", R"("\n")"},
       {R"("b")", "2", "{}", R"({"k":[1]})"}},
      {R"({"const": "x"})", {R"("x")"}, {R"("y")"}},
      {R"({"enum": ["a", 1, null, 2.5], "type": ["string", "integer"]})",
       {R"("a")", "1"},
       {"null", "2.5"}},
  });
  EXPECT_EQ(SchemaError("false"), "schema: no text satisfies it");
  EXPECT_EQ(SchemaError(R"({"enum": [1], "type": "string"})"), "schema: no text satisfies it");
}

TEST(JsonSchema, Numbers) {
  CheckSchemas({
      {R"({"type": "integer", "minimum": -12, "maximum": 105})",
       {"-12", "-9", "0", "7", "99", "105"},
       {"-13", "106", "1000", "-100"}},
      {R"({"type": "integer", "exclusiveMinimum": 0})", {"1", "999999999999999999"}, {"0", "-1"}},
      {R"({"type": "integer", "exclusiveMaximum": -5})", {"-6", "-100"}, {"-5", "5", "0"}},
      {R"({"type": "integer", "minimum": 0.5, "maximum": 2.5})", {"1", "2"}, {"0", "3"}},
      {R"({"type": "integer", "minimum": -0.5, "exclusiveMaximum": 1.5})", {"0", "1"}, {"-1", "2"}},
      {R"({"type": "number", "minimum": 0})", {"0", "0.0", "0.25", "17.5"}, {"-1", "-0.5"}},
      {R"({"type": "number", "exclusiveMinimum": 0, "maximum": 1})",
       {"0.01", "1", "1.000"},
       {"0", "0.0", "1.01", "2"}},
      {R"({"type": "number", "minimum": -2, "exclusiveMaximum": 3})",
       {"-2", "-2.0", "-1.9", "-0.1", "0", "2.999"},
       {"-2.01", "3", "3.0", "-3"}},
      {R"({"type": "number", "maximum": -1})", {"-1", "-1.5", "-30"}, {"-0.5", "0", "1"}},
      {R"({"type": "number", "minimum": 5, "maximum": 5})", {"5", "5.0"}, {"5.1", "4.9"}},
      {R"({"type": "integer", "multipleOf": 1})", {"5"}, {}},
  });
  EXPECT_EQ(SchemaError(R"({"type": "integer", "minimum": 3, "maximum": 2})"),
            "schema: no text satisfies it");
  Rng rng(1);
  for (int run = 0; run < 100; ++run) {
    const auto bound = [&] { return static_cast<int64_t>(rng.Below(2400)) - 1200; };
    const int64_t a = bound(), b = bound(), min = std::min(a, b), max = std::max(a, b);
    grammar::Automaton automaton(
        JsonSchemaGrammar(Json{{"type", "integer"}, {"minimum", min}, {"maximum", max}}, "test"));
    for (int64_t n = -1300; n <= 1300; n += run % 7 + 1) {
      ASSERT_EQ(automaton.Accepts(std::to_string(n)), n >= min && n <= max)
          << min << " " << max << " " << n;
    }
    for (const int64_t n : {min - 1, min, max, max + 1}) {
      ASSERT_EQ(automaton.Accepts(std::to_string(n)), n >= min && n <= max) << n;
    }
  }
}

TEST(JsonSchema, Strings) {
  CheckSchemas({
      {R"({"type": "string", "minLength": 2, "maxLength": 4})",
       {R"("ab")", R"("éé\n")", "\"\xF0\x9F\x98\x80\\uD83D\\uDE00ab\"", R"("\"\\\/\b")"},
       {R"("a")", R"("abcde")", R"("é")"}},
      {R"({"type": "string", "minLength": 3})", {R"("abc")", R"("abcdefghijklmnop")"}, {R"("ab")"}},
      {R"({"type": "string", "pattern": "^[a-z\"\\\\]{2,3}$"})",
       {R"("ab")", R"("\"\\a")"},
       {R"("a")", R"("A")", R"("abcd")", R"("""")"}},
      {R"({"type": "string", "pattern": "b+c"})",
       {R"("bc")", R"("xbbcy")", R"("é\nbc")"},
       {R"("b")", R"("")"}},
      {R"({"type": "string", "pattern": "^a|b$"})", {R"("axx")", R"("xxb")"}, {R"("xax")"}},
      {R"({"type": "string", "format": "date"})",
       {R"("2024-02-28")", R"("1999-12-31")"},
       {R"("2024-02-30")", R"("2024-13-01")", R"("2024-04-31")", R"("24-04-01")"}},
      {R"({"type": "string", "format": "time"})",
       {R"("23:59:59Z")", R"("01:02:03.5+01:30")"},
       {R"("24:00:00Z")", R"("01:02:03")"}},
      {R"({"type": "string", "format": "date-time"})",
       {R"("2024-01-31T23:59:59Z")"},
       {R"("2024-01-31 23:59:59Z")", R"("2024-01-31")"}},
      {R"({"type": "string", "format": "uuid"})",
       {R"("123e4567-e89b-12d3-a456-426614174000")"},
       {R"("123e4567e89b12d3a456426614174000")", R"("g23e4567-e89b-12d3-a456-426614174000")"}},
      {R"({"type": "string", "format": "ipv4"})",
       {R"("0.0.0.0")", R"("255.249.199.10")"},
       {R"("256.1.1.1")", R"("1.1.1")", R"("01.1.1.1")"}},
      {R"({"type": "string", "format": "email"})",
       {R"("a.b+c@mail.example.org")"},
       {R"("a.b.example.org")", R"("a@b")", R"("a b@c.de")"}},
  });
}

TEST(JsonSchema, Objects) {
  const char* strict = R"({"type": "object", "properties": {"a": {"type": "integer"},
      "b": {"type": "string"}, "c": true}, "required": ["b"], "additionalProperties": false})";
  CheckSchemas({
      {strict,
       {R"({"b":"x"})", R"({"a":1,"b":"x"})", R"({ "a": 1, "b": "x", "c": null })",
        "{\n  \"b\": \"x\",\n  \"c\": [1]\n}"},
       {R"({})", R"({"a":1})", R"({"b":"x","a":1})", R"({"b":1})", R"({"b":"x","d":1})",
        R"({"b":"x",})", R"({,"b":"x"})", R"({"b" :"x"})", "{\"b\":\n\"x\"}", "{  \"b\":\"x\"}"}},
      {R"({"type": "object", "properties": {"a": true, "b": {"type": "null"}, "c": true},
           "additionalProperties": false})",
       {"{}", R"({"a":1})", R"({"b":null})", R"({"c":1})", R"({"a":1,"c":2})",
        R"({"b":null,"c":2})", R"({"a":1,"b":null,"c":2})"},
       {R"({"a":1"c":2})", R"({"c":1,"a":1})", R"({"b":1})", R"({"a":1,})"}},
      {R"({"type": "object", "properties": {"ab": {"type": "null"}, "abc\"": {"type": "null"},
           "é": {"type": "null"}}, "additionalProperties": {"type": "integer"}})",
       {"{}", R"({"ab":null})", R"({"a":1})", R"({"abc":1})", R"({"abd":1,"x\n":2})",
        R"({"ab":null,"é":null,"è":3,"":4})", R"({"éé":1})", R"({"abc\"":null,"b":1})"},
       {R"({"ab":1})", R"({"abc\"":1})", R"({"é":1})", R"({"a":null})", R"({"\u0061b":1})",
        R"({"a":1,"ab":2})"}},
      {R"({"type": "object"})", {"{}", R"({"x":{"y":[]}})"}, {"[]", "{1:2}"}},
      {R"({"type": "object", "required": ["x"], "additionalProperties": {"type": "integer"}})",
       {R"({"x":1})", R"({"x":1,"y":2})"},
       {"{}", R"({"y":2})", R"({"x":null})"}},
      {R"({"type": "object", "properties": {"a": false, "b": true}, "additionalProperties": false})",
       {"{}", R"({"b":1})"},
       {R"({"a":1})"}},
      {R"({"properties": {"a": {"type": "integer"}}})", {R"({"a":1})"}, {R"({"a":"1"})"}},
  });
  EXPECT_EQ(SchemaError(R"({"type": "object", "required": ["x"], "additionalProperties": false})"),
            "schema: no text satisfies it");
}

TEST(JsonSchema, Arrays) {
  CheckSchemas({
      {R"({"type": "array", "items": {"type": "integer"}})",
       {"[]", "[1]", "[1,2, 3]", "[\n  1,\n  2\n]"},
       {"[,]", "[1,]", "[\"a\"]", "[1 2]"}},
      {R"({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3})",
       {"[1,2]", "[1,2,3]"},
       {"[]", "[1]", "[1,2,3,4]"}},
      {R"({"type": "array", "maxItems": 0})", {"[]", "[ ]"}, {"[1]"}},
      {R"({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": false})",
       {"[]", "[1]", R"([1,"a"])"},
       {R"(["a"])", R"([1,"a",2])", "[1,2]"}},
      {R"({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}],
           "items": {"type": "null"}, "minItems": 3, "maxItems": 4})",
       {R"([1,"a",null])", R"([1,"a",null,null])"},
       {R"([1,"a"])", R"([1,"a",null,null,null])", R"([1,"a",1])"}},
      {R"({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 1})",
       {"[1]", R"([1,"a"])", R"([1,"a",{},[]])"},
       {"[]", "[1,2]"}},
      {R"({"type": "array", "items": {"type": "array", "items": {"type": "array", "items":
           {"type": "null"}, "maxItems": 2}, "minItems": 1}})",
       {"[[[]]]", "[[[null,null],[]],[[null]]]"},
       {"[[]]", "[[[null,null,null]]]"}},
      {R"({"type": "array", "uniqueItems": false})", {"[1,1]"}, {}},
  });
}

TEST(JsonSchema, Combinations) {
  CheckSchemas({
      {R"({"anyOf": [{"type": "integer"}, {"type": "null"}], "title": "t", "default": null})",
       {"1", "null"},
       {"\"a\""}},
      {R"({"oneOf": [{"const": "a"}, {"type": "array", "items": {"type": "null"}}]})",
       {"\"a\"", "[null]"},
       {"\"b\"", "[1]"}},
      {R"({"type": "object", "properties": {"k": {"type": "string"}}, "anyOf": [
           {"properties": {"k": {"const": "x"}, "v": {"type": "integer"}}, "required": ["k", "v"]},
           {"properties": {"k": {"const": "y"}}, "required": ["k"]}], "additionalProperties": false})",
       {R"({"k":"y"})"},
       {R"({"k":"x","v":1})", R"({"k":"x"})", "{}"}},
      {R"({"allOf": [{"$ref": "#/$defs/p"}], "description": "d", "$defs": {"p": {"type": "null"}}})",
       {"null"},
       {"1"}},
      {R"({"allOf": [{"type": ["number", "string"], "minimum": 1}, {"type": "integer", "minimum": 3},
           {"maximum": 5}]})",
       {"3", "5"},
       {"2", "6", "3.5", "\"a\""}},
      {R"({"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
           {"properties": {"a": {"minimum": 2}, "b": {"type": "null"}}, "required": ["b"]}]})",
       {R"({"a":2,"b":null})", R"({"a":7,"b":null,"c":1})"},
       {R"({"a":1,"b":null})", R"({"a":2})"}},
      {R"({"$ref": "#/definitions/a~1b%25", "definitions": {"a/b%": {"type": "integer"}}})",
       {"1"},
       {"null"}},
      {R"({"$ref": "#/$defs/n", "minimum": 5, "$defs": {"n": {"type": "integer", "maximum": 6}}})",
       {"5", "6"},
       {"4", "7"}},
      {R"({"type": "object", "properties": {"v": {"type": "integer"}, "next": {"anyOf":
           [{"$ref": "#"}, {"type": "null"}]}}, "required": ["v", "next"],
           "additionalProperties": false})",
       {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":{"v":3,"next":null}}})"},
       {R"({"v":1})", R"({"v":1,"next":{"v":2}})"}},
      // A name that one of two declares is a further one for the other.
      {R"({"allOf": [{"type": "object", "properties": {"a": true}, "additionalProperties": false},
           {"properties": {"b": true}, "additionalProperties": {"type": "integer"}}]})",
       {"{}", R"({"a":1})"},
       {R"({"b":1})", R"({"a":null})", R"({"c":1})"}},
  });
  EXPECT_EQ(SchemaError(R"({"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}},
                "required": ["a"]}], "additionalProperties": {"type": "null"}})"),
            "schema: no text satisfies it");
}

// Nested as deeply as is allowed, and offered no deeper.
TEST(JsonSchema, RecursionStaysCompletable) {
  const auto grammar = JsonSchemaGrammar(ParseJson(R"({"$ref": "#/$defs/a", "$defs": {
      "a": {"type": "object", "properties": {"b": {"anyOf": [{"$ref": "#/$defs/b"}, {"type": "null"}]}},
            "required": ["b"], "additionalProperties": false},
      "b": {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1}}})",
                                                   "test"),
                                         "schema");
  grammar::Automaton automaton(grammar);
  auto state = automaton.start();
  int levels = 0;
  const auto write = [&](std::string_view text) {
    for (const char byte : text) {
      const auto next = automaton.Step(state, static_cast<uint8_t>(byte));
      if (next == grammar::Automaton::kDead) return false;
      state = next;
    }
    return true;
  };
  while (write("{\"b\":") && write("[")) ++levels;
  EXPECT_GT(levels, 25);
  EXPECT_LT(levels, 70);
  ASSERT_TRUE(write("null}"));
  for (int i = 0; i < levels; ++i) ASSERT_TRUE(write("]}")) << i;
  EXPECT_TRUE(automaton.MayEnd(state));
  const auto object = JsonObjectGrammar();
  const auto nested = [](int n) {
    return "{\"a\":" + std::string(static_cast<size_t>(n), '[') +
           std::string(static_cast<size_t>(n), ']') + "}";
  };
  EXPECT_TRUE(Accepts(object, nested(63)));
  EXPECT_FALSE(Accepts(object, nested(64)));
  ParseJson(nested(63), "as deep as ParseJson goes");
  EXPECT_THROW(ParseJson(nested(64), "deeper"), Error);
}

TEST(JsonSchema, WhatIsNotSupportedIsRefusedWithItsPlace) {
  const std::pair<const char*, const char*> refused[] = {
      {R"({"properties": {"a": {"type": "array", "items": {"type": "string"}, "uniqueItems": true}}})",
       R"(schema: properties.a: "uniqueItems" of items that are not listed is not supported)"},
      {R"({"type": "object", "minProperties": 2})",
       "schema: minProperties of names that are not declared is not supported"},
      {R"({"not": {"uniqueItems": true}})", R"(schema: "not" of uniqueItems is not supported)"},
      {R"({"type": "integer", "multipleOf": 1234567})",
       "schema: multipleOf 1234567 is not supported: too many remainders"},
      {R"({"contains": {"type": "null"}, "prefixItems": [true]})",
       R"(schema: "contains" beside prefixItems, another one or large counts is not supported)"},
      {R"({"type": "text"})", R"(schema: type "text" is unknown)"},
      {R"({"type": []})", "schema: type names none"},
      {R"({"type": "string", "minLength": -1})", "schema: minLength must be an integer from 0"},
      {R"({"type": "string", "minLength": 2000000})", "schema: minLength is over 1000000"},
      {R"({"multipleOf": 0})", "schema: multipleOf must be more than 0"},
      {R"({"$ref": "#/$defs/none"})", R"(schema: $ref "#/$defs/none" leads nowhere in the schema)"},
      {R"({"$ref": "http://x/y"})", R"(schema: $ref "http://x/y" leads nowhere in the schema)"},
      {R"({"anyOf": []})", "schema: anyOf must be an array of schemas"},
      {R"({"properties": {"a": 3}})",
       "schema: properties.a: a schema must be an object, true or false"},
      {R"~({"type": "string", "pattern": "a(?=a)"})~",
       "schema: pattern: at byte 2: look-ahead is supported behind ^ at the beginning only"},
      {R"~({"type": "string", "pattern": "(a)\\1"})~",
       "schema: pattern: at byte 5: back-references (\\1) are not supported"},
      {R"({"pattern": 3})", "schema: pattern must be a string"},
      {R"({"minimum": "3"})", "schema: minimum must be a number"},
      {R"({"enum": 3})", "schema: enum must be an array"},
      {R"({"required": "a"})", "schema: required must be an array of names"},
      {"3", "schema: a schema must be an object, true or false"}};
  for (const auto& [schema, message] : refused) EXPECT_EQ(SchemaError(schema), message) << schema;
  EXPECT_NE(SchemaError(R"({"$ref": "#"})").find("may begin with itself"), std::string::npos);
  EXPECT_NE(
      SchemaError(R"({"anyOf": [{"type": "null"}, {"$ref": "#"}]})").find("begin with itself"),
      std::string::npos);
}

TEST(JsonSchema, BombsEndInTime) {
  const auto begun = std::chrono::steady_clock::now();
  // Each definition has the next twice.
  Json doubling = {{"$ref", "#/$defs/d0"}, {"$defs", Json::object()}};
  Json joining = doubling;
  for (int i = 0; i < 60; ++i) {
    const Json next = {{"$ref", fmt::format("#/$defs/d{}", i + 1)}};
    doubling["$defs"][fmt::format("d{}", i)] = {{"type", "object"},
                                                {"properties", {{"a", next}, {"b", next}}}};
    joining["$defs"][fmt::format("d{}", i)] = {{"allOf", Json::array({next, next})}};
  }
  doubling["$defs"]["d60"] = {{"type", "null"}};
  joining["$defs"]["d60"] = {{"type", "null"}};
  EXPECT_TRUE(Accepts(JsonSchemaGrammar(doubling, "s"), R"({"a":{"b":{}},"b":{}})"));
  EXPECT_NE(ErrorOf([&] { JsonSchemaGrammar(joining, "s"); }), "");
  EXPECT_NE(SchemaError(R"({"allOf": [{"$ref": "#"}, {"$ref": "#"}]})"), "");
  // allOf of two schemas that recur ends; anyOf beside properties, over and over.
  EXPECT_TRUE(Accepts(
      JsonSchemaGrammar(ParseJson(R"({"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
          "$defs": {"a": {"properties": {"x": {"$ref": "#/$defs/a"}}},
                    "b": {"properties": {"x": {"$ref": "#/$defs/b"}}}}})",
                                  "t"),
                        "s"),
      R"({"x":{"x":{}}})"));
  Json copied = true;
  for (int i = 0; i < 30; ++i) {
    copied = {{"properties", {{"p", copied}}},
              {"anyOf", Json::array({{{"type", "object"}}, {{"required", {"p"}}}})}};
  }
  EXPECT_NE(ErrorOf([&] { JsonSchemaGrammar(copied, "s"); }), "");
  // Ten thousand values, some the beginnings of others.
  Json values = Json::array();
  for (int i = 0; i < 10'000; ++i) values.push_back(std::to_string(i * 7919 % 100'000));
  EXPECT_TRUE(Accepts(JsonSchemaGrammar({{"enum", values}}, "s"), "\"7919\""));
  // Arrays in arrays; objects of a thousand optional properties.
  Json deep = {{"type", "null"}};
  for (int i = 0; i < 50; ++i) deep = {{"type", "array"}, {"items", deep}, {"minItems", 3}};
  JsonSchemaGrammar(deep, "s");
  Json wide = {{"type", "object"}, {"properties", Json::object()}};
  for (int i = 0; i < 1000; ++i) wide["properties"][fmt::format("p{}", i)] = true;
  EXPECT_TRUE(Accepts(JsonSchemaGrammar(wide, "s"), R"({"p7":1,"p999":2,"q":3,"p1000":4})"));
  wide["properties"]["more"] = true;
  EXPECT_EQ(ErrorOf([&] { JsonSchemaGrammar(wide, "s"); }), "s: over 1000 properties");
  EXPECT_TRUE(Accepts(JsonSchemaGrammar(ParseJson(R"({"type": "array", "maxItems": 100000,
      "items": {"type": "string", "maxLength": 100000}})",
                                                  "t"),
                                        "s"),
                      R"(["a","b"])"));
  Json alternatives = Json::array();
  for (int i = 0; i < 3000; ++i) alternatives.push_back({{"type", "object"}, {"required", {"a"}}});
  ErrorOf([&] { Accepts(JsonSchemaGrammar({{"anyOf", alternatives}}, "s"), R"({"a":1})"); });
  EXPECT_NE(ErrorOf([&] { JsonSchemaGrammar(Json(std::string(300 << 10, 'a')), "s"); }), "");
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(60));
}

// Random schemas and values: the grammar takes no value that jsonschema refuses, and all that it
// accepts among those written as the grammar writes.
TEST(JsonSchema, AgreesWithJsonschema) {
  const Json goldens = ReadJsonFile(test::DataPath("golden/json_schemas.json"));
  int good = 0, bad = 0;
  for (const Json& golden : goldens) {
    std::shared_ptr<const Grammar> grammar;
    const std::string error =
        ErrorOf([&] { grammar = JsonSchemaGrammar(golden.at("schema"), "schema"); });
    // Where nothing satisfies a schema, nothing is accepted.
    ASSERT_TRUE(error.empty() || error == "schema: no text satisfies it") << error << golden.dump();
    for (const Json& text : golden.at("valid")) {
      EXPECT_TRUE(grammar && Accepts(grammar, text.get<std::string>()))
          << golden.at("schema") << ": " << text;
      ++good;
    }
    for (const Json& text : golden.at("invalid")) {
      EXPECT_FALSE(grammar && Accepts(grammar, text.get<std::string>()))
          << golden.at("schema") << ": " << text;
      ++bad;
    }
  }
  EXPECT_GT(good, 500);
  EXPECT_GT(bad, 500);
}

}  // namespace
}  // namespace nibble
