// SPDX-License-Identifier: Apache-2.0
// Gemma 2 and 3 (text): norms in front of and behind attention and FFN, GELU, windowed layers, a
// scaled embedding. Gemma 2 caps scores and logits; Gemma 3 has norms of heads, and positions of
// their own in windowed layers.
#include <cmath>

#include "models/llama.h"
#include "models/rope_config.h"

namespace nibble {
namespace {

constexpr double kMostScalar = 1 << 20;

// What published files leave to the classes of transformers, and the activation's other key.
Json WithDefaults(const Json& config, const Json& defaults) {
  Json all = {{"head_dim", 256},
              {"rms_norm_eps", 1e-6},
              {"query_pre_attn_scalar", 256},
              {"sliding_window", 4096},
              {"tie_word_embeddings", true}};
  all.update(defaults);
  all.update(config);
  all.erase("hidden_act");
  return all;
}

// What both have.
ModelConfig ParseGemma(const Json& config, const std::string& where) {
  const std::string activation =
      JsonFind<std::string>(config, "hidden_activation", where).value_or("gelu_pytorch_tanh");
  if (activation != "gelu_pytorch_tanh") {
    Fail("{}: hidden_activation \"{}\", expected gelu_pytorch_tanh", where, activation);
  }
  ModelConfig c = ParseWithBiases(config, where);
  c.gating = kGelu;
  c.vectors = {LayerVector::kAttentionNorm, LayerVector::kMlpNorm, LayerVector::kPostAttentionNorm,
               LayerVector::kPostMlpNorm};
  c.attention_scale =
      1 / std::sqrt(JsonGetIn<double>(config, "query_pre_attn_scalar", 1, kMostScalar, where));
  c.embedding_scale = std::sqrt(static_cast<double>(c.hidden_size));
  const auto cap = JsonFindIn<double>(config, "final_logit_softcapping", 1e-3, kMostScalar, where);
  c.logits_softcap = cap.value_or(0);
  return c;
}

ModelConfig ParseGemma2(const Json& stored, const std::string& where) {
  const Json config = WithDefaults(stored, Json::object());
  ModelConfig c = ParseGemma(config, where);
  c.specs = ParseLayerTypes(config, c.layers, ParseWindow(config, where), where, 2);
  const auto cap = JsonFindIn<double>(config, "attn_logit_softcapping", 1e-3, kMostScalar, where);
  c.attention_softcap = cap.value_or(0);
  return c;
}

ModelConfig ParseGemma3(const Json& stored, const std::string& where) {
  const Json config = WithDefaults(stored, {{"vocab_size", 262208},
                                            {"num_attention_heads", 8},
                                            {"num_key_value_heads", 4},
                                            {"max_position_embeddings", 131072},
                                            {"rope_theta", 1e6}});
  ModelConfig c = ParseGemma(config, where);
  c.vectors.insert(c.vectors.end(), {LayerVector::kQueryNorm, LayerVector::kKeyNorm});
  const auto period = JsonFindIn<int64_t>(config, "sliding_window_pattern", 1, 1 << 12, where);
  c.specs =
      ParseLayerTypes(config, c.layers, ParseWindow(config, where), where, period.value_or(6));
  for (LayerSpec& spec : c.specs) spec.rope = spec.sliding_window > 0 ? 1 : 0;
  // Windowed layers: theta of rope_local_base_freq and no scaling.
  Json local = config;
  if (!config.contains("rope_parameters")) {
    local["rope_theta"] = config.value("rope_local_base_freq", Json(10000.0));
    local.erase("rope_scaling");
  }
  c.ropes.push_back(ParseRope(local, c.head_dim, c.context, where, "sliding_attention"));
  return c;
}

std::string GemmaVector(const ModelConfig&, int64_t layer, LayerVector norm) {
  constexpr const char* kNames[] = {"input_layernorm",          "pre_feedforward_layernorm",
                                    "self_attn.q_norm",         "self_attn.k_norm",
                                    "post_attention_layernorm", "post_feedforward_layernorm"};
  return fmt::format("model.layers.{}.{}.weight", layer, kNames[static_cast<size_t>(norm)]);
}

}  // namespace

const Family kGemma2 = {.model_type = "gemma2",
                        .parse = ParseGemma2,
                        .linear = LlamaLinear,
                        .vector = GemmaVector,
                        .final_norm = "model.norm.weight",
                        .norms_lack_one = true};

const Family kGemma3 = {.model_type = "gemma3_text",
                        .parse = ParseGemma3,
                        .linear = LlamaLinear,
                        .vector = GemmaVector,
                        .final_norm = "model.norm.weight",
                        .norms_lack_one = true};

}  // namespace nibble
