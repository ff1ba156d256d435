// SPDX-License-Identifier: Apache-2.0
// Random models that have what trained ones have and random numbers have not: outliers.
#pragma once

#include <map>
#include <optional>

#include "models/families/family.h"
#include "models/random_model_testing.h"

namespace nibble {

// Values for RandomModel with what Sun et al. 2024 ("Massive Activations in Large Language Models")
// found: a few channels that hold most of the residual stream's energy, a massive activation at
// token 0, norms whose weights answer, and keys with large biases or norms.
class OutlierValues {
 public:
  explicit OutlierValues(const Json& config)
      : config_(ParseConfig(config, "test")), family_(FamilyOf(config, "test")) {
    linears_[family_.linear(config_, 0, Role::kEmbedding) + ".weight"] = Role::kEmbedding;
    for (int64_t layer = 0; layer < config_.layers; ++layer) {
      for (LayerVector norm : config_.layer_vectors(layer)) {
        norms_[family_.vector(config_, layer, norm)] = norm;
      }
      for (Role role : config_.layer_roles(layer)) {
        const std::string name = family_.linear(config_, layer, role);
        linears_.try_emplace(name + ".weight", role);
        if (role == Role::kK) key_biases_.insert(name + ".bias");
      }
    }
  }

  void operator()(const std::string& tensor, std::span<const int64_t> shape,
                  std::span<float> values) const {
    if (key_biases_.contains(tensor)) Scale(values, 20);
    if (const auto norm = norms_.find(tensor); norm != norms_.end()) Norm(norm->second, values);
    if (tensor == family_.final_norm) Norm({}, values);
    const auto linear = linears_.find(tensor);
    if (linear == linears_.end() || shape.size() != 2) return;
    const size_t cols = static_cast<size_t>(shape[1]);
    switch (KindOf(linear->second)) {
      case Role::kEmbedding:
        for (size_t k : kLoud) Scale(values, 20, k, cols);
        values[kLoud[0]] *= 20;
        break;
      case Role::kO:
      case Role::kDown:
        for (size_t n : kLoud) Scale(values.subspan(n * cols, cols), 5);
        break;
      default:
        if (!config_.NormInFront(linear->second)) break;
        for (size_t k : kSharp) Scale(values, 0.1f, k, cols);
    }
  }

 private:
  // Channels with the energy; those that norms multiply by 50 for linears that are small there.
  static constexpr size_t kLoud[] = {3, 17, 40}, kSharp[] = {11, 29};

  static void Scale(std::span<float> values, float factor, size_t first = 0, size_t step = 1) {
    for (size_t i = first; i < values.size(); i += step) values[i] *= factor;
  }
  void Norm(std::optional<LayerVector> norm, std::span<float> values) const {
    const float one = family_.norms_lack_one ? 1 : 0;
    for (float& w : values) w = 0.3f + 0.5f * std::fabs(w);
    if (!norm || IsFoldable(*norm)) {  // none: the last one
      for (size_t k : kLoud) values[k] = 0.03f;
      for (size_t k : kSharp) values[k] = norm ? 50.0f : values[k];
    } else if (norm == LayerVector::kKeyNorm) {
      Scale(values.first(2), 8);
    } else if (values.size() == static_cast<size_t>(config_.hidden_size)) {  // behind o or down
      for (size_t k : kLoud) values[k] *= 5;
    }
    for (float& w : values) w -= one;
  }

  ModelConfig config_;
  const Family& family_;
  std::map<std::string, LayerVector> norms_;
  std::map<std::string, Role> linears_;
  std::set<std::string> key_biases_;
};

}  // namespace nibble
