// SPDX-License-Identifier: Apache-2.0
// Gemma 2, 3 and 4 (text): norms in front of and behind attention and FFN, GELU, windowed layers, a
// scaled embedding. docs/families.md says what each has besides.
#include <charconv>
#include <cmath>

#include "models/families/llama.h"
#include "models/families/rope_config.h"

namespace nibble {
namespace {

constexpr double kMaxScalar = 1 << 20;

// The config with what published files leave to the classes of transformers, and without the
// activation's other key.
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

// Parses what all these families have.
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
      1 / std::sqrt(JsonGetIn<double>(config, "query_pre_attn_scalar", 1, kMaxScalar, where));
  c.embedding_scale = std::sqrt(static_cast<double>(c.hidden_size));
  const auto cap = JsonFindIn<double>(config, "final_logit_softcapping", 1e-3, kMaxScalar, where);
  c.logits_softcap = cap.value_or(0);
  return c;
}

ModelConfig ParseGemma2(const Json& stored, const std::string& where) {
  const Json config = WithDefaults(stored, Json::object());
  ModelConfig c = ParseGemma(config, where);
  c.specs = ParseLayerTypes(config, c.layers, ParseWindow(config, where), where, 2);
  const auto cap = JsonFindIn<double>(config, "attn_logit_softcapping", 1e-3, kMaxScalar, where);
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
  // transformers 4.56 and later write it with an underscore.
  const char* pattern = config.contains("sliding_window_pattern") ? "sliding_window_pattern"
                                                                  : "_sliding_window_pattern";
  const auto period = JsonFindIn<int64_t>(config, pattern, 1, 1 << 12, where);
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

// What per_layer_config has for a layer. transformers writes numbers of one width, "05" beside
// "11".
Json OfLayer(const Json& each, int64_t layer, const std::string& in) {
  if (!each.is_object()) Fail("{} must be an object", in);
  for (const auto& [key, own] : each.items()) {
    int64_t number = -1;
    const char* const end = key.data() + key.size();
    const auto [read, error] = std::from_chars(key.data(), end, number);
    if (error != std::errc() || read != end) Fail("{}: \"{}\" is no layer", in, key);
    if (number == layer) return own;
  }
  return Json::object();
}

// Heads of a layer that sees all: the older config has one number for all of them, the newer one an
// object for each.
void ParseHeads(const Json& config, int64_t layer, const std::string& where, LayerSpec& spec) {
  const auto find = [](const Json& in, const char* key, const std::string& place) {
    return JsonFindIn<int64_t>(in, key, 1, kMaxWidth, place);
  };
  const auto each = JsonFind<Json>(config, "per_layer_config", where);
  const bool sees_all = spec.sliding_window == 0;
  spec.rope = sees_all ? 0 : 1;
  spec.values_are_keys =
      sees_all && JsonFind<bool>(config, "attention_k_eq_v", where).value_or(false);
  if (each) {
    const std::string in = where + ": per_layer_config";
    const Json own = OfLayer(*each, layer, in);
    spec.head_dim = find(own, "head_dim", in).value_or(0);
    spec.kv_heads = find(own, "num_key_value_heads", in).value_or(0);
  } else if (sees_all) {
    spec.head_dim = find(config, "global_head_dim", where).value_or(512);
    const auto kv_heads = find(config, "num_global_key_value_heads", where);
    if (spec.values_are_keys) spec.kv_heads = kv_heads.value_or(0);
  }
}

// The last layers read keys and values of the last one of their kind in front of them, and their
// FFNs may be twice as wide.
void ShareCaches(const Json& config, const std::string& where, ModelConfig& c) {
  const auto shared =
      JsonFindIn<int64_t>(config, "num_kv_shared_layers", 0, c.layers - 1, where).value_or(0);
  const bool wide = JsonFind<bool>(config, "use_double_wide_mlp", where).value_or(false);
  const int64_t own = c.layers - shared;
  for (int64_t i = own; i < c.layers; ++i) {
    LayerSpec& spec = c.specs[static_cast<size_t>(i)];
    for (int64_t from = 0; from < own; ++from) {
      if (c.spec(from).rope == spec.rope) spec.kv_layer = from;
    }
    if (spec.owns_kv()) {
      Fail("{}: num_kv_shared_layers: no layer in front of {} is of its type", where, i);
    }
    const HeadShape lender = c.head_shape(spec.kv_layer), shape = c.head_shape(i);
    if (lender.kv_heads != shape.kv_heads || lender.head_dim != shape.head_dim) {
      Fail("{}: layer {} reads keys of layer {}, whose heads are others", where, i, spec.kv_layer);
    }
    if (wide) spec.intermediate_size = 2 * c.intermediate_size;
  }
}

// A token has a row of a table for each layer.
void GiveLayersInputs(const Json& config, const std::string& where, ModelConfig& c) {
  constexpr int64_t kMaxRows = int64_t{1} << 31;
  c.layer_input_size =
      JsonFindIn<int64_t>(config, "hidden_size_per_layer_input", 0, kMaxWidth, where).value_or(256);
  if (c.layer_input_size == 0) return;
  const auto tokens = JsonFindIn<int64_t>(config, "vocab_size_per_layer_input", 1, kMaxRows, where)
                          .value_or(262144);
  if (tokens != c.vocab_size || c.layer_input_size % 8 != 0 || tokens * c.layers >= kMaxRows) {
    Fail("{}: inputs of layers of {} numbers for {} of {} tokens", where, c.layer_input_size,
         tokens, c.vocab_size);
  }
  c.vectors.push_back(LayerVector::kPostLayerInputNorm);
}

// Gives every layer experts beside its FFN.
void GiveExperts(const Json& config, const std::string& where, ModelConfig& c) {
  if (!JsonFind<bool>(config, "enable_moe_block", where).value_or(false)) return;
  c.router.experts = ParseExtent(config, "num_experts", kMaxExperts, where);
  c.router.experts_per_token = ParseExtent(config, "top_k_experts", c.router.experts, where);
  c.expert_size = ParseExtent(config, "moe_intermediate_size", kMaxWidth, where);
  c.dense_beside_experts = true;
  c.vectors.insert(c.vectors.end(),
                   {LayerVector::kRouterNorm, LayerVector::kExpertsNorm, LayerVector::kExpertScales,
                    LayerVector::kPostDenseNorm, LayerVector::kPostExpertsNorm});
}

ModelConfig ParseGemma4(const Json& stored, const std::string& where) {
  const Json sliding = {{"rope_type", "default"}, {"rope_theta", 1e4}};
  const Json full = {
      {"rope_type", "proportional"}, {"rope_theta", 1e6}, {"partial_rotary_factor", 0.25}};
  const Json config = WithDefaults(
      stored, {{"vocab_size", 262144},
               {"num_attention_heads", 8},
               {"num_key_value_heads", 4},
               {"sliding_window", 512},
               {"max_position_embeddings", 131072},
               {"rope_parameters", {{"sliding_attention", sliding}, {"full_attention", full}}}});
  if (JsonFind<std::string>(config, "use_bidirectional_attention", where) == "all") {
    Fail("{}: use_bidirectional_attention: tokens that see those behind them are not supported",
         where);
  }
  ModelConfig c = ParseGemma(config, where);
  c.attention_scale = 1;
  c.value_norms = true;
  c.vectors.insert(c.vectors.end(),
                   {LayerVector::kQueryNorm, LayerVector::kKeyNorm, LayerVector::kLayerScale});
  const int64_t window = ParseWindow(config, where);
  if (window == 0) Fail("{}: sliding_window is what tells the kinds of layers apart", where);
  c.specs = ParseLayerTypes(config, c.layers, window, where, 6);
  c.specs.back().sliding_window = 0;  // as transformers has it, whatever its type
  int64_t lengths[2] = {0, 0};        // of heads, by the table that turns them
  for (int64_t i = 0; i < c.layers; ++i) {
    LayerSpec& spec = c.specs[static_cast<size_t>(i)];
    ParseHeads(config, i, where, spec);
    const HeadShape shape = c.head_shape(i);
    CheckHeads(shape, where);
    int64_t& length = lengths[spec.rope];
    if (length != 0 && length != shape.head_dim) {
      Fail("{}: layers of one type have heads of {} and of {}", where, length, shape.head_dim);
    }
    length = shape.head_dim;
  }
  ShareCaches(config, where, c);
  GiveLayersInputs(config, where, c);
  GiveExperts(config, where, c);
  constexpr const char* kTypes[] = {"full_attention", "sliding_attention"};
  c.ropes.clear();
  for (const size_t table : {0, 1}) {
    const int64_t length = lengths[table] > 0 ? lengths[table] : c.head_dim;
    c.ropes.push_back(ParseRope(config, length, c.context, where, kTypes[table]));
  }
  return c;
}

std::string Gemma4Linear(const ModelConfig& config, int64_t layer, Role role) {
  if (role == Role::kLayerTable) return "model.embed_tokens_per_layer";
  if (role == Role::kLayerProjection) return "model.per_layer_model_projection";
  if (role == Role::kLayerGate || role == Role::kLayerOutput) {
    return fmt::format("model.layers.{}.per_layer_{}", layer,
                       role == Role::kLayerGate ? "input_gate" : "projection");
  }
  if (role == Role::kRouter) return fmt::format("model.layers.{}.router.proj", layer);
  if (ExpertOf(role) >= 0) {
    return fmt::format("model.layers.{}.experts.{}_proj", layer,
                       KindOf(role) == Role::kDown ? "down" : "gate_up");
  }
  const bool same = role == Role::kV && config.spec(layer).values_are_keys;
  return LlamaLinear(config, layer, same ? Role::kK : role);
}

// Experts are stacked, rows of an expert's gate in front of those of its up.
RowBlock Gemma4Rows(const ModelConfig& c, Role role) {
  if (ExpertOf(role) < 0) return {};
  const int64_t rows = c.outputs(0, role), all = KindOf(role) == Role::kDown ? rows : 2 * rows;
  return {.first = ExpertOf(role) * all + (KindOf(role) == Role::kUp ? rows : 0),
          .total = c.router.experts * all,
          .stacked = c.router.experts};
}

std::string GemmaVector(const ModelConfig&, int64_t layer, LayerVector norm) {
  constexpr const char* kNames[] = {"input_layernorm.weight",
                                    "pre_feedforward_layernorm.weight",
                                    "self_attn.q_norm.weight",
                                    "self_attn.k_norm.weight",
                                    "post_attention_layernorm.weight",
                                    "post_feedforward_layernorm.weight",
                                    "",
                                    "",
                                    "layer_scalar",
                                    "post_per_layer_input_norm.weight",
                                    "router.scale",
                                    "pre_feedforward_layernorm_2.weight",
                                    "router.per_expert_scale",
                                    "post_feedforward_layernorm_1.weight",
                                    "post_feedforward_layernorm_2.weight"};
  return fmt::format("model.layers.{}.{}", layer, kNames[static_cast<size_t>(norm)]);
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

const Family kGemma4 = {.model_type = "gemma4_text",
                        .parse = ParseGemma4,
                        .linear = Gemma4Linear,
                        .vector = GemmaVector,
                        .final_norm = "model.norm.weight",
                        .layer_input_norm = "model.per_layer_projection_norm.weight",
                        .rows = Gemma4Rows};

}  // namespace nibble
