// SPDX-License-Identifier: Apache-2.0
// Qwen 2 and 2.5 (biases of q, k and v), Qwen 3 (norms of each query and key head) and its mixtures
// of experts.
#include <algorithm>
#include <vector>

#include "models/families/llama.h"

namespace nibble {
namespace {

// Windows, where they are in use at all, begin at some layer.
void ParseWindows(const Json& config, const std::string& where, ModelConfig& c) {
  if (!JsonFind<bool>(config, "use_sliding_window", where).value_or(false)) return;
  const int64_t window = ParseWindow(config, where);
  if (config.contains("layer_types")) {
    c.specs = ParseLayerTypes(config, c.layers, window, where);
    return;
  }
  const auto first = JsonFind<int64_t>(config, "max_window_layers", where).value_or(0);
  for (int64_t i = 0; i < c.layers; ++i) {
    c.specs.push_back({.sliding_window = i < first ? 0 : window});
  }
}

ModelConfig ParseQwen2(const Json& config, const std::string& where) {
  ModelConfig c = ParseLlama(config, where);
  c.biases = {Role::kQ, Role::kK, Role::kV};
  ParseWindows(config, where, c);
  return c;
}

ModelConfig ParseQwen3(const Json& config, const std::string& where) {
  ModelConfig c = ParseWithBiases(config, where);
  c.vectors = {LayerVector::kAttentionNorm, LayerVector::kMlpNorm, LayerVector::kQueryNorm,
               LayerVector::kKeyNorm};
  ParseWindows(config, where, c);
  return c;
}

// transformers 5 writes num_local_experts, earlier ones num_experts.
ModelConfig ParseQwen3Moe(const Json& config, const std::string& where) {
  ModelConfig c = ParseQwen3(config, where);
  const char* experts = config.contains("num_experts") ? "num_experts" : "num_local_experts";
  c.router.experts = ParseExtent(config, experts, kMaxExperts, where);
  c.router.experts_per_token = ParseExtent(config, "num_experts_per_tok", c.router.experts, where);
  c.expert_size = ParseExtent(config, "moe_intermediate_size", kMaxWidth, where);
  c.router.normalized = JsonFind<bool>(config, "norm_topk_prob", where).value_or(false);
  const auto dense = JsonFind<std::vector<int64_t>>(config, "mlp_only_layers", where)
                         .value_or(std::vector<int64_t>());
  const auto step = JsonFind<int64_t>(config, "decoder_sparse_step", where).value_or(1);
  if (step < 1) Fail("{}: decoder_sparse_step is {}", where, step);
  for (int64_t i = 0; i < c.layers; ++i) {
    if ((i + 1) % step != 0 || std::ranges::count(dense, i) > 0) MakeDense(c, i);
  }
  return c;
}

}  // namespace

const Family kQwen2 = LikeLlama("qwen2", ParseQwen2);

const Family kQwen3 = LikeLlama("qwen3", ParseQwen3);

const Family kQwen3Moe = {.model_type = "qwen3_moe",
                          .parse = ParseQwen3Moe,
                          .linear = MixtureLinear,
                          .vector = LlamaVector,
                          .final_norm = "model.norm.weight"};

}  // namespace nibble
