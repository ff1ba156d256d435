// SPDX-License-Identifier: Apache-2.0
// The meaning of config.json and tensors in Hugging Face transformers, in fp64 and plain loops: an
// oracle for tests that shares nothing with the engine but the readers of files.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <numeric>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "io/safetensors.h"
#include "tensor/plain_math_testing.h"
#include "tensor/tensor.h"

namespace nibble {

class HfForward {
 public:
  using Vector = plain::Vector;

  explicit HfForward(const std::string& directory)
      : config_(ReadJsonFile(directory + "/config.json")),
        file_(directory + "/model.safetensors") {}

  // The states behind the final norm, [tokens, hidden].
  std::vector<Vector> States(const std::vector<int32_t>& ids) {
    const Matrix<double> table = Get("model.embed_tokens.weight");
    std::vector<Vector> x;
    given_.clear();
    for (const int32_t id : ids) {
      const auto row = table.row(id);
      x.emplace_back(row.begin(), row.end());
      for (double& v : x.back()) v *= Number("embedding_multiplier", IsGemma() ? RootOfWidth() : 1);
      given_.push_back(LayerInputs(id, x.back()));
    }
    for (int64_t layer = 0; layer < config_["num_hidden_layers"]; ++layer) Layer(layer, x);
    for (Vector& row : x) row = Normed("model.norm.weight", row);
    return x;
  }

  // [tokens, vocab]
  std::vector<Vector> Logits(const std::vector<int32_t>& ids) {
    std::vector<Vector> logits;
    const bool tied = config_.value("tie_word_embeddings", false);
    const Matrix<double> head = Get(tied ? "model.embed_tokens.weight" : "lm_head.weight");
    for (const Vector& state : States(ids)) {
      logits.push_back(plain::Times(head, state));
      for (double& v : logits.back()) {
        v = Capped(v / Number("logits_scaling", 1), "final_logit_softcapping");
      }
    }
    return logits;
  }

 private:
  double Number(const char* key, double otherwise) const {
    return config_.contains(key) && !config_[key].is_null() ? config_[key].get<double>()
                                                            : otherwise;
  }
  double Capped(double x, const char* key) const {
    const double cap = Number(key, 0);
    return cap > 0 && Type() != "gemma3_text" ? cap * std::tanh(x / cap) : x;
  }
  std::string Type() const { return config_["model_type"]; }
  bool IsGemma() const { return Type().starts_with("gemma"); }
  bool IsGemma4() const { return Type() == "gemma4_text"; }
  double RootOfWidth() const { return std::sqrt(config_["hidden_size"].get<double>()); }
  bool Has(const std::string& name) const { return file_.tensors().contains(name); }
  Matrix<double> Get(const std::string& name) const { return ToF64(file_.tensors().at(name)); }

  // The outputs [first, first + count) of a linear; all of them if count is 0.
  Vector Linear(const std::string& name, const Vector& x, int64_t first = 0,
                int64_t count = 0) const {
    Vector y = plain::Times(Get(name + ".weight"), x);
    if (Has(name + ".bias")) {
      const Matrix<double> bias = Get(name + ".bias");
      for (size_t n = 0; n < y.size(); ++n) y[n] += bias.data[n];
    }
    if (count == 0) return y;
    return {y.begin() + first, y.begin() + first + count};
  }

  double Size(const Vector& x) const {
    double squares = 0;
    for (const double v : x) squares += v * v;
    return std::sqrt(squares / static_cast<double>(x.size()) + Number("rms_norm_eps", 1e-6));
  }
  Vector Normed(const std::string& name, const Vector& x) const {
    const double size = Size(x);
    const Matrix<double> weight = Get(name);
    Vector y;
    for (size_t i = 0; i < x.size(); ++i) {
      y.push_back(x[i] / size * (weight.data[i] + (IsGemma() && !IsGemma4() ? 1 : 0)));
    }
    return y;
  }

