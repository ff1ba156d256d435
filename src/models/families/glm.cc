// SPDX-License-Identifier: Apache-2.0
// GLM 4: norms in front of and behind attention and FFN, gate and up in one tensor, half of each
// head turned in neighbouring pairs. GLM 4.5's mixtures: Llama's layer with half of each head
// turned, the first ones dense, in the others a shared expert and sigmoid scores.
#include "models/families/llama.h"

namespace nibble {
namespace {

ModelConfig ParseGlm(const Json& config, const std::string& where) {
  Json whole = config;
  if (!config.contains("rope_parameters") && !config.contains("partial_rotary_factor")) {
    whole["partial_rotary_factor"] = 0.5;
  }
  ModelConfig c = ParseLlama(whole, where);
  if (JsonFind<bool>(config, "attention_bias", where).value_or(false)) {
    c.biases = {Role::kQ, Role::kK, Role::kV};
  }
  return c;
}

ModelConfig ParseGlm4(const Json& config, const std::string& where) {
  ModelConfig c = ParseGlm(config, where);
  c.vectors = {LayerVector::kAttentionNorm, LayerVector::kMlpNorm, LayerVector::kPostAttentionNorm,
               LayerVector::kPostMlpNorm};
  return c;
}

ModelConfig ParseGlm4Moe(const Json& config, const std::string& where) {
  ModelConfig c = ParseGlm(config, where);
  c.vectors.push_back(LayerVector::kRouterBias);
  if (JsonFind<bool>(config, "use_qk_norm", where).value_or(false)) {
    c.vectors.insert(c.vectors.end(), {LayerVector::kQueryNorm, LayerVector::kKeyNorm});
  }
  RouterSpec& router = c.router;
  router.experts = ParseExtent(config, "n_routed_experts", kMaxExperts - 1, where);
  router.experts_per_token = ParseExtent(config, "num_experts_per_tok", router.experts, where);
  router.sigmoid = true;
  router.normalized = JsonFind<bool>(config, "norm_topk_prob", where).value_or(true);
  router.scale = static_cast<float>(
      JsonFindIn<double>(config, "routed_scaling_factor", 1e-6, 1e6, where).value_or(1));
  router.shared =
      JsonFindIn<int64_t>(config, "n_shared_experts", 0, kMaxExperts, where).value_or(0);
  if (router.shared > 1 || JsonFind<int64_t>(config, "n_group", where).value_or(1) != 1) {
    Fail("{}: n_shared_experts above 1 and n_group other than 1 are not supported", where);
  }
  c.expert_size = ParseExtent(config, "moe_intermediate_size", kMaxWidth, where);
  const auto dense =
      JsonFindIn<int64_t>(config, "first_k_dense_replace", 0, c.layers, where).value_or(0);
  for (int64_t layer = 0; layer < dense; ++layer) MakeDense(c, layer);
  return c;
}

std::string GlmLinear(const ModelConfig& config, int64_t layer, Role role) {
  if (role != Role::kGate && role != Role::kUp) return LlamaLinear(config, layer, role);
  return fmt::format("model.layers.{}.mlp.gate_up_proj", layer);
}

RowBlock GlmRows(const ModelConfig& config, Role role) {
  return role == Role::kGate || role == Role::kUp ? FusedRows(config, role) : RowBlock{};
}

std::string GlmVector(const ModelConfig& config, int64_t layer, LayerVector norm) {
  if (norm == LayerVector::kPostAttentionNorm || norm == LayerVector::kPostMlpNorm) {
    const char* name = norm == LayerVector::kPostMlpNorm ? "post_mlp" : "post_self_attn";
    return fmt::format("model.layers.{}.{}_layernorm.weight", layer, name);
  }
  return LlamaVector(config, layer, norm);
}

}  // namespace

const Family kGlm4 = {.model_type = "glm4",
                      .parse = ParseGlm4,
                      .linear = GlmLinear,
                      .vector = GlmVector,
                      .final_norm = "model.norm.weight",
                      .rope_pairs = true,
                      .rows = GlmRows};

const Family kGlm4Moe = {.model_type = "glm4_moe",
                         .parse = ParseGlm4Moe,
                         .linear = MixtureLinear,
                         .vector = LlamaVector,
                         .final_norm = "model.norm.weight"};

}  // namespace nibble
