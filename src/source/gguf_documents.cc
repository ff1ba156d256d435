// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <numbers>

#include "source/gguf_source.h"

namespace nibble {
namespace {

// Ids in a GGUF file, tokens in tokenizer_config.json.
constexpr std::pair<const char*, const char*> kSpecialTokens[] = {
    {"bos", "bos_token"}, {"eos", "eos_token"}, {"unknown", "unk_token"}, {"padding", "pad_token"}};

// Llama 3.1's scaling of frequencies (transformers, rope_type llama3) with its published bounds:
// below 8192 / 4 whole turns it does nothing, above 8192 it divides by the factor.
double Llama3Divisor(double frequency, double factor) {
  constexpr double kContext = 8192, kLow = 1, kHigh = 4;
  const double length = 2 * std::numbers::pi / frequency;
  if (length < kContext / kHigh) return 1;
  if (length > kContext / kLow) return factor;
  const double blend = (kContext / length - kLow) / (kHigh - kLow);
  return 1 / ((1 - blend) / factor + blend);
}

// A file says by which factor each frequency is divided; config.json wants the law.
Json RopeScaling(const Tensor& divisors, double theta, const std::string& path) {
  const std::vector<float> found = ToF32(divisors).data;
  const double factor = found.back(), half = static_cast<double>(found.size());
  for (size_t i = 0; i < found.size(); ++i) {
    const double frequency = std::pow(theta, -static_cast<double>(i) / half);
    const double expected = Llama3Divisor(frequency, factor);
    if (factor >= 1 && std::abs(found[i] - expected) <= 1e-4 * expected) continue;
    Fail("{}: rope_freqs[{}] = {}; Llama 3's law gives {}, and no other is known", path, i,
         found[i], expected);
  }
  return {{"rope_type", "llama3"},
          {"factor", factor},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", 8192}};
}

Json LinearScaling(const GgufFile& file) {
  const auto type = file.FindString("llama.rope.scaling.type").value_or("none");
  if (type == "none") return nullptr;
  const auto factor = file.FindReal("llama.rope.scaling.factor");
  if (type != "linear" || !factor) {
    Fail("{}: llama.rope.scaling.type \"{}\"; linear with a factor is read", file.path(), type);
  }
  return {{"rope_type", "linear"}, {"factor", *factor}};
}

}  // namespace

Json GgufConfig(const std::vector<GgufFile>& files) {
  const GgufFile& file = files[0];
  const auto architecture = file.FindString("general.architecture").value_or("");
  if (architecture != "llama") {
    Fail("{}: general.architecture \"{}\" is not read; this build reads llama", file.path(),
         architecture);
  }
  if (file.FindInteger("llama.expert_count").value_or(0) > 0) {
    Fail("{}: mixtures of experts are not read from GGUF files; use the Hugging Face checkpoint",
         file.path());
  }
  const Tensor* embedding = FindGgufTensor(files, "token_embd.weight");
  if (embedding == nullptr) Fail("{}: no tensor token_embd.weight", file.path());
  const int64_t heads = file.Integer("llama.attention.head_count");
  Json config = {
      {"architectures", {"LlamaForCausalLM"}},
      {"model_type", "llama"},
      {"hidden_size", file.Integer("llama.embedding_length")},
      {"intermediate_size", file.Integer("llama.feed_forward_length")},
      {"num_hidden_layers", file.Integer("llama.block_count")},
      {"num_attention_heads", heads},
      {"num_key_value_heads", file.FindInteger("llama.attention.head_count_kv").value_or(heads)},
      {"vocab_size", embedding->shape[0]},
      {"max_position_embeddings", file.Integer("llama.context_length")},
      {"rope_theta", file.FindReal("llama.rope.freq_base").value_or(10000)},
      {"hidden_act", "silu"},
      {"tie_word_embeddings", FindGgufTensor(files, "output.weight") == nullptr},
      {"attention_bias", FindGgufTensor(files, "blk.0.attn_q.bias") != nullptr},
      {"mlp_bias", FindGgufTensor(files, "blk.0.ffn_gate.bias") != nullptr}};
  // fp32 in the file: the decimal that was meant.
  const auto eps = file.FindReal("llama.attention.layer_norm_rms_epsilon").value_or(1e-6);
  config["rms_norm_eps"] = std::stod(fmt::format("{:.6g}", eps));
  if (const auto head_dim = file.FindInteger("llama.attention.key_length")) {
    config["head_dim"] = *head_dim;
  }
  const Tensor* divisors = FindGgufTensor(files, "rope_freqs.weight");
  config["rope_scaling"] = divisors != nullptr
                               ? RopeScaling(*divisors, config["rope_theta"], file.path())
                               : LinearScaling(file);
  return config;
}

Json GgufGenerationConfig(const GgufFile& file) {
  Json json = Json::object(), stops = Json::array();
  if (const auto bos = file.FindInteger("tokenizer.ggml.bos_token_id")) json["bos_token_id"] = *bos;
  for (const char* name : {"eos", "eot"}) {
    const auto id = file.FindInteger(fmt::format("tokenizer.ggml.{}_token_id", name));
    if (id && std::ranges::find(stops, Json(*id)) == stops.end()) stops.push_back(*id);
  }
  if (!stops.empty()) json["eos_token_id"] = stops;
  return json;
}

Json GgufTokenizerConfig(const GgufFile& file) {
  Json json = Json::object();
  const std::vector<std::string_view> tokens = file.Strings("tokenizer.ggml.tokens");
  for (const auto& [name, key] : kSpecialTokens) {
    const auto id = file.FindInteger(fmt::format("tokenizer.ggml.{}_token_id", name));
    if (!id) continue;
    if (*id < 0 || *id >= static_cast<int64_t>(tokens.size())) {
      Fail("{}: tokenizer.ggml.{}_token_id {} is none of {} tokens", file.path(), name, *id,
           tokens.size());
    }
    json[key] = tokens[static_cast<size_t>(*id)];
  }
  if (const auto text = file.FindString("tokenizer.chat_template")) json["chat_template"] = *text;
  return json;
}

}  // namespace nibble
