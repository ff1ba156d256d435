// SPDX-License-Identifier: Apache-2.0
#include "measure/random_network.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "engine/session.h"
#include "models/checkpoint/manifest.h"
#include "models/families/family.h"
#include "models/families/shapes.h"
#include "models/import/open_network.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

Json SmallJson(const char* family) {
  return {{"model_type", family},     {"hidden_size", 128},
          {"intermediate_size", 352}, {"num_hidden_layers", 2},
          {"num_attention_heads", 4}, {"num_key_value_heads", 2},
          {"vocab_size", 100},        {"max_position_embeddings", 64},
          {"rms_norm_eps", 1e-5}};
}

std::vector<float> LogitsOf(Network network) {
  Model model(std::move(network), MakeBackend("cpu", false));
  Session session(model);
  const std::vector<int32_t> ids = {3, 1, 4, 1, 5};
  const auto logits = session.Append(ids);
  return {logits.begin(), logits.end()};
}

std::vector<float> Logits(const ModelConfig& config, const Recipe& recipe, uint64_t seed) {
  return LogitsOf(RandomNetwork(config, recipe, seed));
}

TEST(RandomNetworkTest, RunsAndDependsOnItsSeed) {
  for (const char* family : {"llama", "qwen2", "qwen3"}) {
    const ModelConfig config = ParseConfig(SmallJson(family), family);
    Recipe wide = kQuarotRecipe;
    wide.weights.bits = wide.activations.bits = wide.k.bits = wide.v.bits = 16;
    for (const Recipe& recipe : {kQuarotRecipe, wide}) {
      const std::vector<float> logits = Logits(config, recipe, 1);
      double sum = 0, squares = 0;
      for (float x : logits) {
        ASSERT_TRUE(std::isfinite(x));
        sum += x;
        squares += static_cast<double>(x) * x;
      }
      const double mean = sum / 100, variance = squares / 100 - mean * mean;
      EXPECT_GT(variance, 0.1);  // about 1 by the choice of scales
      EXPECT_LT(variance, 10);
      EXPECT_EQ(logits, Logits(config, recipe, 1));
      EXPECT_NE(logits, Logits(config, recipe, 2));
    }
  }
}

TEST(RandomNetworkTest, LayersHaveHeadsOfTheirOwn) {
  Json json = SmallJson("gemma4_text");
  json.update({{"num_hidden_layers", 3},
               {"head_dim", 32},
               {"global_head_dim", 64},
               {"num_global_key_value_heads", 1},
               {"attention_k_eq_v", true},
               {"hidden_size_per_layer_input", 0}});
  const ModelConfig config = ParseConfig(json, "gemma4");
  const Network net = RandomNetwork(config, kQuarotRecipe, 1);
  ASSERT_NE(config.outputs(0, Role::kQ), config.outputs(2, Role::kQ));
  for (int64_t i = 0; i < config.layers; ++i) {
    for (const auto& [role, linear] : net.layers[static_cast<size_t>(i)].linears) {
      EXPECT_EQ(linear.weights.rows, config.outputs(i, role)) << i << RoleName(role);
      EXPECT_EQ(linear.weights.cols, config.inputs(i, role)) << i << RoleName(role);
    }
  }
}

TEST(RandomNetworkTest, ExpertsStandBesideAnFfn) {
  Json json = SmallJson("gemma4_text");
  json.update({{"head_dim", 32},
               {"global_head_dim", 64},
               {"hidden_size_per_layer_input", 0},
               {"enable_moe_block", true},
               {"num_experts", 4},
               {"top_k_experts", 2},
               {"moe_intermediate_size", 96}});
  const ModelConfig config = ParseConfig(json, "gemma4");
  Network net = RandomNetwork(config, kW4a8Recipe, 1);
  for (const Role role : config.layer_roles(1)) {
    EXPECT_EQ(net.layers[1][role].weights.rows, config.outputs(1, role)) << RoleName(role);
  }
  for (const float x : LogitsOf(std::move(net))) ASSERT_TRUE(std::isfinite(x));
}

TEST(RandomNetworkTest, WrittenCheckpointIsTheSameNetwork) {
  const fs::path directory = fs::path(testing::TempDir()) / "random_checkpoint";
  fs::remove_all(directory);
  for (const char* family : {"llama", "qwen3"}) {
    fs::remove_all(directory);
    const Json config = SmallJson(family);
    WriteRandomCheckpoint(config, kQuarotRecipe, 3, directory.string());
    EXPECT_THROW(WriteRandomCheckpoint(config, kQuarotRecipe, 3, directory.string()), Error);
    EXPECT_GT(VerifyManifest(directory.string()), 0);
    EXPECT_EQ(LogitsOf(OpenNetwork(directory.string())),
              Logits(ParseConfig(config, family), kQuarotRecipe, 3));
  }
  fs::remove_all(directory);
}

TEST(RandomNetworkTest, KnowsItsShapes) {
  EXPECT_EQ(FindShape("llama2-7b").intermediate_size, 11008);
  EXPECT_EQ(FindShape("llama2-70b").kv_heads, 8);
  EXPECT_EQ(FindShape("qwen3-30b-a3b").expert_size, 768);
  EXPECT_THROW(FindShape("llama9"), Error);
}

}  // namespace
}  // namespace nibble
