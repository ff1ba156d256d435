// SPDX-License-Identifier: Apache-2.0
// Llama 2 and 3 (grouped queries, scaled positions, tied heads) and what differs from it in numbers
// alone: Mistral, Ministral and Ministral 3 (sliding windows), SmolLM3 (layers without positions),
// Granite 3 (multipliers).
#include "models/families/llama.h"

#include <algorithm>

#include "formats/kv_format.h"
#include "models/families/rope_config.h"

namespace nibble {
namespace {

// Sizes above these are no model but a damaged file; they also keep every product below 2^63.
constexpr int64_t kMaxLayers = 1 << 12, kMaxVocab = 1 << 24;
// Models have epsilons of 1e-6 to 1e-5; one of 0 would divide rows of zeros by 0.
constexpr double kMinEps = 1e-12, kMaxEps = 1;

}  // namespace

ModelConfig ParseWithBiases(const Json& config, const std::string& where) {
  ModelConfig c = ParseLlama(config, where);
  const auto add = [&](const char* key, std::initializer_list<Role> roles) {
    if (JsonFind<bool>(config, key, where).value_or(false)) {
      c.biases.insert(c.biases.end(), roles);
    }
  };
  add("attention_bias", {Role::kQ, Role::kK, Role::kV, Role::kO});
  add("mlp_bias", {Role::kGate, Role::kUp, Role::kDown});
  return c;
}

int64_t ParseWindow(const Json& config, const std::string& where) {
  return JsonFindIn<int64_t>(config, "sliding_window", 0, kMaxVocab, where).value_or(0);
}

std::vector<LayerSpec> ParseLayerTypes(const Json& config, int64_t layers, int64_t window,
                                       const std::string& where, int64_t period) {
  const auto types = JsonFind<std::vector<std::string>>(config, "layer_types", where);
  std::vector<LayerSpec> specs;
  if (!types) {
    if (period == 0) return {{.sliding_window = window}};
    for (int64_t i = 1; i <= layers; ++i) {
      specs.push_back({.sliding_window = i % period == 0 ? 0 : window});
    }
    return specs;
  }
  if (static_cast<int64_t>(types->size()) != layers) {
    Fail("{}: layer_types has {} entries for {} layers", where, types->size(), layers);
  }
  for (const std::string& type : *types) {
    if (type != "full_attention" && type != "sliding_attention") {
      Fail(
          "{}: layer type \"{}\" is not supported; this build knows full_attention, "
          "sliding_attention",
          where, type);
    }
    specs.push_back({.sliding_window = type == "sliding_attention" ? window : 0});
  }
  return specs;
}

void CheckHeads(const HeadShape& shape, const std::string& where) {
  const auto& [heads, kv_heads, head_dim] = shape;
  if (kv_heads < 1 || heads % kv_heads != 0) {
    Fail("{}: {} query heads cannot share {} key heads", where, heads, kv_heads);
  }
  if (head_dim < 8 || head_dim > kMaxHeadDim || head_dim % 8 != 0) {
    Fail("{}: head_dim = {}; this build handles multiples of 8 up to {}", where, head_dim,
         kMaxHeadDim);
  }
}

int64_t ParseExtent(const Json& config, const char* key, int64_t max, const std::string& where) {
  return JsonGetIn<int64_t>(config, key, 1, max, where);
}

ModelConfig ParseLlama(const Json& config, const std::string& where) {
  ModelConfig c;
  c.family = JsonGet<std::string>(config, "model_type", where);
  c.hidden_size = ParseExtent(config, "hidden_size", kMaxWidth, where);
  c.intermediate_size = ParseExtent(config, "intermediate_size", kMaxWidth, where);
  c.layers = ParseExtent(config, "num_hidden_layers", kMaxLayers, where);
  c.heads = ParseExtent(config, "num_attention_heads", kMaxWidth, where);
  c.vocab_size = ParseExtent(config, "vocab_size", kMaxVocab, where);
  c.context = ParseExtent(config, "max_position_embeddings", kMaxVocab, where);
  c.kv_heads = JsonFind<int64_t>(config, "num_key_value_heads", where).value_or(c.heads);
  c.head_dim = JsonFind<int64_t>(config, "head_dim", where).value_or(c.hidden_size / c.heads);
  CheckHeads({c.heads, c.kv_heads, c.head_dim}, where);
  c.norm_eps = JsonFindIn(config, "rms_norm_eps", kMinEps, kMaxEps, where).value_or(1e-6);
  c.tied_head = JsonFind<bool>(config, "tie_word_embeddings", where).value_or(false);
  c.ropes = {ParseRope(config, c.head_dim, c.context, where)};
  // Qwen's model cards add yarn and leave max_position_embeddings at what was trained.
  if (const RopeSpec& rope = c.ropes[0]; rope.type == "yarn") {
    const auto scaled = static_cast<double>(rope.original_context) * rope.factor;
    c.context = std::max(c.context, static_cast<int64_t>(std::min<double>(scaled, kMaxVocab)));
  }
  const auto activation = JsonFind<std::string>(config, "hidden_act", where).value_or("silu");
  if (activation != "silu") Fail("{}: hidden_act \"{}\", expected silu", where, activation);
  return c;
}

ModelConfig ParseMistral(const Json& config, const std::string& where) {
  ModelConfig c = ParseLlama(config, where);
  c.specs = {{.sliding_window = ParseWindow(config, where)}};
  return c;
}

std::string LlamaLinear(const ModelConfig&, int64_t layer, Role role) {
  constexpr const char* kNames[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                    "self_attn.o_proj", "mlp.gate_proj",    "mlp.up_proj",
                                    "mlp.down_proj"};
  if (role == Role::kHead) return "lm_head";
  if (role == Role::kEmbedding) return "model.embed_tokens";
  return fmt::format("model.layers.{}.{}", layer, kNames[static_cast<size_t>(role)]);
}

void MakeDense(ModelConfig& config, int64_t layer) {
  while (static_cast<int64_t>(config.specs.size()) < config.layers) {
    config.specs.push_back(config.spec(config.layers));
  }
  config.specs[static_cast<size_t>(layer)].dense = true;
}

std::string MixtureLinear(const ModelConfig& config, int64_t layer, Role role) {
  const std::string mlp = fmt::format("model.layers.{}.mlp", layer);
  if (role == Role::kRouter) return mlp + ".gate";
  const int64_t expert = ExpertOf(role);
  if (expert < 0) return LlamaLinear(config, layer, role);
  constexpr const char* kNames[] = {"gate_proj", "up_proj", "down_proj"};
  const auto kind = static_cast<size_t>(KindOf(role)) - static_cast<size_t>(Role::kGate);
  return expert < config.router.experts ? fmt::format("{}.experts.{}.{}", mlp, expert, kNames[kind])
                                        : fmt::format("{}.shared_experts.{}", mlp, kNames[kind]);
}

std::string LlamaVector(const ModelConfig&, int64_t layer, LayerVector norm) {
  if (norm == LayerVector::kRouterBias) {
    return fmt::format("model.layers.{}.mlp.gate.e_score_correction_bias", layer);
  }
  constexpr const char* kNames[] = {"input_layernorm", "post_attention_layernorm",
                                    "self_attn.q_norm", "self_attn.k_norm"};
  NIBBLE_CHECK(static_cast<size_t>(norm) < std::size(kNames), "Llama has no {}", VectorName(norm));
  return fmt::format("model.layers.{}.{}.weight", layer, kNames[static_cast<size_t>(norm)]);
}

std::string VectorBehind(const ModelConfig& config, int64_t layer, LayerVector norm) {
  const bool attention = norm == LayerVector::kPostAttentionNorm;
  if (!attention && norm != LayerVector::kPostMlpNorm) return LlamaVector(config, layer, norm);
  return fmt::format("model.layers.{}.post_{}_layernorm.weight", layer,
                     attention ? "attention" : "feedforward");
}

const Family kLlama = LikeLlama("llama", ParseWithBiases);

// Granite's residual stream is divided by its multiplier of branches, which norms do not see but in
// their epsilon: what enters it is larger instead, and branches add up as they are.
ModelConfig ParseGranite(const Json& config, const std::string& where) {
  constexpr double kMin = 1e-6, kMax = 1e6;
  const auto multiplier = [&](const char* key) {
    return JsonFindIn<double>(config, key, kMin, kMax, where).value_or(1);
  };
  ModelConfig c = ParseWithBiases(config, where);
  const double residual = multiplier("residual_multiplier");
  c.embedding_scale = multiplier("embedding_multiplier") / residual;
  c.norm_eps /= residual * residual;
  c.attention_scale = multiplier("attention_multiplier");
  c.logits_divisor = multiplier("logits_scaling");
  return c;
}

const Family kGranite = LikeLlama("granite", ParseGranite);

// Layers with a window among others, by layer_types.
ModelConfig ParseMinistral(const Json& config, const std::string& where) {
  ModelConfig c = ParseLlama(config, where);
  c.specs = ParseLayerTypes(config, c.layers, ParseWindow(config, where), where);
  return c;
}

const Family kMinistral = LikeLlama("ministral", ParseMinistral);

// Beyond the original context queries grow with their position, which no kernel does: Nibble's
// context ends there.
ModelConfig ParseMinistral3(const Json& config, const std::string& where) {
  ModelConfig c = ParseMistral(config, where);
  const auto rope = JsonFind<Json>(config, "rope_parameters", where);
  if (!rope || JsonFind<double>(*rope, "llama_4_scaling_beta", where).value_or(0) == 0) return c;
  c.context =
      std::min(c.context, ParseExtent(*rope, "original_max_position_embeddings", kMaxVocab, where));
  return c;
}

const Family kMinistral3 = LikeLlama("ministral3", ParseMinistral3);

// Some layers turn neither queries nor keys: those with a 0 in no_rope_layers.
ModelConfig ParseSmollm3(const Json& config, const std::string& where) {
  ModelConfig c = ParseWithBiases(config, where);
  const bool windows = JsonFind<bool>(config, "use_sliding_window", where).value_or(false);
  const auto specs =
      ParseLayerTypes(config, c.layers, windows ? ParseWindow(config, where) : 0, where);
  const auto interval =
      JsonFindIn<int64_t>(config, "no_rope_layer_interval", 1, kMaxLayers, where).value_or(4);
  const auto turned = JsonFind<std::vector<int64_t>>(config, "no_rope_layers", where);
  if (turned && static_cast<int64_t>(turned->size()) != c.layers) {
    Fail("{}: no_rope_layers has {} entries for {} layers", where, turned->size(), c.layers);
  }
  for (int64_t i = 0; i < c.layers; ++i) {
    LayerSpec spec = specs[std::min(static_cast<size_t>(i), specs.size() - 1)];
    const bool turns = turned ? (*turned)[static_cast<size_t>(i)] != 0 : (i + 1) % interval != 0;
    spec.rope = turns ? 0 : -1;
    c.specs.push_back(spec);
  }
  return c;
}

const Family kSmollm3 = LikeLlama("smollm3", ParseSmollm3);

const Family kMistral = LikeLlama("mistral", ParseMistral);

}  // namespace nibble
