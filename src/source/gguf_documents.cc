// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <numbers>
#include <set>

#include "source/gguf_source.h"

namespace nibble {
namespace {

// Names of special tokens: with ids in a GGUF file, with texts in tokenizer_config.json.
constexpr std::pair<const char*, const char*> kSpecialTokens[] = {
    {"bos", "bos_token"}, {"eos", "eos_token"}, {"unknown", "unk_token"}, {"padding", "pad_token"}};

// Llama 3.1's scaling of frequencies (transformers, rope_type llama3) with its published bounds: a
// frequency whose period is below 8192 / 4 tokens stays, one whose period is above 8192 is divided
// by the factor.
double Llama3Divisor(double frequency, double factor) {
  constexpr double kContext = 8192, kLow = 1, kHigh = 4;
  const double length = 2 * std::numbers::pi / frequency;
  if (length < kContext / kHigh) return 1;
  if (length > kContext / kLow) return factor;
  const double blend = (kContext / length - kLow) / (kHigh - kLow);
  return 1 / ((1 - blend) / factor + blend);
}

// A file has the divisor of each frequency; config.json wants the parameters of the law.
Json Llama3Scaling(const Tensor& divisors, double theta, const std::string& path) {
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

// A value of general.architecture and its names at Hugging Face.
struct Architecture {
  std::string_view name, model_type, model_class;
};
constexpr Architecture kArchitectures[] = {{"llama", "llama", "LlamaForCausalLM"},
                                           {"smollm3", "smollm3", "SmolLM3ForCausalLM"},
                                           {"granite", "granite", "GraniteForCausalLM"},
                                           {"olmo2", "olmo2", "Olmo2ForCausalLM"},
                                           {"qwen2", "qwen2", "Qwen2ForCausalLM"},
                                           {"qwen3", "qwen3", "Qwen3ForCausalLM"},
                                           {"qwen3moe", "qwen3_moe", "Qwen3MoeForCausalLM"},
                                           {"phi3", "phi3", "Phi3ForCausalLM"},
                                           {"gemma2", "gemma2", "Gemma2ForCausalLM"},
                                           {"gemma3", "gemma3_text", "Gemma3ForCausalLM"},
                                           {"gpt-oss", "gpt_oss", "GptOssForCausalLM"}};

Architecture ArchitectureOf(const GgufFile& file) {
  const auto name = file.FindString("general.architecture").value_or("");
  std::vector<std::string_view> known;
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.name == name) return architecture;
    known.push_back(architecture.name);
  }
  Fail("{}: general.architecture \"{}\" is not read; this build reads {}", file.path(), name,
       fmt::join(known, ", "));
}

// The longrope scaling of Phi 3 from its lists of divisors.
Json LongropeScaling(const std::vector<GgufFile>& files, const std::string& scaling) {
  const GgufFile& file = files[0];
  Json json = {{"rope_type", "longrope"}};
  for (const char* length : {"long", "short"}) {
    const Tensor* divisors = FindGgufTensor(files, fmt::format("rope_factors_{}.weight", length));
    if (divisors == nullptr) Fail("{}: no tensor rope_factors_{}.weight", file.path(), length);
    json[fmt::format("{}_factor", length)] = ToF64(*divisors).data;
  }
  json["original_max_position_embeddings"] = file.Integer(scaling + "original_context_length");
  if (const auto size = file.FindReal(scaling + "attn_factor")) json["attention_factor"] = *size;
  return json;
}

// Adds optional keys of a file with yarn. The file's factor of attention multiplies that of yarn's
// law.
void AddYarn(const GgufFile& file, const std::string& scaling, double factor, Json& json) {
  for (const char* beta : {"beta_fast", "beta_slow"}) {
    if (const auto value = file.FindReal(scaling + "yarn_" + beta)) json[beta] = *value;
  }
  for (const char* name : {"attn_factor", "yarn_attn_factor"}) {
    const double attention = file.FindReal(scaling + name).value_or(1);
    if (attention != 1) json["attention_factor"] = attention * (0.1 * std::log(factor) + 1);
  }
  for (const auto& [name, known] :
       {std::pair("yarn_ext_factor", 1.0), {"yarn_log_multiplier", 0.0}}) {
    const double value = file.FindReal(scaling + name).value_or(known);
    if (value != known) Fail("{}: {}{} = {} is not understood", file.path(), scaling, name, value);
  }
}

Json RopeScaling(const std::vector<GgufFile>& files, std::string_view architecture, double theta) {
  const GgufFile& file = files[0];
  const std::string scaling = fmt::format("{}.rope.scaling.", architecture);
  if (const Tensor* divisors = FindGgufTensor(files, "rope_freqs.weight")) {
    return Llama3Scaling(*divisors, theta, file.path());
  }
  if (FindGgufTensor(files, "rope_factors_long.weight") != nullptr) {
    return LongropeScaling(files, scaling);
  }
  const auto factor = file.FindReal(scaling + "factor");
  // A factor without a type means linear.
  const bool scales = factor.value_or(0) != 0 && *factor != 1;
  const auto type = file.FindString(scaling + "type").value_or(scales ? "linear" : "none");
  if (type == "none") {
    // Files of 2023 have this key.
    const auto old = file.FindReal(fmt::format("{}.rope.scale_linear", architecture)).value_or(0);
    return old == 0 ? Json() : Json{{"rope_type", "linear"}, {"factor", old}};
  }
  if ((type != "linear" && type != "yarn") || !factor) {
    Fail("{}: {}type \"{}\"; linear and yarn with a factor are read", file.path(), scaling, type);
  }
  Json json = {{"rope_type", type}, {"factor", *factor}};
  if (type == "yarn") {
    json["original_max_position_embeddings"] = file.Integer(scaling + "original_context_length");
    if (architecture == "gpt-oss") json["truncate"] = false;  // as its config.json has it
    AddYarn(file, scaling, *factor, json);
  }
  return json;
}

// Adds which layers have a window, if the file says so: a list of all layers, or a number n of
// which every n-th has none.
void AddLayerTypes(const GgufFile& file, const std::string& prefix, Json& config) {
  const std::string key = prefix + "attention.sliding_window_pattern";
  if (!file.Has(key)) return;
  const Json pattern = file.Show(key);
  const int64_t layers = config["num_hidden_layers"];
  std::vector<bool> windows;
  if (pattern.is_array()) {
    for (const Json& entry : pattern) {
      if (!entry.is_boolean() && !entry.is_number_integer()) {
        Fail("{}: {} must be true or false, or numbers", file.path(), key);
      }
      windows.push_back(entry.is_boolean() ? entry.get<bool>() : entry != 0);
    }
    if (static_cast<int64_t>(windows.size()) != layers) {
      Fail("{}: {} has {} items for {} layers", file.path(), key, windows.size(), layers);
    }
  } else {
    constexpr int64_t kMax = 1 << 16;  // more layers are refused later
    const int64_t period = file.Integer(key);
    for (int64_t i = 1; i <= std::min(layers, kMax); ++i) {
      windows.push_back(period <= 0 || i % period != 0);
    }
  }
  config["layer_types"] = Json::array();
  for (const bool window : windows) {
    config["layer_types"].push_back(window ? "sliding_attention" : "full_attention");
  }
}

// Adds the experts of a mixture under the names that its model type has for them.
void AddExperts(const GgufFile& file, const std::string& prefix, Json& config) {
  config["num_experts_per_tok"] = file.Integer(prefix + "expert_used_count");
  const int64_t experts = file.Integer(prefix + "expert_count");
  if (config["model_type"] == "llama") {
    config["model_type"] = "mixtral";
    config["architectures"] = {"MixtralForCausalLM"};
    config["num_local_experts"] = experts;
    return;
  }
  if (config["model_type"] == "gpt_oss") {
    config["num_local_experts"] = experts;
    config["intermediate_size"] = file.Integer(prefix + "expert_feed_forward_length");
    config["sliding_window"] = file.Integer(prefix + "attention.sliding_window");
    AddLayerTypes(file, prefix, config);
    return;
  }
  config["num_experts"] = experts;
  config["norm_topk_prob"] = true;
  config["moe_intermediate_size"] = file.Integer(prefix + "expert_feed_forward_length");
}

// Adds what Gemma's files leave to the program. Scores of the 27B models, which have 46 and 62
// layers, are scaled by hidden_size / heads and not by head_dim.
void AddGemma(const GgufFile& file, const std::string& prefix, Json& config) {
  config.erase("hidden_act");
  config["tie_word_embeddings"] = true;
  config["sliding_window"] = file.Integer(prefix + "attention.sliding_window");
  AddLayerTypes(file, prefix, config);
  const auto base = [&](const char* name, const char* older, double usual) {
    const auto value = file.FindReal(prefix + name);
    return value ? *value : file.FindReal(prefix + older).value_or(usual);
  };
  config["rope_local_base_freq"] = base("rope.freq_base_swa", "rope.local.freq_base", 10000);
  if (config["model_type"] == "gemma3_text") {  // Ollama's files have no base, or other keys
    config["rope_theta"] = base("rope.freq_base", "rope.global.freq_base", 1e6);
  }
  for (const char* cap : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    if (const auto value = file.FindReal(prefix + cap)) config[cap] = *value;
  }
  const int64_t width = config["hidden_size"], heads = config["num_attention_heads"];
  const int64_t layers = config["num_hidden_layers"];
  const bool wide = layers == (config["model_type"] == "gemma2" ? 46 : 62) && heads > 0;
  config["query_pre_attn_scalar"] =
      wide ? width / heads : config.value("head_dim", heads > 0 ? width / heads : 0);
}

// The decimal number that was meant by an fp32 value of the file.
double Decimal(double value) {
  return std::stod(fmt::format("{:.6g}", value));
}

// Adds Granite's multipliers, which GGUF names otherwise; one that is absent does nothing.
void AddGranite(const GgufFile& file, const std::string& prefix, Json& config) {
  constexpr std::pair<const char*, const char*> kScales[] = {
      {"embedding_scale", "embedding_multiplier"},
      {"residual_scale", "residual_multiplier"},
      {"attention.scale", "attention_multiplier"},
      {"logit_scale", "logits_scaling"}};
  for (const auto& [name, multiplier] : kScales) {
    if (const auto scale = file.FindReal(prefix + name)) config[multiplier] = Decimal(*scale);
  }
}

}  // namespace