  Vector NormedIfAny(const std::string& name, const Vector& x) const {
    return Has(name) ? Normed(name, x) : x;
  }

  const Json& Rope(int64_t layer) const {
    if (!config_.contains("rope_parameters")) return config_;
    const Json& rope = config_["rope_parameters"];
    if (!rope.contains("full_attention")) return rope;
    return rope[config_["layer_types"][static_cast<size_t>(layer)].get<std::string>()];
  }

  // The angle's frequency of pair i of r / 2, by the published formulas.
  double Frequency(const Json& rope, int64_t i, int64_t r) const {
    const double base = std::pow(rope.value("rope_theta", 1e4),
                                 -2.0 * static_cast<double>(i) / static_cast<double>(r));
    const std::string type = rope.value("rope_type", "default");
    const double part = rope.value("partial_rotary_factor", 1.0);
    if (type == "proportional") return static_cast<double>(2 * i) < part * r ? base : 0;
    if (type == "linear") return base / rope["factor"].get<double>();
    if (type == "longrope") return base / LongFactors(rope)[static_cast<size_t>(i)].get<double>();
    if (type != "yarn") return base;
    const double original = rope["original_max_position_embeddings"].get<double>();
    const auto place = [&](double turns) {
      return static_cast<double>(r) * std::log(original / (turns * 2 * std::numbers::pi)) /
             (2 * std::log(rope["rope_theta"].get<double>()));
    };
    double low = place(rope.value("beta_fast", 32.0)), high = place(rope.value("beta_slow", 1.0));
    if (rope.value("truncate", true)) low = std::floor(low), high = std::ceil(high);
    low = std::max(low, 0.0), high = std::min(high, static_cast<double>(r - 1));
    const double share = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    return base * (1 - share) + base / rope["factor"].get<double>() * share;
  }
  const Json& LongFactors(const Json& rope) const {
    const bool beyond = config_["max_position_embeddings"].get<double>() >
                        rope["original_max_position_embeddings"].get<double>();
    return rope[beyond ? "long_factor" : "short_factor"];
  }
  // The factor of cosines and sines.
  double RopeSize(const Json& rope) const {
    const std::string type = rope.value("rope_type", "default");
    if (type == "yarn") {
      const auto size = [&](double scale) {
        return 0.1 * scale * std::log(rope["factor"].get<double>()) + 1;
      };
      const double all = rope.value("mscale_all_dim", 0.0);
      return all > 0 ? size(rope["mscale"]) / size(all) : size(1);
    }
    if (type != "longrope") return 1;
    const double original = rope["original_max_position_embeddings"].get<double>();
    const double factor = rope.value("factor", Number("max_position_embeddings", 1) / original);
    return factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(original));
  }

  void Turn(const Json& rope, int64_t position, double* head, int64_t head_dim) const {
    const bool whole = rope.value("rope_type", "") == "proportional";
    const double part = whole ? 1.0 : rope.value("partial_rotary_factor", 1.0);
    const auto r = static_cast<int64_t>(static_cast<double>(head_dim) * part);
    for (int64_t i = 0; i < r / 2; ++i) {
      const double angle = static_cast<double>(position) * Frequency(rope, i, r);
      const double c = std::cos(angle) * RopeSize(rope), s = std::sin(angle) * RopeSize(rope);
      const bool neighbours = Type() == "glm4";
      const int64_t at = neighbours ? 2 * i : i, other = neighbours ? at + 1 : i + r / 2;
      const double a = head[at], b = head[other];
      head[at] = a * c - b * s;
      head[other] = b * c + a * s;
    }
  }

