// SPDX-License-Identifier: Apache-2.0
// The fields of config.json and the names of tensors that families built like Llama share.
#pragma once

#include "models/families/families.h"

namespace nibble {

// Larger numbers mean no model but a damaged file; ModelConfig::parameters stays below 2^63.
inline constexpr int64_t kMaxWidth = 1 << 20, kMaxExperts = 512;

// A positive whole number up to `max`; above that a file is damaged, whatever it says.
int64_t ParseExtent(const Json& config, const char* key, int64_t max, const std::string& where);

// Parses a config without biases, whatever it says of them.
ModelConfig ParseLlama(const Json& config, const std::string& where);
// Parses a config with the biases that attention_bias and mlp_bias ask for.
ModelConfig ParseWithBiases(const Json& config, const std::string& where);
ModelConfig ParseMistral(const Json& config, const std::string& where);  // with a sliding window

int64_t ParseWindow(const Json& config, const std::string& where);  // 0: none
// One spec for each of layer_types, with that window for the type sliding_attention. Without
// layer_types all have it, but for every `period`-th where that is above 0.
std::vector<LayerSpec> ParseLayerTypes(const Json& config, int64_t layers, int64_t window,
                                       const std::string& where, int64_t period = 0);

// Throws unless query heads share key heads evenly and are as long as kernels take them.
void CheckHeads(const HeadShape& shape, const std::string& where);

// Gives this layer one FFN in place of experts.
void MakeDense(ModelConfig& config, int64_t layer);

std::string LlamaLinear(const ModelConfig& config, int64_t layer, Role role);
// LlamaLinear with a router "mlp.gate", experts "mlp.experts.3" and shared ones behind them,
// "mlp.shared_experts".
std::string MixtureLinear(const ModelConfig& config, int64_t layer, Role role);
std::string LlamaVector(const ModelConfig& config, int64_t layer, LayerVector norm);
// LlamaVector where norms stand behind attention and FFN alone.
std::string VectorBehind(const ModelConfig& config, int64_t layer, LayerVector norm);

// A family with these names, each linear in a tensor of its own.
constexpr Family LikeLlama(std::string_view model_type, decltype(Family::parse) parse) {
  return {.model_type = model_type,
          .parse = parse,
          .linear = LlamaLinear,
          .vector = LlamaVector,
          .final_norm = "model.norm.weight"};
}

// The rows of a linear where q, k and v are one tensor, gate and up another.
RowBlock FusedRows(const ModelConfig& config, Role role);

}  // namespace nibble
