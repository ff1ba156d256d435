// SPDX-License-Identifier: Apache-2.0
// Mixtral (Jiang et al. 2024): Mistral with a router and a few experts in place of the FFN.
#include "models/families/llama.h"

namespace nibble {
namespace {

ModelConfig ParseMixtral(const Json& config, const std::string& where) {
  ModelConfig c = ParseMistral(config, where);
  c.router.experts = ParseExtent(config, "num_local_experts", kMaxExperts, where);
  c.router.experts_per_token = ParseExtent(config, "num_experts_per_tok", c.router.experts, where);
  c.expert_size = c.intermediate_size;
  return c;
}

std::string MixtralLinear(const ModelConfig& config, int64_t layer, Role role) {
  const std::string mixture = fmt::format("model.layers.{}.block_sparse_moe", layer);
  if (role == Role::kRouter) return mixture + ".gate";
  if (ExpertOf(role) < 0) return LlamaLinear(config, layer, role);
  const int name = KindOf(role) == Role::kGate ? 1 : KindOf(role) == Role::kDown ? 2 : 3;
  return fmt::format("{}.experts.{}.w{}", mixture, ExpertOf(role), name);
}

}  // namespace

const Family kMixtral = {.model_type = "mixtral",
                         .parse = ParseMixtral,
                         .linear = MixtralLinear,
                         .vector = LlamaVector,
                         .final_norm = "model.norm.weight"};

}  // namespace nibble