  struct Heads {
    Vector q, k, v;
  };
  Heads Project(int64_t layer, const Vector& x, int64_t position) const {
    const std::string attention = Prefix(layer) + "self_attn.";
    const int64_t heads = config_["num_attention_heads"], kv = KvHeads(layer);
    const int64_t d = HeadDim(layer);
    const bool alike = config_.value("attention_k_eq_v", false) && Window(layer) == kNoWindow;
    Heads h;
    if (Lender(layer) != layer) {
      h = {Linear(attention + "q_proj", x), {}, {}};
    } else if (Has(attention + "qkv_proj.weight")) {
      const std::string fused = attention + "qkv_proj";
      h = {Linear(fused, x, 0, heads * d), Linear(fused, x, heads * d, kv * d),
           Linear(fused, x, (heads + kv) * d, kv * d)};
    } else {
      h = {Linear(attention + "q_proj", x), Linear(attention + "k_proj", x),
           Linear(attention + (alike ? "k_proj" : "v_proj"), x)};
    }
    bool turns = !config_.contains("no_rope_layers") ||
                 config_["no_rope_layers"][static_cast<size_t>(layer)] != 0;
    if (Type() == "exaone4") turns = Window(layer) < kNoWindow;
    for (const auto& [name, all] : {std::pair("q_norm.weight", &h.q), {"k_norm.weight", &h.k}}) {
      const bool whole = Type() == "olmo2";
      if (whole) *all = Normed(attention + name, *all);
      for (size_t at = 0; at < all->size(); at += static_cast<size_t>(d)) {
        const auto begin = all->begin() + static_cast<int64_t>(at);
        if (!whole && Has(attention + name)) {
          std::ranges::copy(Normed(attention + name, {begin, begin + d}), begin);
        }
        if (turns) Turn(Rope(layer), position, &*begin, d);
      }
    }
    for (size_t at = 0; IsGemma4() && at < h.v.size(); at += static_cast<size_t>(d)) {
      const auto begin = h.v.begin() + static_cast<int64_t>(at);
      const double size = Size({begin, begin + d});
      std::for_each(begin, begin + d, [&](double& v) { v /= size; });
    }
    return h;
  }

  // The inputs that all layers get for a token beside x, one behind the other.
  Vector LayerInputs(int32_t id, const Vector& x) const {
    if (!Has("model.embed_tokens_per_layer.weight")) return {};
    Vector all = Linear("model.per_layer_model_projection", x), y;
    for (double& v : all) v /= RootOfWidth();
    const Matrix<double> table = Get("model.embed_tokens_per_layer.weight");
    const auto row = table.row(id);
    const auto size = config_["hidden_size_per_layer_input"].get<int64_t>();
    for (auto at = all.begin(); at != all.end(); at += size) {
      for (const double v : Normed("model.per_layer_projection_norm.weight", {at, at + size})) {
        y.push_back((v + row[y.size()] * std::sqrt(static_cast<double>(size))) / std::sqrt(2.0));
      }
    }
    return y;
  }
  // The layer whose keys and values a layer reads.
  int64_t Lender(int64_t layer) const {
    const auto own =
        static_cast<int64_t>(Number("num_hidden_layers", 0) - Number("num_kv_shared_layers", 0));
    if (layer < own) return layer;
    int64_t lender = own - 1;
    while (config_["layer_types"][static_cast<size_t>(lender)] !=
           config_["layer_types"][static_cast<size_t>(layer)]) {
      --lender;
    }
    return lender;
  }
  int64_t KvHeads(int64_t layer) const {
    const bool global = IsGemma4() && Window(layer) == kNoWindow;
    const char* const key = global && config_.contains("num_global_key_value_heads")
                                ? "num_global_key_value_heads"
                                : "num_key_value_heads";
    return config_[key];
  }
  int64_t HeadDim(int64_t layer) const {
    const std::string at = std::to_string(layer);
    if (config_.contains("per_layer_config") && config_["per_layer_config"].contains(at)) {
      return config_["per_layer_config"][at]["head_dim"];
    }
    if (IsGemma4() && Window(layer) == kNoWindow) return config_["global_head_dim"];
    if (config_.contains("head_dim")) return config_["head_dim"];
    return config_["hidden_size"].get<int64_t>() / config_["num_attention_heads"].get<int64_t>();
  }
  static std::string Prefix(int64_t layer) { return "model.layers." + std::to_string(layer) + "."; }

