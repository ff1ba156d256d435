// SPDX-License-Identifier: Apache-2.0
// Falcon (Almazrouei et al. 2023): attention and FFN side by side, of one norm (7B, 11B) or of two
// (40B, 180B); older ones behind each other.
#include "models/families/ungated.h"

namespace nibble {
namespace {

ModelConfig ParseFalcon(const Json& config, const std::string& where) {
  Json llama = config;
  const auto rename = [&](const char* older, const char* name) {
    if (!llama.contains(name) && llama.contains(older)) llama[name] = llama[older];
  };
  rename("n_layer", "num_hidden_layers");
  rename("n_head", "num_attention_heads");
  rename("n_head_kv", "num_kv_heads");
  const auto flag = [&](const char* key, bool otherwise) {
    return JsonFind<bool>(config, key, where).value_or(otherwise);
  };
  for (const char* key : {"alibi", "apply_residual_connection_post_layernorm"}) {
    if (flag(key, false)) Fail("{}: {} is not supported", where, key);
  }
  const bool newer = flag("new_decoder_architecture", false);
  const int64_t heads = ParseExtent(llama, "num_attention_heads", kMaxWidth, where);
  if (newer) {
    rename("num_kv_heads", "num_key_value_heads");
  } else {
    llama["num_key_value_heads"] = flag("multi_query", true) ? 1 : heads;
  }
  if (llama.contains("ffn_hidden_size")) {
    llama["intermediate_size"] = llama["ffn_hidden_size"];
  } else {
    llama["intermediate_size"] = 4 * ParseExtent(config, "hidden_size", kMaxWidth / 4, where);
  }
  if (!llama.contains("max_position_embeddings")) llama["max_position_embeddings"] = 2048;
  const auto activation = JsonFind<std::string>(config, "activation", where).value_or("gelu");
  const double eps =
      JsonFindIn<double>(config, "layer_norm_epsilon", 1e-12, 1, where).value_or(1e-5);
  ModelConfig c = ParseUngated(llama, activation, eps, flag("bias", false), where);
  c.parallel = newer || flag("parallel_attn", true);
  const auto norms = JsonFindIn<int64_t>(config, "num_ln_in_parallel_attn", 1, 2, where);
  c.one_norm = c.parallel && norms.value_or(newer ? 2 : 1) == 1;
  return c;
}

std::string FalconLinear(const ModelConfig&, int64_t layer, Role role) {
  const std::string prefix = fmt::format("transformer.h.{}.", layer);
  switch (role) {
    case Role::kEmbedding:
      return "transformer.word_embeddings";
    case Role::kHead:
      return "lm_head";
    case Role::kO:
      return prefix + "self_attention.dense";
    case Role::kGate:
      return prefix + "mlp.dense_h_to_4h";
    case Role::kDown:
      return prefix + "mlp.dense_4h_to_h";
    default:
      return prefix + "self_attention.query_key_value";
  }
}

std::string FalconVector(const ModelConfig& config, int64_t layer, LayerVector norm) {
  const bool attention = norm == LayerVector::kAttentionNorm;
  const char* name = "input_layernorm";
  if (config.parallel && !config.one_norm) name = attention ? "ln_attn" : "ln_mlp";
  if (!config.parallel && !attention) name = "post_attention_layernorm";
  return fmt::format("transformer.h.{}.{}.weight", layer, name);
}

}  // namespace

const Family kFalcon = {.model_type = "falcon",
                        .parse = ParseFalcon,
                        .linear = FalconLinear,
                        .vector = FalconVector,
                        .final_norm = "transformer.ln_f.weight",
                        .rows = GroupedRows,
                        .layer_norms = true};

}  // namespace nibble