Json GgufConfig(const std::vector<GgufFile>& files) {
  const GgufFile& file = files[0];
  const Architecture architecture = ArchitectureOf(file);
  const std::string prefix = fmt::format("{}.", architecture.name);
  const Tensor* embedding = FindGgufTensor(files, "token_embd.weight");
  if (embedding == nullptr) Fail("{}: no tensor token_embd.weight", file.path());
  const int64_t heads = file.Integer(prefix + "attention.head_count");
  const int64_t hidden_size = file.Integer(prefix + "embedding_length");
  Json config = {
      {"architectures", {architecture.model_class}},
      {"model_type", architecture.model_type},
      {"hidden_size", hidden_size},
      {"intermediate_size", file.FindInteger(prefix + "feed_forward_length").value_or(0)},
      {"num_hidden_layers", file.Integer(prefix + "block_count")},
      {"num_attention_heads", heads},
      {"num_key_value_heads", file.FindInteger(prefix + "attention.head_count_kv").value_or(heads)},
      {"vocab_size", embedding->shape[0]},
      {"max_position_embeddings", file.Integer(prefix + "context_length")},
      {"rope_theta", file.FindReal(prefix + "rope.freq_base").value_or(10000)},
      {"hidden_act", "silu"},
      {"tie_word_embeddings", FindGgufTensor(files, "output.weight") == nullptr},
      {"attention_bias", FindGgufTensor(files, "blk.0.attn_q.bias") != nullptr},
      {"mlp_bias", FindGgufTensor(files, "blk.0.ffn_gate.bias") != nullptr}};
  config["rms_norm_eps"] =
      Decimal(file.FindReal(prefix + "attention.layer_norm_rms_epsilon").value_or(1e-6));
  if (const auto head_dim = file.FindInteger(prefix + "attention.key_length")) {
    config["head_dim"] = *head_dim;
  }
  const int64_t head_dim = config.value("head_dim", heads > 0 ? hidden_size / heads : 0);
  const auto turned = file.FindInteger(prefix + "rope.dimension_count").value_or(head_dim);
  if (turned != head_dim && head_dim > 0) {
    config["partial_rotary_factor"] = static_cast<double>(turned) / static_cast<double>(head_dim);
  }
  if (file.FindInteger(prefix + "expert_count").value_or(0) > 0) {
    AddExperts(file, prefix, config);
  }
  if (architecture.name.starts_with("gemma")) AddGemma(file, prefix, config);
  if (architecture.name == "phi3") {
    const auto window = file.FindInteger(prefix + "attention.sliding_window").value_or(0);
    if (window > 0) config["sliding_window"] = window;
  }
  if (architecture.name == "granite") AddGranite(file, prefix, config);
  config["rope_scaling"] = RopeScaling(files, architecture.name, config["rope_theta"]);
  return config;
}

