// SPDX-License-Identifier: Apache-2.0
#include "models/families/shapes.h"

#include <algorithm>
#include <vector>

#include "models/families/family.h"

namespace nibble {
namespace {

struct Shape {
  std::string_view name, model_type;
  int64_t hidden_size, intermediate_size, layers, heads, kv_heads, vocab_size;
  double rope_theta;
  std::string_view others = "{}";  // fields that not all families have
};

const Shape kShapes[] = {
    {"llama2-7b", "llama", 4096, 11008, 32, 32, 32, 32000, 1e4},
    {"llama2-13b", "llama", 5120, 13824, 40, 40, 40, 32000, 1e4},
    {"llama2-70b", "llama", 8192, 28672, 80, 64, 8, 32000, 1e4},
    {"llama3-8b", "llama", 4096, 14336, 32, 32, 8, 128256, 5e5},
    {"smollm2-135m", "llama", 576, 1536, 30, 9, 3, 49152, 1e5},
    {"qwen2.5-1.5b", "qwen2", 1536, 8960, 28, 12, 2, 151936, 1e6},
    {"qwen2.5-7b", "qwen2", 3584, 18944, 28, 28, 4, 152064, 1e6},
    {"qwen2.5-32b", "qwen2", 5120, 27648, 64, 40, 8, 152064, 1e6},
    {"qwen3-8b", "qwen3", 4096, 12288, 36, 32, 8, 151936, 1e6, R"({"head_dim": 128})"},
    {"qwen3-14b", "qwen3", 5120, 17408, 40, 40, 8, 151936, 1e6, R"({"head_dim": 128})"},
    {"qwen3-32b", "qwen3", 5120, 25600, 64, 64, 8, 151936, 1e6, R"({"head_dim": 128})"},
    {"qwen3-30b-a3b", "qwen3_moe", 2048, 6144, 48, 32, 4, 151936, 1e6,
     R"({"head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
         "moe_intermediate_size": 768, "norm_topk_prob": true})"},
    {"phi4-mini", "phi3", 3072, 8192, 32, 24, 8, 200064, 1e4, R"({"partial_rotary_factor": 0.75})"},
    {"phi4", "phi3", 5120, 17920, 40, 40, 10, 100352, 2.5e5},
    {"danube2-1.8b", "mistral", 2560, 6912, 24, 32, 8, 32000, 1e4, R"({"sliding_window": null})"},
    {"phi3-mini", "phi3", 3072, 8192, 32, 32, 32, 32064, 1e4},
    {"gemma2-9b", "gemma2", 3584, 14336, 42, 16, 8, 256000, 1e4,
     R"({"head_dim": 256, "sliding_window": 4096, "attn_logit_softcapping": 50,
         "final_logit_softcapping": 30, "query_pre_attn_scalar": 256})"},
    {"gemma3-12b", "gemma3_text", 3840, 15360, 48, 16, 8, 262208, 1e6,
     R"({"head_dim": 256, "sliding_window": 1024, "tie_word_embeddings": false})"},
    {"gemma4-31b", "gemma4_text", 5376, 21504, 60, 32, 16, 262144, 1e6,
     R"({"head_dim": 256, "global_head_dim": 512, "num_global_key_value_heads": 4,
         "attention_k_eq_v": true, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0,
         "sliding_window": 1024, "tie_word_embeddings": false})"},
    {"gemma4-e4b", "gemma4_text", 2560, 10240, 42, 8, 2, 262144, 1e6,
     R"({"head_dim": 256, "global_head_dim": 512, "num_kv_shared_layers": 18,
         "sliding_window": 512, "tie_word_embeddings": false})"},
    {"gemma4-26b", "gemma4_text", 2816, 2112, 30, 16, 8, 262144, 1e6,
     R"({"head_dim": 256, "global_head_dim": 512, "num_global_key_value_heads": 2,
         "attention_k_eq_v": true, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0,
         "enable_moe_block": true, "num_experts": 128, "top_k_experts": 8,
         "moe_intermediate_size": 704, "sliding_window": 1024, "tie_word_embeddings": false})"},
    {"gpt-oss-20b", "gpt_oss", 2880, 2880, 24, 64, 8, 201088, 150000,
     R"({"head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128})"},
    {"mixtral-8x7b", "mixtral", 4096, 14336, 32, 32, 8, 32000, 1e6,
     R"({"num_local_experts": 8, "num_experts_per_tok": 2})"},
};

}  // namespace

Json ShapeConfig(std::string_view name, int64_t layers) {
  std::vector<std::string_view> known;
  for (const Shape& s : kShapes) {
    known.push_back(s.name);
    if (s.name != name) continue;
    Json config = {{"model_type", s.model_type},
                   {"hidden_size", s.hidden_size},
                   {"intermediate_size", s.intermediate_size},
                   {"num_hidden_layers", s.layers},
                   {"num_attention_heads", s.heads},
                   {"num_key_value_heads", s.kv_heads},
                   {"vocab_size", s.vocab_size},
                   {"max_position_embeddings", 8192},
                   {"rms_norm_eps", 1e-5},
                   {"rope_theta", s.rope_theta}};
    config.update(ParseJson(s.others, std::string(name)));
    if (layers == 0) return config;
    config["num_hidden_layers"] = layers;
    const auto shared = config.find("num_kv_shared_layers");
    // Shared layers come in whole periods of layer types, so that each type has a layer in front of
    // them.
    constexpr int64_t kPeriod = 6;
    if (shared != config.end()) {
      *shared = shared->get<int64_t>() * layers / s.layers / kPeriod * kPeriod;
    }
    return config;
  }
  FailUsage("no shape \"{}\"; choose one of {}", name, fmt::join(known, ", "));
}

ModelConfig FindShape(std::string_view name) {
  return ParseConfig(ShapeConfig(name), std::string(name));
}

std::string_view ShapeNameOf(const ModelConfig& c) {
  const auto found = std::ranges::find_if(kShapes, [&](const Shape& s) {
    return c.family == s.model_type && c.hidden_size == s.hidden_size && c.layers == s.layers &&
           c.intermediate_size == s.intermediate_size && c.heads == s.heads &&
           c.kv_heads == s.kv_heads && c.vocab_size == s.vocab_size;
  });
  return found == std::end(kShapes) ? std::string_view() : found->name;
}

}  // namespace nibble
