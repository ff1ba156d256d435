// SPDX-License-Identifier: Apache-2.0
// Models with random weights, as people have them on disk, for tests of any family.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/half.h"
#include "base/rng.h"
#include "io/safetensors.h"
#include "models/config.h"
#include "models/families/family.h"

namespace nibble {

// Two layers of a Llama; with other keys, or some of these changed, another family.
inline Json SmallConfig(const Json& changes) {
  Json config = {{"model_type", "llama"},    {"hidden_size", 64},
                 {"intermediate_size", 96},  {"num_hidden_layers", 2},
                 {"num_attention_heads", 4}, {"num_key_value_heads", 2},
                 {"vocab_size", 64},         {"max_position_embeddings", 128},
                 {"rms_norm_eps", 1e-5},     {"tie_word_embeddings", true}};
  config.update(changes);
  return config;
}

// A model of a family. Those of FamilyModels are of every family, and have numbers that tests of
// fewer would miss.
struct FamilyModel {
  const char* name;
  Json changes;  // of SmallConfig
};
inline std::vector<FamilyModel> FamilyModels() {
  const Json yarn = {{"rope_type", "yarn"},
                     {"rope_theta", 1e5},
                     {"factor", 16.0},
                     {"beta_fast", 32.0},
                     {"beta_slow", 1.0},
                     {"truncate", false},
                     {"original_max_position_embeddings", 64}};
  Json ministral3 = yarn;
  ministral3.update({{"mscale", 1.0}, {"mscale_all_dim", 1.0}, {"llama_4_scaling_beta", 0.1}});
  const Json gemma4 = {
      {"full_attention",
       {{"rope_type", "proportional"}, {"rope_theta", 1e6}, {"partial_rotary_factor", 0.25}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}};
  const Json longrope = {{"rope_type", "longrope"},
                         {"rope_theta", 1e4},
                         {"partial_rotary_factor", 0.75},
                         {"original_max_position_embeddings", 64},
                         {"short_factor", {1.0, 1.1, 1.2, 1.3, 1.4, 1.5}},
                         {"long_factor", {1.0, 1.5, 2.0, 2.5, 3.0, 4.5}}};
  return {
      {"llama_odd_heads",
       {{"num_attention_heads", 14},
        {"num_key_value_heads", 2},
        {"head_dim", 8},
        {"hidden_size", 72},
        {"attention_bias", true}}},
      {"llama_yarn", {{"rope_parameters", yarn}}},
      {"mistral", {{"model_type", "mistral"}, {"sliding_window", 5}, {"head_dim", 24}}},
      {"ministral",
       {{"model_type", "ministral"},
        {"sliding_window", 5},
        {"layer_types", {"full_attention", "sliding_attention"}}}},
      {"qwen2", {{"model_type", "qwen2"}, {"num_attention_heads", 6}, {"head_dim", 16}}},
      {"qwen2_windows",
       {{"model_type", "qwen2"},
        {"use_sliding_window", true},
        {"sliding_window", 4},
        {"layer_types", {"full_attention", "sliding_attention"}}}},
      {"qwen3",
       {{"model_type", "qwen3"},
        {"head_dim", 32},
        {"num_attention_heads", 5},
        {"num_key_value_heads", 1},
        {"tie_word_embeddings", false}}},
      {"qwen3_moe",
       {{"model_type", "qwen3_moe"},
        {"num_experts", 6},
        {"num_experts_per_tok", 3},
        {"moe_intermediate_size", 40},
        {"norm_topk_prob", false}}},
      {"qwen3_moe_dense",
       {{"model_type", "qwen3_moe"},
        {"num_hidden_layers", 3},
        {"num_experts", 4},
        {"num_experts_per_tok", 2},
        {"moe_intermediate_size", 40},
        {"mlp_only_layers", {0}},
        {"decoder_sparse_step", 2},
        {"norm_topk_prob", true}}},
      {"glm4_moe",
       {{"model_type", "glm4_moe"},
        {"num_hidden_layers", 3},
        {"first_k_dense_replace", 1},
        {"attention_bias", true},
        {"use_qk_norm", true},
        {"n_routed_experts", 6},
        {"n_shared_experts", 1},
        {"num_experts_per_tok", 3},
        {"moe_intermediate_size", 40},
        {"norm_topk_prob", true},
        {"routed_scaling_factor", 1.5},
        {"tie_word_embeddings", false},
        {"rope_parameters", {{"partial_rotary_factor", 0.5}}}}},
      {"olmo2",
       {{"model_type", "olmo2"},
        {"num_attention_heads", 6},
        {"num_key_value_heads", 3},
        {"head_dim", 16},
        {"tie_word_embeddings", false}}},
      {"exaone4",
       {{"model_type", "exaone4"},
        {"num_attention_heads", 6},
        {"num_key_value_heads", 3},
        {"head_dim", 16},
        {"sliding_window", 5},
        {"layer_types", {"sliding_attention", "full_attention"}},
        {"tie_word_embeddings", false}}},
      {"smollm3",
       {{"model_type", "smollm3"},
        {"num_attention_heads", 1},
        {"num_key_value_heads", 1},
        {"head_dim", 40},
        {"no_rope_layers", {0, 1}}}},
      {"phi3",
       {{"model_type", "phi3"}, {"sliding_window", nullptr}, {"rope_parameters", longrope}}},
      {"granite",
       {{"model_type", "granite"},
        {"residual_multiplier", 0.3},
        {"embedding_multiplier", 5.0},
        {"attention_multiplier", 0.2},
        {"logits_scaling", 3.0}}},
      {"gemma2",
       {{"model_type", "gemma2"},
        {"head_dim", 16},
        {"sliding_window", 5},
        {"query_pre_attn_scalar", 24},
        {"attn_logit_softcapping", 2.0},
        {"final_logit_softcapping", 5.0},
        {"layer_types", {"sliding_attention", "full_attention"}}}},
      {"gemma3",
       {{"model_type", "gemma3_text"},
        {"num_hidden_layers", 3},
        {"head_dim", 24},
        {"sliding_window", 5},
        {"query_pre_attn_scalar", 24},
        {"layer_types", {"sliding_attention", "full_attention", "sliding_attention"}},
        {"rope_parameters",
         {{"full_attention", {{"rope_type", "linear"}, {"rope_theta", 1e6}, {"factor", 8.0}}},
          {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}}}}},
      {"gemma4",
       {{"model_type", "gemma4_text"},
        {"num_hidden_layers", 3},
        {"num_attention_heads", 6},
        {"num_key_value_heads", 3},
        {"num_global_key_value_heads", 2},
        {"head_dim", 16},
        {"global_head_dim", 40},
        {"attention_k_eq_v", true},
        {"hidden_size_per_layer_input", 0},
        {"sliding_window", 5},
        {"final_logit_softcapping", 5.0},
        {"layer_types", {"sliding_attention", "sliding_attention", "full_attention"}},
        {"rope_parameters", gemma4}}},
      {"gemma4_shared_keys",
       {{"model_type", "gemma4_text"},
        {"num_hidden_layers", 4},
        {"num_attention_heads", 4},
        {"num_key_value_heads", 1},
        {"head_dim", 16},
        {"global_head_dim", 24},
        {"hidden_size_per_layer_input", 0},
        {"num_kv_shared_layers", 2},
        {"use_double_wide_mlp", true},
        {"sliding_window", 5},
        {"layer_types",
         {"full_attention", "sliding_attention", "sliding_attention", "full_attention"}},
        {"rope_parameters", gemma4}}},
      {"gemma4_layer_inputs",
       {{"model_type", "gemma4_text"},
        {"num_hidden_layers", 3},
        {"head_dim", 16},
        {"global_head_dim", 24},
        {"hidden_size_per_layer_input", 24},
        {"vocab_size_per_layer_input", 64},
        {"num_kv_shared_layers", 1},
        {"sliding_window", 5},
        {"layer_types", {"sliding_attention", "full_attention", "full_attention"}},
        {"rope_parameters", gemma4}}},
      {"gemma4_experts",
       {{"model_type", "gemma4_text"},
        {"hidden_size", 72},
        {"intermediate_size", 88},
        {"num_hidden_layers", 2},
        {"num_attention_heads", 6},
        {"num_key_value_heads", 3},
        {"num_global_key_value_heads", 2},
        {"head_dim", 16},
        {"global_head_dim", 24},
        {"attention_k_eq_v", true},
        {"hidden_size_per_layer_input", 0},
        {"enable_moe_block", true},
        {"num_experts", 6},
        {"top_k_experts", 3},
        {"moe_intermediate_size", 40},
        {"sliding_window", 5},
        {"layer_types", {"sliding_attention", "full_attention"}},
        {"rope_parameters", gemma4}}},
      {"gpt_oss",
       {{"model_type", "gpt_oss"},
        {"head_dim", 24},
        {"num_local_experts", 5},
        {"num_experts_per_tok", 2},
        {"sliding_window", 5},
        {"swiglu_limit", 0.8},
        {"tie_word_embeddings", false},
        {"rope_parameters", yarn}}},
      {"glm4",
       {{"model_type", "glm4"},
        {"attention_bias", true},
        {"tie_word_embeddings", false},
        {"rope_parameters", {{"partial_rotary_factor", 0.5}}}}},
      {"ministral3",
       {{"model_type", "ministral3"},
        {"head_dim", 24},
        {"tie_word_embeddings", false},
        {"rope_parameters", ministral3}}},
      {"gpt_neox",
       {{"model_type", "gpt_neox"}, {"num_attention_heads", 2}, {"num_key_value_heads", nullptr}}},
      {"gpt_neox_sequential",
       {{"model_type", "gpt_neox"},
        {"num_attention_heads", 2},
        {"num_key_value_heads", nullptr},
        {"use_parallel_residual", false}}},
      {"falcon_two_norms",
       {{"model_type", "falcon"},
        {"new_decoder_architecture", true},
        {"num_kv_heads", 2},
        {"ffn_hidden_size", 96}}},
      {"falcon_one_norm",
       {{"model_type", "falcon"}, {"new_decoder_architecture", false}, {"bias", true}}},
      {"falcon_sequential",
       {{"model_type", "falcon"}, {"new_decoder_architecture", false}, {"parallel_attn", false}}},
      {"opt", {{"model_type", "opt"}, {"ffn_dim", 96}, {"num_key_value_heads", nullptr}}},
  };
}

// Changes a tensor's values before they are written.
using TensorChange = std::function<void(const std::string& tensor, std::span<const int64_t> shape,
                                        std::span<float> values)>;

// Writes bf16 weights of the size that keeps activations near 1 into a temporary folder `name`.
inline std::string RandomModel(const std::string& name, const Json& config,
                               const TensorChange& change = {}) {
  const auto dir = std::filesystem::path(testing::TempDir()) / name;
  std::filesystem::create_directories(dir);
  std::ofstream(dir / "config.json") << config.dump();
  const std::string where = "test";
  const ModelConfig c = ParseConfig(config, where);
  const Family& family = FamilyOf(config, where);
  std::vector<SafetensorsWriter::Entry> entries;
  std::set<std::string> known;
  const auto add = [&](const std::string& tensor, std::vector<int64_t> shape) {
    if (known.insert(tensor).second) entries.push_back({tensor, DType::kBf16, std::move(shape)});
  };
  const auto add_linear = [&](int64_t layer, Role role) {
    const RowBlock block = family.rows == nullptr ? RowBlock{} : family.rows(c, role);
    const std::string linear = family.linear(c, layer, role);
    if (block.stacked > 1) {
      add(linear, ShapeOf(block, c.inputs(layer, role)));
      if (c.has_bias(role)) add(linear + "_bias", {block.stacked, block.total / block.stacked});
      return;
    }
    const int64_t rows = block.total > 0 ? block.total : c.outputs(layer, role);
    add(linear + ".weight", {rows, c.inputs(layer, role)});
    // Norms' biases become everyone's, but the file's are those that it says.
    const bool own = !family.layer_norms || (c.has_bias(Role::kO) && role != Role::kHead);
    if (own && c.has_bias(role)) add(linear + ".bias", {rows});
  };
  const auto add_norm = [&](const std::string& tensor, int64_t width) {
    add(tensor, {width});
    if (!family.layer_norms) return;
    add(tensor.substr(0, tensor.size() - std::string_view("weight").size()) + "bias", {width});
  };
  add_linear(0, Role::kEmbedding);
  if (!c.tied_head) add_linear(0, Role::kHead);
  add_norm(std::string(family.final_norm), c.hidden_size);
  if (c.learned_positions) {
    add(std::string(family.positions), {family.unused_positions + c.context, c.hidden_size});
  }
  if (c.layer_input_size > 0) {
    add(family.linear(c, 0, Role::kLayerTable) + ".weight",
        {c.vocab_size, c.layers * c.layer_input_size});
    add_linear(0, Role::kLayerProjection);
    add_norm(std::string(family.layer_input_norm), c.layer_input_size);
  }
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    for (LayerVector norm : c.layer_vectors(layer))
      add_norm(family.vector(c, layer, norm), c.width(layer, norm));
    for (Role role : c.layer_roles(layer)) add_linear(layer, role);
  }
  Rng rng(11);
  SafetensorsWriter writer((dir / "model.safetensors").string(), entries);
  for (const auto& entry : entries) {
    size_t count = 1;
    for (int64_t extent : entry.shape) count *= static_cast<size_t>(extent);
    std::vector<float> values(count);
    const bool transposed = family.rows != nullptr && entry.shape.size() == 3 &&
                            family.rows(c, OfExpert(Role::kGate, 0)).transposed;
    const int64_t inputs = transposed ? entry.shape[1] : entry.shape.back();
    const double size = entry.shape.size() == 1 ? 1 : 1.5 / std::sqrt(static_cast<double>(inputs));
    for (float& v : values) v = static_cast<float>(rng.Normal() * size);
    if (change) change(entry.name, entry.shape, values);
    std::vector<uint16_t> halves(count);
    std::ranges::transform(values, halves.begin(), Bf16FromF32);
    writer.Append(std::as_bytes(std::span(halves)));
  }
  writer.Finish();
  return dir.string();
}

}  // namespace nibble
