// SPDX-License-Identifier: Apache-2.0
// OpenAI's gpt-oss: experts with biases whose gates are clamped, sinks, windows for every other
// layer. Experts are stacked, rows of gate and up take turns; in floats, inputs and outputs are
// exchanged, in MXFP4 they are not.
#include "models/families/llama.h"

namespace nibble {
namespace {

ModelConfig ParseGptOss(const Json& config, const std::string& where) {
  constexpr double kMax = 1e3;
  ModelConfig c = ParseLlama(config, where);
  if (JsonFind<bool>(config, "attention_bias", where).value_or(true)) {
    c.biases = {Role::kQ, Role::kK, Role::kV, Role::kO};
  }
  c.biases.insert(c.biases.end(), {Role::kRouter, Role::kGate, Role::kUp, Role::kDown});
  c.vectors.push_back(LayerVector::kSinks);
  c.router.experts = ParseExtent(config, "num_local_experts", kMaxExperts, where);
  const char* chosen =
      config.contains("num_experts_per_tok") ? "num_experts_per_tok" : "experts_per_token";
  c.router.experts_per_token = ParseExtent(config, chosen, c.router.experts, where);
  c.expert_size = c.intermediate_size;
  const auto alpha = JsonFindIn<double>(config, "swiglu_alpha", 1e-3, kMax, where);
  const auto limit = JsonFindIn<double>(config, "swiglu_limit", 1e-3, kMax, where);
  c.gating = {.linear = static_cast<float>(alpha.value_or(1.702)),
              .limit = static_cast<float>(limit.value_or(7)),
              .up_offset = 1};
  c.specs = ParseLayerTypes(config, c.layers, ParseWindow(config, where), where, 2);
  return c;
}

std::string GptOssLinear(const ModelConfig& config, int64_t layer, Role role) {
  const std::string mlp = fmt::format("model.layers.{}.mlp.", layer);
  if (role == Role::kRouter) return mlp + "router";
  if (ExpertOf(role) < 0) return LlamaLinear(config, layer, role);
  return mlp + (KindOf(role) == Role::kDown ? "experts.down_proj" : "experts.gate_up_proj");
}

RowBlock GptOssRows(const ModelConfig& c, Role role) {
  if (ExpertOf(role) < 0) return {};
  const Role kind = KindOf(role);
  const int64_t turns = kind == Role::kDown ? 1 : 2, rows = turns * c.outputs(0, role);
  return {.first = ExpertOf(role) * rows + (kind == Role::kUp ? 1 : 0),
          .total = c.router.experts * rows,
          .stacked = c.router.experts,
          .run = turns == 1 ? 0 : 1,
          .period = turns,
          .transposed = true};
}

std::string GptOssVector(const ModelConfig& config, int64_t layer, LayerVector vector) {
  if (vector != LayerVector::kSinks) return LlamaVector(config, layer, vector);
  return fmt::format("model.layers.{}.self_attn.sinks", layer);
}

}  // namespace

const Family kGptOss = {.model_type = "gpt_oss",
                        .parse = ParseGptOss,
                        .linear = GptOssLinear,
                        .vector = GptOssVector,
                        .final_norm = "model.norm.weight",
                        .rows = GptOssRows};

}  // namespace nibble
