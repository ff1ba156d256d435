// SPDX-License-Identifier: Apache-2.0
#include "engine/layer_inputs.h"

#include <cmath>
#include <vector>

namespace nibble {

LayerInputs::LayerInputs(Backend& backend, const Network& network)
    : backend_(backend),
      config_(network.config),
      projected_(backend.allocator()),
      rows_(backend.allocator()),
      made_(backend.allocator()) {
  if (config_.layer_input_size == 0) return;
  table_ = backend.Share(network.layer_table, table_memory_);
  projection_ = backend.Upload(network.layer_projection);
  input_ = network.layer_projection.input;
  std::vector<float> weight = ToF32(network.layer_input_norm).data;
  for (float& w : weight) w *= static_cast<float>(M_SQRT1_2);
  weight_ = ToBackend(backend, weight);
}

LayerInputs::~LayerInputs() {
  if (table_.rows > 0) backend_.Release(projection_);
}

const Intermediate* LayerInputs::Make(std::span<const int32_t> ids, const float* x) {
  if (table_.rows == 0) return nullptr;
  const int64_t layers = config_.layers, width = config_.layer_input_size;
  const auto tokens = static_cast<int64_t>(ids.size());
  const int64_t count = tokens * layers * width;
  const Activations acts = backend_.PrepareActs({.x = x}, tokens, input_);
  backend_.Gemm(acts, projection_, projected_.Grow(count), layers * width, false);
  std::vector<int32_t> places;
  for (const int32_t id : ids) {
    for (int64_t i = 0; i < layers; ++i) places.push_back(static_cast<int32_t>(id * layers + i));
  }
  const auto scale = static_cast<float>(std::sqrt(static_cast<double>(width) / 2));
  backend_.Embed(table_, places, scale, rows_.Grow(count));
  // A norm of x / sqrt(hidden) is that of x, with more of what keeps it from dividing by 0.
  const double eps = config_.norm_eps * static_cast<double>(config_.hidden_size);
  Intermediate* const made = made_.Grow(count * backend_.IntermediateBytes());
  backend_.AddNormedParts(projected_.data(), rows_.data(), tokens, layers, width, weight_.data(),
                          static_cast<float>(eps), made);
  return made;
}

const Intermediate* LayerInputs::Part(const Intermediate* all, int64_t layer,
                                      int64_t tokens) const {
  if (all == nullptr) return nullptr;
  return all + layer * tokens * config_.layer_input_size * backend_.IntermediateBytes();
}

}  // namespace nibble