  static constexpr int64_t kNoWindow = 1 << 30;
  int64_t Window(int64_t layer) const {
    const std::string type = config_["model_type"];
    if (Number("sliding_window", 0) == 0 || type == "llama") return kNoWindow;
    if (type.starts_with("qwen") && !config_.value("use_sliding_window", false)) return kNoWindow;
    if (type == "gpt_oss" && layer % 2 == 1) return kNoWindow;
    const bool typed = config_.contains("layer_types");
    if (typed && config_["layer_types"][static_cast<size_t>(layer)] == "full_attention") {
      return kNoWindow;
    }
    return config_["sliding_window"];
  }

  Vector Attend(const std::vector<Heads>& all, int64_t layer, int64_t query) const {
    const int64_t heads = config_["num_attention_heads"], kv = KvHeads(layer);
    const int64_t d = HeadDim(layer);
    const double scale =
        IsGemma4() ? 1
                   : Number("attention_multiplier",
                            1 / std::sqrt(Number("query_pre_attn_scalar", static_cast<double>(d))));
    Vector out(static_cast<size_t>(heads * d));
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t at = h / (heads / kv) * d;
      Vector weights;
      const int64_t first = std::max<int64_t>(0, query - Window(layer) + 1);
      double sum = 0;
      for (int64_t key = first; key <= query; ++key) {
        double score = 0;
        for (int64_t i = 0; i < d; ++i)
          score += Of(all[query].q, h * d + i) * Of(all[key].k, at + i);
        weights.push_back(std::exp(Capped(score * scale, "attn_logit_softcapping")));
        sum += weights.back();
      }
      const std::string sinks = Prefix(layer) + "self_attn.sinks";
      if (Has(sinks)) sum += std::exp(Get(sinks).data[static_cast<size_t>(h)]);
      for (int64_t key = first; key <= query; ++key) {
        for (int64_t i = 0; i < d; ++i) {
          out[static_cast<size_t>(h * d + i)] +=
              weights[static_cast<size_t>(key - first)] / sum * Of(all[key].v, at + i);
        }
      }
    }
    return out;
  }
  static double Of(const Vector& x, int64_t i) { return x[static_cast<size_t>(i)]; }

  Vector Gated(const Vector& gate, const Vector& up) const {
    Vector y;
    for (size_t i = 0; i < gate.size(); ++i) {
      const double g = gate[i];
      const double gelu = std::tanh(std::sqrt(2 / std::numbers::pi) * (g + 0.044715 * g * g * g));
      y.push_back((IsGemma() ? g / 2 * (1 + gelu) : g / (1 + std::exp(-g))) * up[i]);
    }
    return y;
  }

  Vector Mlp(int64_t layer, const Vector& x) const {
    const std::string mlp = Prefix(layer) + "mlp.";
    if (Type() == "gpt_oss") return ClampedMixture(mlp, x);
    if (Has(mlp + "gate.weight")) return Mixture(mlp, x);
    if (Has(mlp + "gate_up_proj.weight")) {
      const Vector both = Linear(mlp + "gate_up_proj", x);
      const auto middle = both.begin() + static_cast<int64_t>(both.size() / 2);
      return Linear(mlp + "down_proj", Gated({both.begin(), middle}, {middle, both.end()}));
    }
    return Linear(mlp + "down_proj",
                  Gated(Linear(mlp + "gate_proj", x), Linear(mlp + "up_proj", x)));
  }

  // Softmax over all experts, or each one's sigmoid and a bias of the choice; the largest few,
  // their sum divided out if the config says so.
  Vector Mixture(const std::string& mlp, const Vector& x) const {
    Vector p = Linear(mlp + "gate", x), out(x.size());
    const bool sigmoids = Has(mlp + "gate.e_score_correction_bias");
    double sum = 0, kept = 0;
    for (double& v : p) sum += v = sigmoids ? 1 / (1 + std::exp(-v)) : std::exp(v);
    for (double& v : p) v /= sigmoids ? 1 : sum;
    Vector keys = p;
    for (size_t e = 0; sigmoids && e < p.size(); ++e) {
      keys[e] += Get(mlp + "gate.e_score_correction_bias").data[e];
    }
    const std::vector<size_t> order = Largest(keys, "num_experts_per_tok");
    for (const size_t e : order) kept += p[e];
    const auto add = [&](const std::string& expert, double weight) {
      const Vector y = Linear(expert + "down_proj", Gated(Linear(expert + "gate_proj", x),
                                                          Linear(expert + "up_proj", x)));
      for (size_t i = 0; i < y.size(); ++i) out[i] += weight * y[i];
    };
    for (const size_t e : order) {
      const double weight = config_.value("norm_topk_prob", false) ? p[e] / kept : p[e];
      add(mlp + "experts." + std::to_string(e) + ".",
          weight * config_.value("routed_scaling_factor", 1.0));
    }
    if (sigmoids) add(mlp + "shared_experts.", 1);
    return out;
  }

  // The experts of the largest keys, as many as config.json says under this name.
  std::vector<size_t> Largest(const Vector& keys, const char* count) const {
    std::vector<size_t> order(keys.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, std::greater(), [&](size_t e) { return keys[e]; });
    order.resize(config_[count].get<size_t>());
    return order;
  }

  // The outputs of one of the stacked experts; in gpt-oss inputs and outputs are exchanged.
  Vector OfStack(const std::string& name, size_t expert, const Vector& x) const {
    const Tensor& w = file_.tensors().at(name);
    const std::vector<double> all =
        ToF64({w.dtype, {w.shape[0] * w.shape[1], w.shape[2]}, w.data}).data;
    const bool exchanged = Type() == "gpt_oss";
    const auto inputs = x.size(), outputs = static_cast<size_t>(w.shape[exchanged ? 2 : 1]);
    Vector y(outputs);
    for (size_t n = 0; n < outputs; ++n) {
      if (Has(name + "_bias")) y[n] = Get(name + "_bias").row(static_cast<int64_t>(expert))[n];
      for (size_t k = 0; k < inputs; ++k) {
        const size_t at = exchanged ? k * outputs + n : n * inputs + k;
        y[n] += all[expert * inputs * outputs + at] * x[k];
      }
    }
    return y;
  }

  // Gemma 4: the sum of the norms of what the FFN and what the experts make of x; the experts read
  // norms of x of their own.
  Vector BesideExperts(const std::string& prefix, const Vector& dense, const Vector& x) const {
    Vector routed = x, sum(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      routed[i] *= Get(prefix + "router.scale").data[i] / Size(x) / RootOfWidth();
    }
    const Vector p = Linear(prefix + "router.proj", routed);
    const Vector h = Normed(prefix + "pre_feedforward_layernorm_2.weight", x);
    const std::vector<size_t> order = Largest(p, "top_k_experts");
    double kept = 0;
    for (const size_t e : order) kept += std::exp(p[e]);
    for (const size_t e : order) {
      const Vector both = OfStack(prefix + "experts.gate_up_proj", e, h);
      const auto middle = both.begin() + static_cast<int64_t>(both.size() / 2);
      const Vector y = OfStack(prefix + "experts.down_proj", e,
                               Gated({both.begin(), middle}, {middle, both.end()}));
      const double scale = Get(prefix + "router.per_expert_scale").data[e];
      for (size_t i = 0; i < y.size(); ++i) sum[i] += scale * std::exp(p[e]) / kept * y[i];
    }
    Vector added = Normed(prefix + "post_feedforward_layernorm_1.weight", dense);
    plain::Add(Normed(prefix + "post_feedforward_layernorm_2.weight", sum), added);
    return added;
  }

  // gpt-oss: softmax over the chosen logits; even rows are gates, odd ones are let through.
  Vector ClampedMixture(const std::string& mlp, const Vector& x) const {
    const Vector logits = Linear(mlp + "router", x);
    Vector out(x.size());
    const std::vector<size_t> order = Largest(logits, "num_experts_per_tok");
    double sum = 0;
    for (const size_t e : order) sum += std::exp(logits[e]);
    const double alpha = Number("swiglu_alpha", 1.702), limit = Number("swiglu_limit", 7);
    for (const size_t e : order) {
      const Vector both = OfStack(mlp + "experts.gate_up_proj", e, x);
      Vector gated;
      for (size_t i = 0; i < both.size(); i += 2) {
        const double gate = std::min(both[i], limit), up = std::clamp(both[i + 1], -limit, limit);
        gated.push_back((up + 1) * gate / (1 + std::exp(-alpha * gate)));
      }
      const Vector y = OfStack(mlp + "experts.down_proj", e, gated);
      for (size_t i = 0; i < y.size(); ++i) out[i] += std::exp(logits[e]) / sum * y[i];
    }
    return out;
  }

  // x += the branch's output, or its norm where the family has one there.
  void Add(const std::string& norm, const Vector& y, Vector& x) const {
    const Vector added = Has(norm) ? Normed(norm, y) : y;
    for (size_t i = 0; i < y.size(); ++i) x[i] += Number("residual_multiplier", 1) * added[i];
  }

  void Layer(int64_t layer, std::vector<Vector>& x) {
    const std::string prefix = Prefix(layer);
    const auto norm = [&](const char* name) { return prefix + name + "_layernorm.weight"; };
    std::vector<Heads> all;
    for (size_t t = 0; t < x.size(); ++t) {
      const Vector h = NormedIfAny(prefix + "input_layernorm.weight", x[t]);
      all.push_back(Project(layer, h, static_cast<int64_t>(t)));
      if (Lender(layer) == layer) continue;
      all[t].k = heads_[Lender(layer)][t].k, all[t].v = heads_[Lender(layer)][t].v;
    }
    heads_[layer] = all;
    for (size_t t = 0; t < x.size(); ++t) {
      const Vector a =
          Linear(prefix + "self_attn.o_proj", Attend(all, layer, static_cast<int64_t>(t)));
      const bool behind = IsGemma() || Type() == "olmo2" || Type() == "exaone4";
      Add(norm(behind ? "post_attention" : "post_self_attn"), a, x[t]);
      const Vector h = NormedIfAny(norm(behind ? "pre_feedforward" : "post_attention"), x[t]);
      Vector y = Mlp(layer, h);
      if (Has(prefix + "router.scale")) y = BesideExperts(prefix, y, x[t]);
      Add(norm(behind ? "post_feedforward" : "post_mlp"), y, x[t]);
      if (!given_[t].empty()) {
        const auto size = given_[t].size() / config_["num_hidden_layers"].get<size_t>();
        const auto own = given_[t].begin() + layer * static_cast<int64_t>(size);
        const Vector gated = Gated(Linear(prefix + "per_layer_input_gate", x[t]),
                                   {own, own + static_cast<int64_t>(size)});
        Add(prefix + "post_per_layer_input_norm.weight",
            Linear(prefix + "per_layer_projection", gated), x[t]);
      }
      if (!Has(prefix + "layer_scalar")) continue;
      for (double& v : x[t]) v *= Get(prefix + "layer_scalar").data[0];
    }
  }

  const Json config_;
  const SafetensorsFile file_;
  std::map<int64_t, std::vector<Heads>> heads_;  // of each layer
  std::vector<Vector> given_;                    // to the layers, of each token
};

}  // namespace nibble
