// SPDX-License-Identifier: Apache-2.0
// That the tables of keys say what the parsers do.
#include "models/import/config_keys.h"

#include <gmock/gmock.h>

#include <sstream>

#include "models/families/family.h"
#include "models/import/open_network.h"
#include "models/models_testing.h"
#include "models/network.h"
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

UnreadKeys Find(const Json& changes) {
  UnreadKeys found;
  FindUnreadConfigKeys(SmallConfig(changes), found);
  return found;
}

TEST(ConfigKeys, ThatStandForAnotherNetworkAreRefused) {
  const std::tuple<const char*, const char*, Json> cases[] = {
      {"qwen2", "is_causal", false},
      {"ministral3", "is_causal", false},
      {"gemma3_text", "use_bidirectional_attention", true},
      {"gemma3_text", "attn_logit_softcapping", 50.0},
      {"glm4_moe", "topk_group", 2},
      {"qwen3_moe", "use_qk_norm", false},
      {"qwen3_moe", "shared_expert_intermediate_size", 64}};
  for (const auto& [family, key, value] : cases) {
    EXPECT_THAT(Find({{"model_type", family}, {key, value}}).refused,
                ElementsAre(fmt::format("config.json: {} = {}", key, value.dump())));
  }
  EXPECT_THAT(Find({{"is_causal", true}, {"topk_group", 1}}).refused, IsEmpty());
  EXPECT_THAT(Find({{"model_type", "mixtral"}, {"mlp_bias", false}}).answers, IsEmpty());
  EXPECT_THAT(Find({{"model_type", "mixtral"}, {"mlp_bias", true}}).answers,
              ElementsAre("config.json: mlp_bias = true"));
  const std::string sees_all = "full_attention";
  EXPECT_THAT(Find({{"layer_types", {sees_all, sees_all}}}).answers, IsEmpty());
  EXPECT_THAT(Find({{"layer_types", {sees_all, "x"}}}).answers,
              ElementsAre(R"(config.json: layer_types = ["full_attention","x"])"));
  EXPECT_THAT(Find({{"rope_scaling", {{"type", "dynamic"}, {"alpha", 1000.0}}}}).refused,
              ElementsAre("config.json: rope_scaling.alpha = 1000.0"));
  EXPECT_THAT(Find({{"quantization_config",
                     {{"quant_method", "gptq"}, {"bits", 4}, {"is_marlin_format", true}}}})
                  .refused,
              ElementsAre("config.json: quantization_config.is_marlin_format = true"));
}

// Of the model's own files; that of a module named like the family is what transformers has itself.
TEST(ConfigKeys, CodeThatAModelBringsAlongIsTold) {
  const Json own = {{"AutoConfig", "configuration_phi3.Phi3Config"},
                    {"AutoModelForCausalLM", "them/model--modeling_phi3.Phi3ForCausalLM"}};
  EXPECT_THAT(Find({{"model_type", "phi3"}, {"auto_map", own}}).answers, IsEmpty());
  EXPECT_THAT(
      Find({{"auto_map", {{"AutoModel", "modeling_llama_encoder.LlamaEncoderModel"}}}}).answers,
      ElementsAre("config.json: auto_map.AutoModel = "
                  "\"modeling_llama_encoder.LlamaEncoderModel\""));
}

TEST(ConfigKeys, ArePlacedWhereTheyStand) {
  const Json each = {{"full_attention", {{"rope_type", "default"}, {"x", 1}}},
                     {"sliding_attention", {{"rope_theta", 1e4}}}};
  EXPECT_THAT(Find({{"model_type", "gemma3_text"}, {"rope_parameters", each}}).unknown,
              ElementsAre("config.json: rope_parameters.full_attention.x = 1"));
  const Json whole = {{"model_type", "gemma3"},
                      {"image_token_index", 7},
                      {"text_config", SmallConfig({{"model_type", "gemma3_text"}, {"y", 2}})}};
  UnreadKeys found;
  FindUnreadConfigKeys(whole, found);
  EXPECT_THAT(found.unknown, ElementsAre("config.json: y = 2"));
  EXPECT_THAT(Find({{"quantization_config", {{"quant_method", "awq"}, {"z", 3}}}}).unknown,
              ElementsAre("config.json: quantization_config.z = 3"));
}

// Once, and only of a model that opens.
TEST(ConfigKeys, ThatNothingReadsAreToldWhenAModelIsOpened) {
  const std::string directory = RandomModel("keys", SmallConfig({{"nobody_knows", 1}}));
  const auto reported = [&] {
    testing::internal::CaptureStderr();
    const std::string error = ErrorOf([&] {
      EXPECT_THAT(OpenNetwork(directory).unread.unknown,
                  ElementsAre("config.json: nobody_knows = 1"));
    });
    return testing::internal::GetCapturedStderr() + error;
  };
  EXPECT_EQ(reported(), fmt::format("nibble: {}: not known, and left alone: config.json: "
                                    "nobody_knows = 1\n",
                                    directory));
  EXPECT_EQ(reported(), "");
  EditJson(directory + "/config.json", [](Json& json) { json["is_causal"] = false; });
  EXPECT_EQ(reported(), directory + ": not supported: config.json: is_causal = false");
}

}  // namespace
}  // namespace nibble
