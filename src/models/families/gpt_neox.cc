// SPDX-License-Identifier: Apache-2.0
// GPT-NeoX and Pythia (Black et al. 2022): attention and FFN side by side, heads turned in part.
#include "models/families/ungated.h"

namespace nibble {
namespace {

ModelConfig ParseGptNeox(const Json& config, const std::string& where) {
  Json llama = config;
  if (!config.contains("rope_parameters")) {  // the keys of transformers 4
    llama["partial_rotary_factor"] =
        JsonFindIn<double>(config, "rotary_pct", 1e-3, 1, where).value_or(0.25);
    llama["rope_theta"] =
        JsonFindIn<double>(config, "rotary_emb_base", 1, 1e12, where).value_or(10000.0);
  }
  const auto activation = JsonFind<std::string>(config, "hidden_act", where).value_or("gelu");
  const double eps = JsonFindIn<double>(config, "layer_norm_eps", 1e-12, 1, where).value_or(1e-5);
  const bool biases = JsonFind<bool>(config, "attention_bias", where).value_or(true);
  if (!biases) Fail("{}: attention_bias false is not supported", where);
  ModelConfig c = ParseUngated(llama, activation, eps, biases, where);
  c.parallel = JsonFind<bool>(config, "use_parallel_residual", where).value_or(true);
  return c;
}

std::string GptNeoxLinear(const ModelConfig&, int64_t layer, Role role) {
  const std::string prefix = fmt::format("gpt_neox.layers.{}.", layer);
  switch (role) {
    case Role::kEmbedding:
      return "gpt_neox.embed_in";
    case Role::kHead:
      return "embed_out";
    case Role::kO:
      return prefix + "attention.dense";
    case Role::kGate:
      return prefix + "mlp.dense_h_to_4h";
    case Role::kDown:
      return prefix + "mlp.dense_4h_to_h";
    default:
      return prefix + "attention.query_key_value";
  }
}

std::string GptNeoxVector(const ModelConfig&, int64_t layer, LayerVector norm) {
  return fmt::format("gpt_neox.layers.{}.{}_layernorm.weight", layer,
                     norm == LayerVector::kAttentionNorm ? "input" : "post_attention");
}

}  // namespace

const Family kGptNeox = {.model_type = "gpt_neox",
                         .parse = ParseGptNeox,
                         .linear = GptNeoxLinear,
                         .vector = GptNeoxVector,
                         .final_norm = "gpt_neox.final_layer_norm.weight",
                         .rows = GroupedRows,
                         .layer_norms = true};

}  // namespace nibble
