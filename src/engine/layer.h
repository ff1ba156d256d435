// SPDX-License-Identifier: Apache-2.0
// One decoder layer on a backend, and its forward pass in six stages. Inference and evaluation run
// the stages in order (ForwardLayer); calibration runs them one by one over all its windows,
// because the inputs of the linears lie exactly between them.
//
//   x -> AttentionInput -> h -> [q k v] AttentionCore -> a -> [o] AttentionOutput -> x
//   x -> MlpInput       -> h -> [gate up] MlpCore     -> a -> [down] MlpOutput    -> x
#pragma once

#include <array>
#include <vector>

#include "backends/backend.h"
#include "models/network.h"

namespace nibble {

struct Layer {
  std::array<LinearId, kLayerRoles.size()> ids;
  // Inputs shared by q/k/v and by gate/up, and those of o and down.
  InputSpec qkv_input, o_input, mlp_input, down_input;
  std::vector<float> attention_norm, mlp_norm;  // [hidden], empty when folded

  LinearId id(Role role) const { return ids[static_cast<size_t>(role)]; }
};

// Uploads one layer; q/k/v (and gate/up) must agree on their input, which a loader has checked.
Layer UploadLayer(Backend& backend, const LayerWeights& weights);
void ReleaseLayer(Backend& backend, const Layer& layer);
// Norm weights as fp32, empty when folded.
std::vector<float> NormWeights(const TensorView& view);

// Memory between the stages, grown to the largest batch and then reused.
struct Scratch {
  std::vector<float> h;         // [tokens, hidden]
  std::vector<float> q;         // [tokens, heads * head_dim]
  std::vector<float> k, v;      // [tokens, kv_heads * head_dim]
  std::vector<float> gate, up;  // [tokens, intermediate]
  std::vector<float> a;         // [tokens, max(heads * head_dim, intermediate)]

  void Reserve(const ModelConfig& config, int64_t tokens);
};

// What the stages need besides the layer.
struct Decoder {
  Backend& backend;
  const ModelConfig& config;
  const KvSpec& kv;
  const RopeTable& rope;
  Scratch& scratch;

  AttentionSpec attention() const;
};

// All tensors fp32 [tokens, width]; `batch` holds this layer's page tables.
void AttentionInput(const Decoder& d, const Layer& layer, const float* x, int64_t tokens, float* h);
void AttentionCore(const Decoder& d, const Layer& layer, const float* h,
                   std::span<const SequenceSlice> batch, float* a);
void AttentionOutput(const Decoder& d, const Layer& layer, const float* a, int64_t tokens,
                     float* x);
void MlpInput(const Decoder& d, const Layer& layer, const float* x, int64_t tokens, float* h);
void MlpCore(const Decoder& d, const Layer& layer, const float* h, int64_t tokens, float* a);
void MlpOutput(const Decoder& d, const Layer& layer, const float* a, int64_t tokens, float* x);

void ForwardLayer(const Decoder& d, const Layer& layer, std::span<const SequenceSlice> batch,
                  float* x);

}  // namespace nibble
