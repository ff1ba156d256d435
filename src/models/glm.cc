// SPDX-License-Identifier: Apache-2.0
// GLM 4: norms in front of and behind attention and FFN, gate and up in one tensor, half of each
// head turned in neighbouring pairs.
#include "models/llama.h"

namespace nibble {
namespace {

ModelConfig ParseGlm4(const Json& config, const std::string& where) {
  Json whole = config;
  if (!config.contains("rope_parameters") && !config.contains("partial_rotary_factor")) {
    whole["partial_rotary_factor"] = 0.5;
  }
  ModelConfig c = ParseLlama(whole, where);
  if (JsonFind<bool>(config, "attention_bias", where).value_or(false)) {
    c.biases = {Role::kQ, Role::kK, Role::kV};
  }
  c.vectors = {LayerVector::kAttentionNorm, LayerVector::kMlpNorm, LayerVector::kPostAttentionNorm,
               LayerVector::kPostMlpNorm};
  return c;
}

std::string GlmLinear(int64_t layer, Role role) {
  if (role != Role::kGate && role != Role::kUp) return LlamaLinear(layer, role);
  return fmt::format("model.layers.{}.mlp.gate_up_proj", layer);
}

RowBlock GlmRows(const ModelConfig& config, Role role) {
  return role == Role::kGate || role == Role::kUp ? FusedRows(config, role) : RowBlock{};
}

std::string GlmVector(int64_t layer, LayerVector norm) {
  if (norm == LayerVector::kPostAttentionNorm || norm == LayerVector::kPostMlpNorm) {
    const char* name = norm == LayerVector::kPostMlpNorm ? "post_mlp" : "post_self_attn";
    return fmt::format("model.layers.{}.{}_layernorm.weight", layer, name);
  }
  return LlamaVector(layer, norm);
}

}  // namespace

const Family kGlm4 = {.model_type = "glm4",
                      .parse = ParseGlm4,
                      .linear = GlmLinear,
                      .vector = GlmVector,
                      .final_norm = "model.norm.weight",
                      .rope_pairs = true,
                      .rows = GlmRows};

}  // namespace nibble
