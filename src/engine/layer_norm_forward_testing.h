// SPDX-License-Identifier: Apache-2.0
// GPT-NeoX, Falcon and OPT as in hf_forward_testing.h: in fp64 and plain loops, with norms that
// subtract the mean.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "io/safetensors.h"
#include "tensor/plain_math_testing.h"
#include "tensor/tensor.h"

namespace nibble {

class LayerNormForward {
 public:
  using Vector = plain::Vector;

  explicit LayerNormForward(const std::string& directory)
      : config_(ReadJsonFile(directory + "/config.json")),
        type_(config_["model_type"]),
        file_(directory + "/model.safetensors") {}

  // [tokens, vocab]
  std::vector<Vector> Logits(const std::vector<int32_t>& ids) const {
    const std::string root = IsNeox() ? "gpt_neox." : IsOpt() ? "model.decoder." : "transformer.";
    const char* const embedding = IsNeox()  ? "embed_in"
                                  : IsOpt() ? "embed_tokens"
                                            : "word_embeddings";
    const Matrix<double> table = Get(root + embedding + ".weight");
    std::vector<Vector> x;
    for (size_t t = 0; t < ids.size(); ++t) {
      x.push_back(Row(table, ids[t]));
      if (IsOpt()) {
        plain::Add(Row(Get(root + "embed_positions.weight"), static_cast<int64_t>(t) + 2),
                   x.back());
      }
    }
    for (int64_t layer = 0; layer < config_["num_hidden_layers"]; ++layer) {
      Layer(root +
                (IsNeox()  ? "layers."
                 : IsOpt() ? "layers."
                           : "h.") +
                std::to_string(layer) + ".",
            x);
    }
    const std::string head = IsNeox() ? "embed_out.weight" : "lm_head.weight";
    std::vector<Vector> logits;
    for (const Vector& row : x) {
      const Vector last = Normed(root + (IsNeox() || IsOpt() ? "final_layer_norm" : "ln_f"), row);
      logits.push_back(plain::Times(file_.tensors().contains(head) ? Get(head) : table, last));
    }
    return logits;
  }

 private:
  bool IsNeox() const { return type_ == "gpt_neox"; }
  bool IsOpt() const { return type_ == "opt"; }
  Matrix<double> Get(const std::string& name) const { return ToF64(file_.tensors().at(name)); }
  static Vector Row(const Matrix<double>& m, int64_t row) {
    return {m.row(row).begin(), m.row(row).end()};
  }
  Vector Linear(const std::string& name, const Vector& x) const {
    Vector y = plain::Times(Get(name + ".weight"), x);
    if (file_.tensors().contains(name + ".bias")) plain::Add(Get(name + ".bias").data, y);
    return y;
  }
  Vector Normed(const std::string& name, const Vector& x) const {
    const double n = static_cast<double>(x.size());
    double mean = 0, variance = 0;
    for (const double v : x) mean += v / n;
    for (const double v : x) variance += (v - mean) * (v - mean) / n;
    const Vector weight = Get(name + ".weight").data, bias = Get(name + ".bias").data;
    Vector y;
    for (size_t i = 0; i < x.size(); ++i) {
      y.push_back((x[i] - mean) / std::sqrt(variance + 1e-5) * weight[i] + bias[i]);
    }
    return y;
  }

  struct Heads {
    std::vector<Vector> q, k, v;
  };
  Heads Project(const std::string& layer, const Vector& x, size_t position) const {
    const auto heads = config_["num_attention_heads"].get<size_t>();
    size_t groups = heads;
    if (type_ == "falcon") {
      groups = config_["new_decoder_architecture"] ? config_["num_kv_heads"].get<size_t>() : 1;
    }
    const size_t d = x.size() / heads;
    Heads h;
    const auto cut = [&](const Vector& all, size_t at) {
      const auto begin = all.begin() + static_cast<int64_t>(at * d);
      return Vector(begin, begin + static_cast<int64_t>(d));
    };
    if (IsOpt()) {
      const std::string attention = layer + "self_attn.";
      for (size_t i = 0; i < heads; ++i) {
        h.q.push_back(cut(Linear(attention + "q_proj", x), i));
        h.k.push_back(cut(Linear(attention + "k_proj", x), i));
        h.v.push_back(cut(Linear(attention + "v_proj", x), i));
      }
      return h;
    }
    const Vector all =
        Linear(layer + (IsNeox() ? "attention" : "self_attention") + ".query_key_value", x);
    for (size_t at = 0; at < heads + 2 * groups; ++at) {
      const size_t place = at % (heads / groups + 2);
      (place < heads / groups ? h.q : place == heads / groups ? h.k : h.v).push_back(cut(all, at));
    }
    const size_t r = IsNeox() ? d / 4 : d;
    for (auto* all_heads : {&h.q, &h.k}) {
      for (Vector& head : *all_heads) {
        for (size_t i = 0; i < r / 2; ++i) {
          const double angle =
              static_cast<double>(position) *
              std::pow(1e4, -2.0 * static_cast<double>(i) / static_cast<double>(r));
          const double a = head[i], b = head[i + r / 2];
          head[i] = a * std::cos(angle) - b * std::sin(angle);
          head[i + r / 2] = b * std::cos(angle) + a * std::sin(angle);
        }
      }
    }
    return h;
  }
  static Vector Attend(const std::vector<Heads>& all, size_t query) {
    Vector out;
    const size_t heads = all[0].q.size(), groups = all[0].k.size(), d = all[0].q[0].size();
    for (size_t h = 0; h < heads; ++h) {
      Vector sum(d);
      double weights = 0;
      for (size_t key = 0; key <= query; ++key) {
        double score = 0;
        for (size_t i = 0; i < d; ++i) {
          score += all[query].q[h][i] * all[key].k[h / (heads / groups)][i];
        }
        const double weight = std::exp(score / std::sqrt(static_cast<double>(d)));
        weights += weight;
        for (size_t i = 0; i < d; ++i) sum[i] += weight * all[key].v[h / (heads / groups)][i];
      }
      for (const double v : sum) out.push_back(v / weights);
    }
    return out;
  }

  void Layer(const std::string& layer, std::vector<Vector>& x) const {
    std::string first = "input_layernorm", second = "post_attention_layernorm";
    std::string o = "attention.dense", up = "mlp.dense_h_to_4h", down = "mlp.dense_4h_to_h";
    bool parallel = config_.value("use_parallel_residual", true);
    if (type_ == "falcon") {
      parallel = config_.value("parallel_attn", true);
      if (parallel) second = first;
      if (config_["new_decoder_architecture"]) first = "ln_attn", second = "ln_mlp";
      o = "self_attention.dense";
    }
    if (IsOpt()) {
      first = "self_attn_layer_norm", second = "final_layer_norm";
      o = "self_attn.out_proj", up = "fc1", down = "fc2", parallel = false;
    }
    std::vector<Heads> heads;
    for (size_t t = 0; t < x.size(); ++t) {
      heads.push_back(Project(layer, Normed(layer + first, x[t]), t));
    }
    for (size_t t = 0; t < x.size(); ++t) {
      const Vector attention = Linear(layer + o, Attend(heads, t)), before = x[t];
      plain::Add(attention, x[t]);
      Vector inner = Linear(layer + up, Normed(layer + second, parallel ? before : x[t]));
      for (double& v : inner) {
        v = IsOpt() ? std::max(v, 0.0) : v * std::erfc(-v / std::numbers::sqrt2) / 2;
      }
      plain::Add(Linear(layer + down, inner), x[t]);
    }
  }

  Json config_;
  std::string type_;
  SafetensorsFile file_;
};

}  // namespace nibble