namespace {

using Tokens = std::vector<std::string_view>;

int64_t RequireToken(const GgufFile& file, std::string_view key, int64_t id, const Tokens& tokens) {
  if (id >= 0 && id < static_cast<int64_t>(tokens.size())) return id;
  Fail("{}: {} {} is none of {} tokens", file.path(), key, id, tokens.size());
}

// Returns the id in tokenizer.ggml.NAME_token_id.
std::optional<int64_t> FindToken(const GgufFile& file, std::string_view name,
                                 const Tokens& tokens) {
  const std::string key = fmt::format("tokenizer.ggml.{}_token_id", name);
  const auto id = file.FindInteger(key);
  return id ? std::optional(RequireToken(file, key, *id, tokens)) : std::nullopt;
}

// Many files name the end of a text alone, and their templates end turns with another token: Phi 3
// and Phi-4-mini with <|end|>, gpt-oss calls with <|call|>. In gpt-oss <|end|> ends a message, and
// an answer has several.
std::set<int64_t> TurnEnds(const Tokens& tokens, bool harmony) {
  std::set<std::string_view> texts = {"<|im_end|>", "<|end|>",         "<|eot_id|>",
                                      "<|eom_id|>", "<end_of_turn>",   "<|endoftext|>",
                                      "<|call|>",   "<|end_of_text|>", "<|return|>"};
  if (harmony) texts.erase("<|end|>");
  std::set<int64_t> ids;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (texts.contains(tokens[i])) ids.insert(static_cast<int64_t>(i));
  }
  return ids;
}

