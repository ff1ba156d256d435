// SPDX-License-Identifier: Apache-2.0
// Tests of what layers of one network differ in, by config.json, and of what a family refuses.
#include "models/families/family.h"
#include "models/import/open_network.h"
#include "models/models_testing.h"
#include "models/network.h"
#include "models/random_model_testing.h"

namespace nibble {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ModelConfig Parse(const Json& changes) {
  return ParseConfig(SmallConfig(changes), "c");
}

std::vector<int64_t> Windows(const ModelConfig& c) {
  std::vector<int64_t> windows;
  for (int64_t i = 0; i < c.layers; ++i) windows.push_back(c.spec(i).sliding_window);
  return windows;
}

TEST(LayerSpecs, WindowsFollowAPatternWhereNoTypesAreListed) {
  Json exaone = {{"model_type", "exaone4"},
                 {"num_hidden_layers", 5},
                 {"sliding_window", 7},
                 {"sliding_window_pattern", "LLG"}};
  const ModelConfig c = Parse(exaone);
  EXPECT_THAT(Windows(c), ElementsAre(7, 7, 0, 7, 7));
  EXPECT_EQ(c.spec(1).rope, 0);
  EXPECT_EQ(c.spec(2).rope, -1);  // those that see all keys have no positions
  exaone["sliding_window_pattern"] = 2;
  EXPECT_THAT(Windows(Parse(exaone)), ElementsAre(7, 0, 7, 0, 7));
  exaone["layer_types"] = Json(5, "full_attention");
  exaone["layer_types"][4] = "sliding_attention";
  EXPECT_THAT(Windows(Parse(exaone)), ElementsAre(0, 0, 0, 0, 7));
  exaone["sliding_window"] = nullptr;
  EXPECT_THAT(Windows(Parse(exaone)), ElementsAre(0, 0, 0, 0, 0));
  EXPECT_EQ(Parse(exaone).spec(0).rope, 0);
  EXPECT_THAT(Windows(Parse({{"model_type", "gemma2"}, {"sliding_window", 7}})), ElementsAre(7, 0));
  for (const char* key : {"sliding_window_pattern", "_sliding_window_pattern"}) {
    Json gemma = {{"model_type", "gemma3_text"}, {"num_hidden_layers", 4}, {"head_dim", 16}};
    gemma.update({{"sliding_window", 7}, {key, 3}});
    EXPECT_THAT(Windows(Parse(gemma)), ElementsAre(7, 7, 0, 7)) << key;
  }
  for (const char* pattern : {"", "L", "GL", "LGLG", "LXG"}) {
    exaone = {{"model_type", "exaone4"}, {"sliding_window", 7}};
    exaone["sliding_window_pattern"] = pattern;
    EXPECT_THAT(ErrorOf([&] { Parse(exaone); }), HasSubstr("sliding_window_pattern"));
  }
}

TEST(LayerSpecs, HeadsDifferByBothKindsOfConfig) {
  Json gemma = {{"model_type", "gemma4_text"},
                {"num_hidden_layers", 7},
                {"num_attention_heads", 4},
                {"num_key_value_heads", 2},
                {"head_dim", 16},
                {"global_head_dim", 24},
                {"num_global_key_value_heads", 1},
                {"hidden_size_per_layer_input", 0},
                {"sliding_window", 7}};
  ModelConfig c = Parse(gemma);
  EXPECT_THAT(Windows(c), ElementsAre(7, 7, 7, 7, 7, 0, 0)) << "the last one sees all";
  EXPECT_EQ(c.outputs(0, Role::kQ), 4 * 16);
  EXPECT_EQ(c.outputs(5, Role::kQ), 4 * 24);
  EXPECT_EQ(c.inputs(5, Role::kO), 4 * 24);
  EXPECT_EQ(c.width(5, LayerVector::kKeyNorm), 24);
  EXPECT_EQ(c.outputs(5, Role::kK), 2 * 24) << "fewer only where V is K";
  EXPECT_EQ(c.ropes[0].head_dim, 24);
  EXPECT_EQ(c.ropes[0].turned, 6);
  EXPECT_EQ(c.ropes[1].head_dim, 16);
  gemma["attention_k_eq_v"] = true;
  c = Parse(gemma);
  EXPECT_EQ(c.outputs(5, Role::kV), 24);
  EXPECT_EQ(SourceName(c, 5, Role::kV), "model.layers.5.self_attn.k_proj");
  EXPECT_EQ(SourceName(c, 4, Role::kV), "model.layers.4.self_attn.v_proj");
  gemma["per_layer_config"] = {{"5", {{"head_dim", 32}}},
                               {"6", {{"head_dim", 32}, {"num_key_value_heads", 4}}}};
  c = Parse(gemma);
  EXPECT_EQ(c.outputs(5, Role::kK), 2 * 32);
  EXPECT_EQ(c.outputs(6, Role::kK), 4 * 32);
  // transformers 5 writes the numbers of more than ten layers with two digits.
  gemma["per_layer_config"] = {{"05", {{"head_dim", 32}}}, {"06", {{"head_dim", 32}}}};
  EXPECT_EQ(Parse(gemma).outputs(5, Role::kK), 2 * 32);
  for (const Json& changes :
       {Json{{"sliding_window", nullptr}}, Json{{"hidden_size_per_layer_input", 256}},
        Json{{"num_kv_shared_layers", 2}}, Json{{"use_bidirectional_attention", "all"}},
        Json{{"per_layer_config", {{"5", {{"head_dim", -8}}}}}},
        Json{{"per_layer_config", {{"five", {{"head_dim", 32}}}}}},
        Json{{"per_layer_config", {{"5", {{"head_dim", 520}}}}}},
        Json{{"per_layer_config", {{"5", {{"num_key_value_heads", 3}}}}}},
        Json{{"per_layer_config", {{"0", {{"head_dim", 24}}}}}}}) {
    Json changed = gemma;
    changed.update(changes);
    EXPECT_THAT(ErrorOf([&] { Parse(changed); }), testing::StartsWith("c: ")) << changes;
  }
}

TEST(LayerSpecs, TheLastLayersReadKeysOfOthersOfTheirType) {
  const std::string sees_all = "full_attention", window = "sliding_attention";
  Json gemma = {{"model_type", "gemma4_text"},
                {"num_hidden_layers", 6},
                {"num_key_value_heads", 1},
                {"head_dim", 16},
                {"global_head_dim", 24},
                {"hidden_size_per_layer_input", 8},
                {"vocab_size_per_layer_input", 64},
                {"num_kv_shared_layers", 3},
                {"use_double_wide_mlp", true},
                {"layer_types", {window, sees_all, window, window, window, sees_all}}};
  const ModelConfig c = Parse(gemma);
  std::vector<int64_t> lenders;
  for (int64_t i = 0; i < c.layers; ++i) lenders.push_back(c.spec(i).kv_layer);
  EXPECT_THAT(lenders, ElementsAre(-1, -1, -1, 2, 2, 1));
  EXPECT_TRUE(c.lends_kv(1) && c.lends_kv(2) && !c.lends_kv(0));
  EXPECT_THAT(c.layer_roles(5), ElementsAre(Role::kQ, Role::kO, Role::kGate, Role::kUp, Role::kDown,
                                            Role::kLayerGate, Role::kLayerOutput));
  EXPECT_THAT(c.layer_vectors(5), testing::Not(testing::Contains(LayerVector::kKeyNorm)));
  EXPECT_EQ(c.outputs(2, Role::kGate), 96);
  EXPECT_EQ(c.inputs(3, Role::kDown), 2 * 96);
  EXPECT_EQ(c.ffn_size(), 2 * 96);
  EXPECT_EQ(c.outputs(0, Role::kLayerTable), 64 * 6);
  const int64_t inputs = (64 * 6 + 64 * 6 + 2 * 64 * 6) * 8 + 6 * 64 + 8;
  gemma["hidden_size_per_layer_input"] = 0;
  EXPECT_EQ(c.parameters() - Parse(gemma).parameters(), inputs);
  gemma["hidden_size_per_layer_input"] = 8;
  for (const Json& changes :
       {Json{{"num_kv_shared_layers", 6}}, Json{{"num_kv_shared_layers", -1}},
        Json{{"num_kv_shared_layers", 5}}, Json{{"hidden_size_per_layer_input", 12}},
        Json{{"vocab_size_per_layer_input", 65}},
        Json{{"per_layer_config",
              {{"1", {{"head_dim", 24}}},
               {"5", {{"head_dim", 24}, {"num_key_value_heads", 2}}}}}}}) {
    Json changed = gemma;
    changed.update(changes);
    EXPECT_THAT(ErrorOf([&] { Parse(changed); }), testing::StartsWith("c: ")) << changes;
  }
}

TEST(LayerSpecs, ExpertsMayStandBesideAnFfn) {
  Json gemma = {{"model_type", "gemma4_text"},
                {"head_dim", 16},
                {"global_head_dim", 24},
                {"sliding_window", 7},
                {"hidden_size_per_layer_input", 0},
                {"enable_moe_block", true},
                {"num_experts", 3},
                {"top_k_experts", 2},
                {"moe_intermediate_size", 40}};
  const ModelConfig c = Parse(gemma);
  const std::vector<Role> roles = c.layer_roles(1);
  ASSERT_EQ(roles.size(), 7u + 1 + 3 * 3);
  EXPECT_EQ(roles[6], Role::kDown);
  EXPECT_EQ(roles[7], Role::kRouter) << "behind the FFN, in front of experts";
  EXPECT_EQ(roles.back(), OfExpert(Role::kDown, 2));
  EXPECT_EQ(c.NormInFront(Role::kUp), LayerVector::kMlpNorm);
  EXPECT_EQ(c.NormInFront(Role::kRouter), LayerVector::kRouterNorm);
  EXPECT_EQ(c.NormInFront(OfExpert(Role::kGate, 1)), LayerVector::kExpertsNorm);
  EXPECT_EQ(c.NormInFront(Role::kDown), std::nullopt);
  EXPECT_EQ(c.width(0, LayerVector::kExpertScales), 3);
  EXPECT_EQ(c.ffn_size(), 96);
  EXPECT_EQ(SourceName(c, 1, OfExpert(Role::kUp, 2)), "model.layers.1.experts.gate_up_proj");
  Json dense = gemma;
  dense["enable_moe_block"] = false;
  const int64_t norms = 4 * 64, experts = 3 * 3 * 64 * 40;
  EXPECT_EQ(c.parameters() - Parse(dense).parameters(), 2 * (3 * 64 + 3 + norms + experts));
  EXPECT_EQ(Parse(dense).NormInFront(Role::kGate), LayerVector::kMlpNorm);
  for (const auto& [key, value] : {std::pair("num_experts", 0),
                                   {"num_experts", 513},
                                   {"top_k_experts", 4},
                                   {"top_k_experts", 0},
                                   {"moe_intermediate_size", 0}}) {
    Json changed = gemma;
    changed[key] = value;
    EXPECT_THAT(ErrorOf([&] { Parse(changed); }), HasSubstr(key));
  }
  gemma["moe_intermediate_size"] = 200;
  EXPECT_EQ(Parse(gemma).ffn_size(), 200);
}

TEST(LayerSpecs, SomeLayersOfAMixtureAreDense) {
  const Json qwen = {
      {"model_type", "qwen3_moe"},     {"num_hidden_layers", 4},      {"num_experts", 3},
      {"num_experts_per_tok", 2},      {"moe_intermediate_size", 40}, {"decoder_sparse_step", 2},
      {"mlp_only_layers", {1, 9, -1}}, {"tie_word_embeddings", true}};
  const ModelConfig c = Parse(qwen);
  // Every second has experts, but layer 1.
  for (const int64_t layer : {0, 1, 2}) EXPECT_FALSE(c.has_experts(layer)) << layer;
  EXPECT_TRUE(c.has_experts(3));
  EXPECT_EQ(c.layer_roles(1).size(), 7u);
  EXPECT_EQ(c.layer_roles(3).size(), 5u + 3 * 3);
  EXPECT_EQ(c.outputs(0, Role::kGate), c.intermediate_size);
  EXPECT_EQ(c.outputs(0, OfExpert(Role::kGate, 2)), 40);
  EXPECT_EQ(c.ffn_size(), std::max<int64_t>(c.intermediate_size, 40));
  const int64_t h = c.hidden_size, q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  const int64_t attention = 2 * h * q + 2 * h * kv + 2 * h + 2 * c.head_dim;
  EXPECT_EQ(c.parameters(), 4 * attention + 3 * 3 * h * c.intermediate_size +
                                (3 * h + 3 * 3 * h * 40) + h + c.vocab_size * h);
}

TEST(LayerSpecs, ASharedExpertIsTheLastAndOnlyMixturesHaveARoutersBias) {
  const Json glm = {{"model_type", "glm4_moe"},    {"num_hidden_layers", 2},
                    {"first_k_dense_replace", 1},  {"n_routed_experts", 4},
                    {"n_shared_experts", 1},       {"num_experts_per_tok", 2},
                    {"moe_intermediate_size", 40}, {"n_group", 1}};
  const ModelConfig c = Parse(glm);
  EXPECT_EQ(SourceName(c, 1, OfExpert(Role::kUp, 3)), "model.layers.1.mlp.experts.3.up_proj");
  EXPECT_EQ(SourceName(c, 1, OfExpert(Role::kUp, 4)), "model.layers.1.mlp.shared_experts.up_proj");
  EXPECT_EQ(c.layer_roles(1).back(), OfExpert(Role::kDown, 4));
  EXPECT_EQ(c.layer_vectors(1).size(), c.layer_vectors(0).size() + 1);
  for (const auto& [key, value] : {std::pair("n_group", 2), {"n_shared_experts", 2}}) {
    Json other = glm;
    other[key] = value;
    EXPECT_THAT(ErrorOf([&] { Parse(other); }), HasSubstr(key));
  }
}

// Three layers, the last of which guesses further tokens.
TEST(OpenNetwork, LayersBehindTheLastArePassedOverWhereTheConfigNamesThem) {
  const std::string directory =
      RandomModel("next_tokens", SmallConfig({{"model_type", "llama"}, {"num_hidden_layers", 3}}));
  EditJson(directory + "/config.json", [](Json& json) { json["num_hidden_layers"] = 2; });
  EXPECT_THAT(ErrorOf([&] { OpenNetwork(directory); }), HasSubstr("model.layers.2."));
  EditJson(directory + "/config.json", [](Json& json) { json["num_nextn_predict_layers"] = 1; });
  EXPECT_EQ(OpenNetwork(directory).layers.size(), 2u);
}

TEST(LayerNormFamilies, ReadOlderKeysAndRefuseWhatTheyLack) {
  const Json falcon = {{"model_type", "falcon"}, {"hidden_size", 64},
                       {"n_layer", 3},           {"n_head", 8},
                       {"vocab_size", 64},       {"multi_query", true}};
  const ModelConfig c = ParseConfig(falcon, "c");
  EXPECT_EQ(c.layers, 3);
  EXPECT_EQ(c.heads, 8);
  EXPECT_EQ(c.kv_heads, 1);
  EXPECT_EQ(c.intermediate_size, 4 * 64);
  EXPECT_EQ(c.context, 2048);
  EXPECT_TRUE(c.parallel && c.one_norm && c.gating.alone && !c.tied_head);
  const Json opt = SmallConfig({{"model_type", "opt"}, {"ffn_dim", 96}});
  const Json neox = SmallConfig({{"model_type", "gpt_neox"}});
  const std::tuple<Json, const char*, Json> cases[] = {{falcon, "alibi", true},
                                                       {falcon, "activation", "swish"},
                                                       {falcon, "num_ln_in_parallel_attn", 3},
                                                       {opt, "do_layer_norm_before", false},
                                                       {opt, "enable_bias", false},
                                                       {opt, "word_embed_proj_dim", 32},
                                                       {opt, "ffn_dim", 0},
                                                       {neox, "attention_bias", false},
                                                       {neox, "rotary_pct", 0}};
  for (const auto& [config, key, value] : cases) {
    Json other = config;
    other[key] = value;
    const std::string error = ErrorOf([&] { ParseConfig(other, "c"); });
    EXPECT_THAT(error, HasSubstr(key == std::string("rotary_pct") ? "rotary" : key));
  }
}

TEST(LayerNormFamilies, CodesOfOthersAreRefused) {
  const std::string directory =
      RandomModel("opt-codes", SmallConfig({{"model_type", "opt"}, {"ffn_dim", 96}}));
  EditJson(directory + "/config.json", [](Json& json) {
    json["quantization_config"] = {{"quant_method", "gptq"},
                                   {"bits", 4},
                                   {"group_size", 32},
                                   {"desc_act", false},
                                   {"sym", true}};
  });
  EXPECT_THAT(ErrorOf([&] { OpenNetwork(directory); }), HasSubstr("LayerNorms"));
}

}  // namespace
}  // namespace nibble
