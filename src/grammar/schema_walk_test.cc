// SPDX-License-Identifier: Apache-2.0
// Random walks through masks end in values for which the schema holds, as two validators say that
// share nothing with the grammar: a small one here, and Python's jsonschema.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <regex>

#include "base/utf8.h"
#include "grammar/grammar_testing.h"

namespace nibble {
namespace {

bool Holds(const Json& schema, const Json& value, const Json& root);

bool HoldsType(const std::string& type, const Json& value) {
  if (type == "integer") return value.is_number_integer();
  return type == value.type_name();
}

bool HoldsForString(const Json& s, const std::string& text) {
  size_t length = 0;
  ForEachCharacter(text, [&](uint32_t, size_t, size_t) { ++length; });
  if (s.contains("minLength") && length < s.at("minLength")) return false;
  if (s.contains("maxLength") && length > s.at("maxLength")) return false;
  return !s.contains("pattern") ||
         std::regex_search(text, std::regex(s.at("pattern").get<std::string>()));
}

bool HoldsForObject(const Json& s, const Json& value, const Json& root) {
  for (const Json& name : s.value("required", Json::array())) {
    if (!value.contains(name.get<std::string>())) return false;
  }
  const Json properties = s.value("properties", Json::object());
  for (const auto& item : value.items()) {
    const bool declared = properties.contains(item.key());
    const Json of =
        declared ? properties.at(item.key()) : s.value("additionalProperties", Json(true));
    if (!Holds(of, item.value(), root)) return false;
  }
  return true;
}

bool HoldsForArray(const Json& s, const Json& value, const Json& root) {
  if (s.contains("minItems") && value.size() < s.at("minItems")) return false;
  if (s.contains("maxItems") && value.size() > s.at("maxItems")) return false;
  const Json firsts = s.value("prefixItems", Json::array());
  for (size_t i = 0; i < value.size(); ++i) {
    const Json of = i < firsts.size() ? firsts[i] : s.value("items", Json(true));
    if (!Holds(of, value[i], root)) return false;
  }
  return true;
}

bool Holds(const Json& s, const Json& value, const Json& root) {
  if (s.is_boolean()) return s.get<bool>();
  const auto holds = [&](const Json& part) { return Holds(part, value, root); };
  if (s.contains("$ref") && !holds(root.at("$defs").at("d"))) return false;
  if (s.contains("anyOf") && !std::ranges::any_of(s.at("anyOf"), holds)) return false;
  if (s.contains("allOf") && !std::ranges::all_of(s.at("allOf"), holds)) return false;
  if (s.contains("enum")) {
    const Json& values = s.at("enum");
    if (std::find(values.begin(), values.end(), value) == values.end()) return false;
  }
  if (s.contains("const") && s.at("const") != value) return false;
  if (s.contains("type")) {
    const Json types = s.at("type").is_array() ? s.at("type") : Json::array({s.at("type")});
    const auto is = [&](const Json& type) { return HoldsType(type.get<std::string>(), value); };
    if (std::ranges::none_of(types, is)) return false;
  }
  if (value.is_number()) {
    if (s.contains("minimum") && value < s.at("minimum")) return false;
    if (s.contains("maximum") && value > s.at("maximum")) return false;
    if (s.contains("exclusiveMinimum") && value <= s.at("exclusiveMinimum")) return false;
    if (s.contains("exclusiveMaximum") && value >= s.at("exclusiveMaximum")) return false;
  }
  if (value.is_string() && !HoldsForString(s, value.get<std::string>())) return false;
  if (value.is_object() && !HoldsForObject(s, value, root)) return false;
  return !value.is_array() || HoldsForArray(s, value, root);
}

// Writes by masks, towards an end after some tokens; "" if none came.
std::string Written(const std::shared_ptr<const Grammar>& grammar, const VocabularyTrie& vocabulary,
                    int32_t stop, Rng* rng) {
  Matcher matcher(grammar, vocabulary, {stop});
  std::string text;
  for (int step = 0; step < 400; ++step) {
    const std::span<const uint64_t> mask = matcher.Mask();
    std::vector<int32_t> allowed, ending;
    for (int32_t id = 0; id < vocabulary.vocab_size(); ++id) {
      if (!test::HasBit(mask, id)) continue;
      const std::string_view bytes = vocabulary.Bytes(id);
      allowed.push_back(id);
      if (bytes.size() == 1 && std::string_view("\"}]").find(bytes) != std::string_view::npos) {
        ending.push_back(id);
      }
    }
    const bool end = !ending.empty() && rng->Below(30) < static_cast<uint64_t>(step);
    if (step > 20 && test::HasBit(mask, stop)) return text;
    const std::vector<int32_t>& from = end ? ending : allowed;
    const int32_t id = from[rng->Below(from.size())];
    if (id == stop) return text;
    EXPECT_TRUE(matcher.Accept(id));
    text += vocabulary.Bytes(id);
  }
  return "";
}

// nlohmann keeps the last of equal names, and the grammar does not count them.
bool HasEqualNames(const std::string& text) {
  try {
    ParseJson(text, "text");
    return false;
  } catch (const Error& error) {
    EXPECT_NE(std::string_view(error.what()).find("duplicate"), std::string_view::npos)
        << text << error.what();
    return true;
  }
}

TEST(SchemaWalks, EndInValuesForWhichTheSchemaHolds) {
  const std::vector<std::string> tokens =
      test::ByteTokens({"{\"", "\":", "\": \"", "\"}", "\"a\": ", "\xC3\xA9", "ab", "abc", "\", \"",
                        ", ", "true", "null", "[[", "12", "-3", ".5", "\\u00e9", "q\\\""});
  const VocabularyTrie vocabulary(tokens);
  const auto stop = static_cast<int32_t>(tokens.size() - 1);
  Json schemas = Json::array();
  for (const Json& golden : ReadJsonFile(test::DataPath("golden/json_schemas.json"))) {
    schemas.push_back(golden.at("schema"));
  }
  for (const char* text :
       {R"({"$ref": "#/$defs/d", "$defs": {"d": {"type": "object", "properties": {
            "v": {"type": "integer", "minimum": -5, "maximum": 120},
            "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/d"}]}}, "required": ["next"],
            "additionalProperties": {"type": "boolean"}}}})",
        R"({"allOf": [{"$ref": "#/$defs/d"}, {"properties": {"b": {"minimum": 3}}}],
            "$defs": {"d": {"type": "object", "properties": {"b": {"type": ["integer", "null"]}},
            "required": ["b"]}}})",
        R"({"type": "number", "exclusiveMinimum": -1, "maximum": 2})"}) {
    for (int i = 0; i < 20; ++i) schemas.push_back(ParseJson(text, "test"));
  }
  Rng rng(1);
  int ended = 0;
  for (const Json& schema : schemas) {
    std::shared_ptr<const Grammar> grammar;
    const std::string error = test::ErrorOf([&] { grammar = JsonSchemaGrammar(schema, "s"); });
    if (error == "s: no text satisfies it") continue;
    ASSERT_EQ(error, "");
    for (int run = 0; run < 4; ++run) {
      const std::string text = Written(grammar, vocabulary, stop, &rng);
      if (text.empty() || HasEqualNames(text)) continue;
      EXPECT_TRUE(Holds(schema, ParseJson(text, "text"), schema)) << schema << ": " << text;
      ++ended;
    }
  }
  EXPECT_GT(ended, 600);
}

