// SPDX-License-Identifier: Apache-2.0
// Gemma 3 (text): norms in front of and behind attention and FFN, norms of heads, GELU, windowed
// layers with positions of their own, a scaled embedding.
#include <cmath>

#include "models/llama.h"
#include "models/rope_config.h"

namespace nibble {
namespace {

// What published files leave to the classes of transformers.
Json WithDefaults(const Json& config) {
  Json all = {{"vocab_size", 262208},
              {"num_attention_heads", 8},
              {"num_key_value_heads", 4},
              {"head_dim", 256},
              {"max_position_embeddings", 131072},
              {"rms_norm_eps", 1e-6},
              {"rope_theta", 1e6},
              {"query_pre_attn_scalar", 256},
              {"sliding_window", 4096},
              {"tie_word_embeddings", true}};
  all.update(config);
  all.erase("hidden_act");  // the activation has another key
  return all;
}

// Layers have a window but for every sixth; transformers 4 names the period alone.
std::vector<LayerSpec> ParseLayers(const Json& config, int64_t layers, const std::string& where) {
  const int64_t window = ParseWindow(config, where);
  std::vector<LayerSpec> specs;
  if (JsonFind<Json>(config, "layer_types", where)) {
    specs = ParseLayerTypes(config, layers, window, where);
  } else {
    const int64_t period =
        JsonFindIn<int64_t>(config, "sliding_window_pattern", 1, 1 << 12, where).value_or(6);
    for (int64_t i = 0; i < layers; ++i) {
      specs.push_back({.sliding_window = (i + 1) % period == 0 ? 0 : window});
    }
  }
  for (LayerSpec& spec : specs) spec.rope = spec.sliding_window > 0 ? 1 : 0;
  return specs;
}

ModelConfig ParseGemma3(const Json& stored, const std::string& where) {
  constexpr double kMaxScalar = 1 << 20;
  const Json config = WithDefaults(stored);
  const std::string activation =
      JsonFind<std::string>(config, "hidden_activation", where).value_or("gelu_pytorch_tanh");
  if (activation != "gelu_pytorch_tanh") {
    Fail("{}: hidden_activation \"{}\", expected gelu_pytorch_tanh", where, activation);
  }
  if (JsonFind<double>(config, "final_logit_softcapping", where).value_or(0) != 0) {
    Fail("{}: final_logit_softcapping is not supported", where);
  }
  ModelConfig c = ParseWithBiases(config, where);
  c.gating = kGelu;
  c.norms = {Norm::kAttention, Norm::kMlp,           Norm::kQuery,
             Norm::kKey,       Norm::kPostAttention, Norm::kPostMlp};
  c.attention_scale =
      1 / std::sqrt(JsonGetIn<double>(config, "query_pre_attn_scalar", 1, kMaxScalar, where));
  c.embedding_scale = std::sqrt(static_cast<double>(c.hidden_size));
  c.specs = ParseLayers(config, c.layers, where);
  // Windowed layers: theta of rope_local_base_freq and no scaling.
  Json local = config;
  if (!config.contains("rope_parameters")) {
    local["rope_theta"] = config.value("rope_local_base_freq", Json(10000.0));
    local.erase("rope_scaling");
  }
  c.ropes.push_back(ParseRope(local, c.head_dim, c.context, where, "sliding_attention"));
  return c;
}

std::string GemmaNorm(int64_t layer, Norm norm) {
  constexpr const char* kNames[] = {"input_layernorm",          "pre_feedforward_layernorm",
                                    "self_attn.q_norm",         "self_attn.k_norm",
                                    "post_attention_layernorm", "post_feedforward_layernorm"};
  return fmt::format("model.layers.{}.{}.weight", layer, kNames[static_cast<size_t>(norm)]);
}

}  // namespace

const Family kGemma3 = {.model_type = "gemma3_text",
                        .parse = ParseGemma3,
                        .linear = LlamaLinear,
                        .norm = GemmaNorm,
                        .final_norm = "model.norm.weight",
                        .norms_lack_one = true};

}  // namespace nibble
