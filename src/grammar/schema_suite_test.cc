// SPDX-License-Identifier: Apache-2.0
// The official JSON-Schema-Test-Suite: no instance that a schema forbids is written. Its files are
// in the source package of Python's jsonschema (json/tests/draft2020-12); NIBBLE_SCHEMA_SUITE names
// the folder.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "grammar/grammar_testing.h"
#include "grammar/json_text.h"

namespace nibble {
namespace {

constexpr size_t kMaxTexts = 200;

// A value with the members of its objects in every order.
std::vector<Json> Orders(const Json& value) {
  if (!value.is_structured()) return {value};
  std::vector<Json> all = {value.is_object() ? Json::object() : Json::array()};
  std::vector<std::string> names;
  std::vector<std::vector<Json>> parts;
  for (const auto& item : value.items()) {
    names.push_back(item.key());
    parts.push_back(Orders(item.value()));
  }
  std::vector<size_t> order(names.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::vector<Json> found;
  do {
    std::vector<Json> open = {all[0]};
    for (const size_t i : order) {
      std::vector<Json> longer;
      for (const Json& one : open) {
        for (const Json& part : parts[i]) {
          Json more = one;
          value.is_object() ? more[names[i]] = part : (more.push_back(part), more.back());
          longer.push_back(std::move(more));
        }
      }
      open = std::move(longer);
    }
    found.insert(found.end(), open.begin(), open.end());
  } while (value.is_object() && found.size() < kMaxTexts &&
           std::next_permutation(order.begin(), order.end()));
  if (found.size() > kMaxTexts) found.resize(kMaxTexts);
  return found;
}

bool AcceptsSomeOrder(grammar::Automaton* automaton, const Json& value) {
  return std::ranges::any_of(
      Orders(value), [&](const Json& one) { return automaton->Accepts(grammar::JsonDump(one)); });
}

TEST(SchemaSuite, NothingThatIsForbiddenIsWritten) {
  const char* folder = std::getenv("NIBBLE_SCHEMA_SUITE");
  if (folder == nullptr) GTEST_SKIP() << "needs NIBBLE_SCHEMA_SUITE";
  int held = 0, all = 0, accepted = 0, valid = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    if (file.path().extension() != ".json") continue;
    for (const Json& group : ReadJsonFile(file.path())) {
      const std::string name =
          file.path().filename().string() + ": " + group.at("description").get<std::string>();
      ++all;
      std::shared_ptr<const Grammar> grammar;
      const std::string error =
          test::ErrorOf([&] { grammar = JsonSchemaGrammar(group.at("schema"), "schema"); });
      if (grammar == nullptr && error.find("satisf") == std::string::npos) {
        std::printf("refused: %s: %s\n", name.c_str(), error.c_str());
        continue;
      }
      ++held;
      for (const Json& test : group.at("tests")) {
        bool accepts = false;
        if (grammar != nullptr) {
          grammar::Automaton automaton(grammar);
          accepts = AcceptsSomeOrder(&automaton, test.at("data"));
        }
        if (!test.at("valid").get<bool>()) {
          EXPECT_FALSE(accepts) << name << ": " << test;
          continue;
        }
        ++valid;
        accepted += accepts ? 1 : 0;
        if (!accepts) std::printf("not written: %s: %s\n", name.c_str(), test.dump().c_str());
      }
    }
  }
  std::printf("%d of %d schemas are held to; of %d valid instances %d can be written\n", held, all,
              valid, accepted);
  EXPECT_GE(held, all * 9 / 10);
}

}  // namespace
}  // namespace nibble
