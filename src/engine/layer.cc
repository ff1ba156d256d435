// SPDX-License-Identifier: Apache-2.0
#include "engine/layer.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

int64_t Tokens(std::span<const SequenceSlice> batch) {
  int64_t tokens = 0;
  for (const SequenceSlice& slice : batch) tokens += slice.tokens;
  return tokens;
}

}  // namespace

Buffer<float> UploadNorm(Backend& backend, const TensorView& view) {
  return view.data == nullptr ? Buffer<float>() : ToBackend(backend, ToF32(view).data);
}

Layer UploadLayer(Backend& backend, const LayerWeights& weights) {
  Layer layer;
  for (Role role : kLayerRoles) {
    layer.ids[static_cast<size_t>(role)] = backend.Upload(weights[role]);
  }
  layer.qkv_input = weights[Role::kQ].input;
  layer.o_input = weights[Role::kO].input;
  layer.mlp_input = weights[Role::kGate].input;
  layer.down_input = weights[Role::kDown].input;
  layer.attention_norm = UploadNorm(backend, weights.attention_norm);
  layer.mlp_norm = UploadNorm(backend, weights.mlp_norm);
  return layer;
}

void ReleaseLayer(Backend& backend, const Layer& layer) {
  for (LinearId id : layer.ids) backend.Release(id);
}

Scratch::Scratch(Backend& backend) : value_bytes_(backend.IntermediateBytes()) {
  for (auto* buffer : {&q, &k, &v, &gate, &up}) *buffer = Buffer<Intermediate>(backend.allocator());
  a = Buffer<float>(backend.allocator());
}

void Scratch::Reserve(const ModelConfig& c, int64_t tokens) {
  q.Grow(tokens * c.heads * c.head_dim * value_bytes_);
  k.Grow(tokens * c.kv_heads * c.head_dim * value_bytes_);
  v.Grow(tokens * c.kv_heads * c.head_dim * value_bytes_);
  gate.Grow(tokens * c.intermediate_size * value_bytes_);
  up.Grow(tokens * c.intermediate_size * value_bytes_);
  a.Grow(tokens * c.heads * c.head_dim);
}

AttentionSpec Decoder::attention() const {
  return {.heads = config.heads,
          .scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim)),
          .sliding_window = config.sliding_window};
}

ActsSource Normed(const ModelConfig& config, const Buffer<float>& weight, const float* x) {
  return {.x = x,
          .op = ActsSource::Op::kRmsNorm,
          .norm_weight = weight.data(),
          .norm_eps = static_cast<float>(config.norm_eps)};
}

void AttentionCore(const Decoder& d, const Layer& layer, const float* x,
                   std::span<const SequenceSlice> batch, float* a) {
  const int64_t tokens = Tokens(batch);
  Scratch& s = d.scratch;
  s.Reserve(d.config, tokens);
  const ActsSource h = Normed(d.config, layer.attention_norm, x);
  const Activations acts = d.backend.PrepareActs(h, tokens, layer.qkv_input);
  const Backend::Projection outputs[] = {{layer.id(Role::kQ), s.q.data()},
                                         {layer.id(Role::kK), s.k.data()},
                                         {layer.id(Role::kV), s.v.data()}};
  d.backend.Project(acts, outputs);
  d.backend.RopeAndAppend(s.q.data(), s.k.data(), s.v.data(), d.attention(), d.rope, d.kv, batch);
  d.backend.Attention(s.q.data(), d.attention(), d.kv, batch, a);
}

void AttentionOutput(const Decoder& d, const Layer& layer, const float* a, int64_t tokens,
                     float* x) {
  const Activations acts = d.backend.PrepareActs({.x = a}, tokens, layer.o_input);
  d.backend.Gemm(acts, layer.id(Role::kO), x, d.config.hidden_size, true);
}

ActsSource MlpCore(const Decoder& d, const Layer& layer, const float* x, int64_t tokens) {
  Scratch& s = d.scratch;
  s.Reserve(d.config, tokens);
  const ActsSource h = Normed(d.config, layer.mlp_norm, x);
  const Activations acts = d.backend.PrepareActs(h, tokens, layer.mlp_input);
  return d.backend.ProjectGated(acts, {layer.id(Role::kGate), s.gate.data()},
                                {layer.id(Role::kUp), s.up.data()});
}

void MlpOutput(const Decoder& d, const Layer& layer, const ActsSource& a, int64_t tokens,
               float* x) {
  const Activations acts = d.backend.PrepareActs(a, tokens, layer.down_input);
  d.backend.Gemm(acts, layer.id(Role::kDown), x, d.config.hidden_size, true);
}

void ForwardLayer(const Decoder& d, const Layer& layer, std::span<const SequenceSlice> batch,
                  float* x) {
  const int64_t tokens = Tokens(batch);
  d.scratch.Reserve(d.config, tokens);
  AttentionCore(d, layer, x, batch, d.scratch.a.data());
  AttentionOutput(d, layer, d.scratch.a.data(), tokens, x);
  MlpOutput(d, layer, MlpCore(d, layer, x, tokens), tokens, x);
}

}  // namespace nibble
