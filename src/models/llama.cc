// SPDX-License-Identifier: Apache-2.0
// Llama 2 and 3 (grouped queries, llama3 rope scaling, tied heads) and Mistral (sliding window).
#include "models/llama.h"

namespace nibble {
namespace {

// Sizes above these are no model but a damaged file; they also keep every product below 2^63.
constexpr int64_t kMaxWidth = 1 << 20, kMaxLayers = 1 << 12, kMaxVocab = 1 << 24;
// Models have bases of 1e4 to 1e11, factors of 2 to 100 and epsilons of 1e-6 to 1e-5. Within these
// bounds fp32 can work with them; an epsilon of 0 would divide rows of zeros by 0.
constexpr double kMaxTheta = 1e15, kMaxFactor = 1e6, kMinEps = 1e-12, kMaxEps = 1;

// transformers 5 keeps everything in rope_parameters; transformers 4 has rope_theta at top level
// and rope_scaling null, absent or an object (whose older key for rope_type is "type").
RopeSpec ParseRope(const Json& config, int64_t head_dim, const std::string& where) {
  RopeSpec rope;
  rope.head_dim = head_dim;
  const auto parameters = JsonFind<Json>(config, "rope_parameters", where);
  const auto scaling = parameters ? parameters : JsonFind<Json>(config, "rope_scaling", where);
  const std::string in = where + ": rope parameters";
  const auto theta = parameters ? JsonFindIn<double>(*parameters, "rope_theta", 1, kMaxTheta, in)
                                : JsonFindIn<double>(config, "rope_theta", 1, kMaxTheta, where);
  rope.theta = theta.value_or(10000.0);
  if (!scaling) return rope;
  auto type = JsonFind<std::string>(*scaling, "rope_type", in);
  if (!type) type = JsonFind<std::string>(*scaling, "type", in);
  rope.type = type.value_or("default");
  if (rope.type == "default") return rope;
  if (rope.type != "linear" && rope.type != "llama3") {
    Fail("{}: rope_type \"{}\" is not supported; this build knows default, linear, llama3", where,
         rope.type);
  }
  rope.factor = JsonGetIn<double>(*scaling, "factor", 1, kMaxFactor, in);
  if (rope.type == "llama3") {
    rope.low_freq_factor = JsonGetIn(*scaling, "low_freq_factor", 1 / kMaxFactor, kMaxFactor, in);
    rope.high_freq_factor = JsonGetIn(*scaling, "high_freq_factor", 1 / kMaxFactor, kMaxFactor, in);
    rope.original_context =
        JsonGetIn<int64_t>(*scaling, "original_max_position_embeddings", 1, kMaxVocab, in);
    // Between them frequencies are blended by a quotient of their difference.
    if (rope.high_freq_factor < 1.001 * rope.low_freq_factor) {
      Fail("{}: high_freq_factor = {} is not above low_freq_factor = {}", in, rope.high_freq_factor,
           rope.low_freq_factor);
    }
  }
  return rope;
}

// Mistral has no biases, whatever its config.json says.
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

}  // namespace

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
  if (c.kv_heads < 1 || c.heads % c.kv_heads != 0) {
    Fail("{}: {} query heads cannot share {} key heads", where, c.heads, c.kv_heads);
  }
  c.head_dim = JsonFind<int64_t>(config, "head_dim", where).value_or(c.hidden_size / c.heads);
  if (c.head_dim < 8 || c.head_dim > 256 || c.head_dim % 8 != 0) {
    Fail("{}: head_dim = {}; this build handles multiples of 8 up to 256", where, c.head_dim);
  }
  c.norm_eps = JsonFindIn(config, "rms_norm_eps", kMinEps, kMaxEps, where).value_or(1e-6);
  c.tied_head = JsonFind<bool>(config, "tie_word_embeddings", where).value_or(false);
  c.ropes = {ParseRope(config, c.head_dim, where)};
  const auto activation = JsonFind<std::string>(config, "hidden_act", where).value_or("silu");
  if (activation != "silu") Fail("{}: hidden_act \"{}\", expected silu", where, activation);
  return c;
}

ModelConfig ParseMistral(const Json& config, const std::string& where) {
  ModelConfig c = ParseLlama(config, where);
  const auto window = JsonFindIn<int64_t>(config, "sliding_window", 0, kMaxVocab, where);
  c.specs = {{.sliding_window = window.value_or(0)}};
  return c;
}

std::string LlamaLinear(int64_t layer, Role role) {
  constexpr const char* kNames[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                    "self_attn.o_proj", "mlp.gate_proj",    "mlp.up_proj",
                                    "mlp.down_proj"};
  if (role == Role::kHead) return "lm_head";
  if (role == Role::kEmbedding) return "model.embed_tokens";
  return fmt::format("model.layers.{}.{}", layer, kNames[static_cast<size_t>(role)]);
}

std::string LlamaNorm(int64_t layer, Norm norm) {
  constexpr const char* kNames[] = {"input_layernorm", "post_attention_layernorm",
                                    "self_attn.q_norm", "self_attn.k_norm"};
  return fmt::format("model.layers.{}.{}.weight", layer, kNames[static_cast<size_t>(norm)]);
}

const Family kLlama = {.model_type = "llama",
                       .parse = ParseWithBiases,
                       .linear = LlamaLinear,
                       .norm = LlamaNorm,
                       .final_norm = "model.norm.weight"};

const Family kMistral = {.model_type = "mistral",
                         .parse = ParseMistral,
                         .linear = LlamaLinear,
                         .norm = LlamaNorm,
                         .final_norm = "model.norm.weight"};

}  // namespace nibble