// Adds the parameters of sampling that the file's makers recommend.
void AddSampling(const GgufFile& file, Json& json) {
  constexpr std::pair<const char*, const char*> kReals[] = {
      {"temp", "temperature"},
      {"top_p", "top_p"},
      {"min_p", "min_p"},
      {"penalty_repeat", "repetition_penalty"}};
  const std::string prefix = "general.sampling.";
  for (const auto& [name, key] : kReals) {
    if (const auto value = file.FindReal(prefix + name)) json[key] = Decimal(*value);
  }
  // 0 and less mean all tokens.
  const auto top_k = file.FindInteger(prefix + "top_k");
  if (top_k) json["top_k"] = std::max<int64_t>(*top_k, 0);
  for (const char* key : {"temperature", "top_p", "min_p", "top_k"}) {
    if (json.contains(key)) json["do_sample"] = true;
  }
}

}  // namespace

Json GgufGenerationConfig(const GgufFile& file) {
  Json json = Json::object();
  AddSampling(file, json);
  const Tokens tokens = file.Strings("tokenizer.ggml.tokens");
  if (const auto bos = FindToken(file, "bos", tokens)) json["bos_token_id"] = *bos;
  std::vector<int64_t> stops;
  const auto add = [&](int64_t id) {
    if (std::ranges::find(stops, id) == stops.end()) stops.push_back(id);
  };
  for (const char* name : {"eos", "eot", "eom"}) {
    if (const auto id = FindToken(file, name, tokens)) add(*id);
  }
  constexpr std::string_view kAll = "tokenizer.ggml.eos_token_ids";  // in ollama's files
  for (const int64_t id : file.Integers(kAll, file.Count(kAll))) {
    add(RequireToken(file, kAll, id, tokens));
  }
  const bool harmony = file.FindString("general.architecture") == "gpt-oss";
  for (const int64_t id : TurnEnds(tokens, harmony)) add(id);
  if (!stops.empty()) json["eos_token_id"] = stops;
  return json;
}

Json GgufTokenizerConfig(const GgufFile& file) {
  Json json = Json::object();
  const Tokens tokens = file.Strings("tokenizer.ggml.tokens");
  for (const auto& [name, key] : kSpecialTokens) {
    if (const auto id = FindToken(file, name, tokens)) json[key] = tokens[static_cast<size_t>(*id)];
  }
  if (const auto text = file.FindString("tokenizer.chat_template")) json["chat_template"] = *text;
  if (const auto text = file.FindString("tokenizer.chat_template.tool_use")) {
    const Json plain = json.value("chat_template", Json(*text));
    json["chat_template"] = {{{"name", "default"}, {"template", plain}},
                             {{"name", "tool_use"}, {"template", *text}}};
  }
  return json;
}

}  // namespace nibble
