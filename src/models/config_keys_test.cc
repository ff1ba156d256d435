// SPDX-License-Identifier: Apache-2.0
// That the tables of keys say what the parsers do.
#include "models/config_keys.h"

#include <gmock/gmock.h>

#include <sstream>

#include "models/models_testing.h"
#include "models/random_model_testing.h"

namespace nibble {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::set<std::string> Words(std::string_view text) {
  std::istringstream stream{std::string(text)};
  std::set<std::string> words;
  for (std::string word; stream >> word;) words.insert(word);
  return words;
}

// Whether a value that no field has changes what the parser says.
bool Reads(const Json& config, const std::string& key) {
  const std::string usual = ErrorOf([&] { ParseConfig(config, "c"); });
  for (const Json& value : {Json("?"), Json({{"?", 1}})}) {
    Json other = config;
    other[key] = value;
    if (ErrorOf([&] { ParseConfig(other, "c"); }) != usual) return true;
  }
  return false;
}

// Each family as tests have it, and with what makes it look at keys that it passes over there.
std::vector<Json> Configs() {
  std::vector<Json> configs;
  for (const FamilyModel& model : FamilyModels()) configs.push_back(SmallConfig(model.changes));
  const Json windows = {{"use_sliding_window", true}, {"sliding_window", 4}};
  for (const char* family : {"qwen2", "qwen3", "smollm3"}) {
    Json config = SmallConfig(windows);
    config["model_type"] = family;
    configs.push_back(config);
  }
  const Json mixture = {{"num_experts_per_tok", 2}, {"moe_intermediate_size", 40}};
  for (const char* experts : {"num_experts", "num_local_experts"}) {
    Json config = SmallConfig(windows);
    config.update(mixture);
    config[experts] = 4;
    config["model_type"] = "qwen3_moe";
    configs.push_back(config);
  }
  configs.push_back(SmallConfig(
      {{"model_type", "mixtral"}, {"num_local_experts", 4}, {"num_experts_per_tok", 2}}));
  configs.push_back(
      SmallConfig({{"model_type", "gpt_oss"}, {"num_local_experts", 4}, {"experts_per_token", 2}}));
  for (const char* pattern : {"sliding_window_pattern", "_sliding_window_pattern"}) {
    configs.push_back(SmallConfig({{"model_type", "gemma3_text"}, {"head_dim", 16}, {pattern, 2}}));
  }
  configs.push_back(SmallConfig({{"model_type", "exaone4"}, {"sliding_window", 7}}));
  Json gemma4 = SmallConfig({{"model_type", "gemma4_text"}, {"head_dim", 16}});
  gemma4.update({{"hidden_size_per_layer_input", 0}, {"per_layer_config", Json::object()}});
  configs.push_back(gemma4);
  configs.push_back({{"model_type", "falcon"},
                     {"hidden_size", 64},
                     {"n_layer", 3},
                     {"n_head", 8},
                     {"n_head_kv", 2},
                     {"vocab_size", 64},
                     {"new_decoder_architecture", true}});
  return configs;
}

TEST(ConfigKeys, AreReadByTheFamiliesThatSaySoAndByNoOther) {
  std::map<std::string, std::set<std::string>> declared, read;
  std::set<std::string> all;
  for (const Json& config : Configs()) {
    const std::string family = config["model_type"];
    declared[family] = Words(KeysReadBy(family));
    all.insert(declared[family].begin(), declared[family].end());
  }
  EXPECT_GT(declared.size(), 20u);
  for (const std::string& key : Words(KeysReadByAll())) all.erase(key);
  for (const Json& config : Configs()) {
    for (const std::string& key : all) {
      if (Reads(config, key)) read[config["model_type"]].insert(key);
    }
  }
  for (const auto& [family, keys] : declared) EXPECT_EQ(read[family], keys) << family;
}

TEST(ConfigKeys, OfNoFamilyHereAreToldOrRefused) {
  for (const FamilyModel& model : FamilyModels()) {
    UnreadKeys found;
    FindUnreadConfigKeys(SmallConfig(model.changes), found);
    EXPECT_THAT(found.refused, IsEmpty()) << model.name;
    EXPECT_THAT(found.answers, IsEmpty()) << model.name;
    EXPECT_THAT(found.unknown, IsEmpty()) << model.name;
  }
}

}  // namespace
}  // namespace nibble
