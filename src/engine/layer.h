// SPDX-License-Identifier: Apache-2.0
// One decoder layer on a backend, and its forward pass in four stages. Inference and evaluation run
// the stages in order (ForwardLayer); calibration runs them one by one over all its windows,
// because the inputs of the linears lie exactly between them.
//
//   x -> [q k v] AttentionCore -> a -> [o] AttentionOutput -> x
//   x -> [gate up] MlpCore -> gate, up -> [down] MlpOutput -> AddLayerInput -> x
//
// Where both read the same x (ModelConfig::parallel), MlpCore runs before AttentionOutput. In a
// mixture of experts the last two are those of one expert and of the tokens routed to it
// (mixture.h), or of an FFN beside them.
#pragma once

#include <optional>
#include <vector>

#include "base/aligned.h"
#include "compute/backend.h"
#include "models/network.h"
#include "models/plan.h"

namespace nibble {

struct Routes;

struct Layer {
  ByRole<LinearId> ids;
  ByRole<InputSpec> inputs;         // q, k and v share one, and gate and up
  ByRole<TransformSpec> outputs;    // PackedLinear::output_transform
  ByVector<Buffer<float>> vectors;  // empty when folded
  LayerSpec spec;
  HeadShape heads;
  KvSpec cache;
  bool experts_alike = false;        // they read one input, and all downs another
  std::optional<ExpertsId> experts;  // joined by the backend

  // Returns whether gate or up, of an expert or (-1) of the FFN, has an output transform.
  bool transforms_gated(int64_t expert) const {
    return !outputs[OfExpert(Role::kGate, expert)].identity() ||
           !outputs[OfExpert(Role::kUp, expert)].identity();
  }
};

// Uploads the layer of this index; q/k/v (and gate/up) must agree on their input, which a loader
// has checked.
Layer UploadLayer(Backend& backend, const ModelConfig& config, int64_t index,
                  const LayerWeights& weights, const KvSpec& cache);
void ReleaseLayer(Backend& backend, const Layer& layer);
// Norm weights as fp32, empty when folded.
Buffer<float> UploadNorm(Backend& backend, const Tensor& view);

// Memory between the stages, grown to the largest batch and then reused.
struct Scratch {
  explicit Scratch(Backend& backend);

  Buffer<Intermediate> q, a;      // [tokens, heads * head_dim]
  Buffer<Intermediate> k, v;      // [tokens, kv_heads * head_dim]
  Buffer<Intermediate> gate, up;  // [tokens, intermediate]
  // For a mixture of experts: the router's logits, and rows sorted by expert.
  Buffer<float> router_logits;  // [tokens, experts]
  Buffer<float> rows;           // [tokens * experts_per_token, hidden]
  Buffer<float> outputs;        // [tokens, hidden]: of an expert, or of o or down before their norm
  // [2, tokens, hidden], for experts beside an FFN: the sum of both, and that of the experts.
  Buffer<float> branches;

  void Reserve(const ModelConfig& config, int64_t tokens);

 private:
  int64_t value_bytes_;  // of intermediate values
};

// All that the stages need besides the layer.
struct Decoder {
  Backend& backend;
  const ModelConfig& config;
  const BackendRopes& ropes;
  Scratch& scratch;
  // The layer's own input for each token (layer_inputs.h), or null.
  const Intermediate* layer_input = nullptr;

  AttentionSpec attention(const Layer& layer) const;
};

// The norm of x (weight empty: folded).
ActsSource Normed(const ModelConfig& config, const Buffer<float>& weight, const float* x);
// The input of a linear: the norm of x in front of it, or x itself where there is no norm.
ActsSource LayerInput(const ModelConfig& config, const Layer& layer, Role role, const float* x);

// AttentionCore in two parts: ProjectHeads writes q, k and v of x to the scratch memory, and
// AttendHeads takes them through norms of heads, RoPE, the cache and attention.
void ProjectHeads(const Decoder& d, const Layer& layer, const float* x, int64_t tokens);
ActsSource AttendHeads(const Decoder& d, const Layer& layer, std::span<const SequenceSlice> batch);

// x is fp32 [tokens, hidden]; `batch` holds this layer's page tables. The cores return the inputs
// of o and down, in the scratch memory. `expert` is -1 in a layer without experts. With `keep`,
// gate and up are there as well.
ActsSource AttentionCore(const Decoder& d, const Layer& layer, const float* x,
                         std::span<const SequenceSlice> batch);
void AttentionOutput(const Decoder& d, const Layer& layer, const ActsSource& a, int64_t tokens,
                     float* x);
ActsSource MlpCore(const Decoder& d, const Layer& layer, const float* x, int64_t tokens,
                   int64_t expert = -1, bool keep = false);
void MlpOutput(const Decoder& d, const Layer& layer, const ActsSource& a, int64_t tokens, float* x);
// x += a linear of the layer's own input (layer_inputs.h), gated by another linear of x; does
// nothing for a layer without such an input.
void AddLayerInput(const Decoder& d, const Layer& layer, int64_t tokens, float* x);

void ForwardAttention(const Decoder& d, const Layer& layer, std::span<const SequenceSlice> batch,
                      float* x);
// `routes` are those of a mixture whose router has been asked (mixture.h), or null.
void ForwardMlp(const Decoder& d, const Layer& layer, int64_t tokens, float* x,
                const Routes* routes = nullptr);
// The attention and the FFN of a layer.
void ForwardLayer(const Decoder& d, const Layer& layer, std::span<const SequenceSlice> batch,
                  float* x);

}  // namespace nibble
