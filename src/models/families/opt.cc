// SPDX-License-Identifier: Apache-2.0
// OPT (Zhang et al. 2022): learned positions, ReLU. Not of its 350M, whose norms stand behind the
// sums.
#include "models/families/ungated.h"

namespace nibble {
namespace {

ModelConfig ParseOpt(const Json& config, const std::string& where) {
  const auto refuse = [&](const char* key, bool usual) {
    if (JsonFind<bool>(config, key, where).value_or(usual) == usual) return;
    Fail("{}: {} {} is not supported", where, key, !usual);
  };
  refuse("do_layer_norm_before", true);
  refuse("enable_bias", true);
  refuse("layer_norm_elementwise_affine", true);
  refuse("_remove_final_layer_norm", false);
  Json llama = config;
  llama["intermediate_size"] = ParseExtent(config, "ffn_dim", kMaxWidth, where);
  constexpr double kEps = 1e-5;
  const auto activation =
      JsonFind<std::string>(config, "activation_function", where).value_or("relu");
  ModelConfig c = ParseUngated(llama, activation, kEps, true, where);
  const auto width = JsonFind<int64_t>(config, "word_embed_proj_dim", where);
  if (width.value_or(c.hidden_size) != c.hidden_size) {
    Fail("{}: word_embed_proj_dim {} is not hidden_size {}", where, *width, c.hidden_size);
  }
  c.learned_positions = true;
  c.specs = {{.rope = -1}};
  return c;
}

std::string OptLinear(const ModelConfig&, int64_t layer, Role role) {
  if (role == Role::kEmbedding) return "model.decoder.embed_tokens";
  if (role == Role::kHead) return "lm_head";
  constexpr const char* kNames[] = {"self_attn.q_proj",
                                    "self_attn.k_proj",
                                    "self_attn.v_proj",
                                    "self_attn.out_proj",
                                    "fc1",
                                    "",
                                    "fc2"};
  return fmt::format("model.decoder.layers.{}.{}", layer, kNames[static_cast<size_t>(role)]);
}

std::string OptVector(const ModelConfig&, int64_t layer, LayerVector norm) {
  return fmt::format("model.decoder.layers.{}.{}_layer_norm.weight", layer,
                     norm == LayerVector::kAttentionNorm ? "self_attn" : "final");
}

}  // namespace

const Family kOpt = {.model_type = "opt",
                     .parse = ParseOpt,
                     .linear = OptLinear,
                     .vector = OptVector,
                     .final_norm = "model.decoder.final_layer_norm.weight",
                     .layer_norms = true,
                     .positions = "model.decoder.embed_positions.weight",
                     .unused_positions = 2};

}  // namespace nibble