// Schemas that tools emit: nine of ten are held to, the rest is refused by name; what is written
// validates.
TEST(SchemaWalks, ValidateInPython) {
  if (std::system("python3 -c 'import jsonschema' >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "needs python3-jsonschema";
  }
  const std::vector<std::string> tokens = test::ByteTokens();
  const VocabularyTrie vocabulary(tokens);
  const auto stop = static_cast<int32_t>(tokens.size() - 1);
  Json schemas = Json::array();
  for (const Json& one : ReadJsonFile(test::DataPath("golden/emitted_schemas.json"))) {
    schemas.push_back(one.at(1));
  }
  const size_t emitted = schemas.size();
  for (const Json& golden : ReadJsonFile(test::DataPath("golden/json_schemas.json"))) {
    schemas.push_back(golden.at("schema"));
  }
  const std::string path = testing::TempDir() + "schema_walks.jsonl";
  std::ofstream walks(path);
  Rng rng(2);
  size_t held = 0, walked = 0;
  for (size_t i = 0; i < schemas.size(); ++i) {
    const Json& schema = schemas[i];
    std::shared_ptr<const Grammar> grammar;
    const std::string error = test::ErrorOf([&] { grammar = JsonSchemaGrammar(schema, "s"); });
    EXPECT_TRUE(error.empty() || error.find("support") != std::string::npos ||
                error == "s: no text satisfies it")
        << schema << ": " << error;
    if (grammar == nullptr) continue;
    held += i < emitted ? 1 : 0;
    bool ended = false;
    for (int run = 0; run < 5; ++run) {
      const std::string text = Written(grammar, vocabulary, stop, &rng);
      if (text.empty()) continue;
      ended = true;
      walks << Json::array({schema, text}).dump() << "\n";
    }
    walked += ended ? 1 : 0;
  }
  walks.close();
  std::printf("%zu of %zu schemas as tools emit them are held to\n", held, emitted);
  EXPECT_GE(held, emitted * 9 / 10);
  EXPECT_GE(walked, schemas.size() / 2);
  const std::string command =
      fmt::format("python3 {} {}", test::DataPath("golden/emitted_schemas.py"), path);
  EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace nibble
