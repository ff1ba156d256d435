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

const float* OrNull(const std::vector<float>& v) {
  return v.empty() ? nullptr : v.data();
}

}  // namespace

std::vector<float> NormWeights(const TensorView& view) {
  return view.data == nullptr ? std::vector<float>() : ToF32(view).data;
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
  layer.attention_norm = NormWeights(weights.attention_norm);
  layer.mlp_norm = NormWeights(weights.mlp_norm);
  return layer;
}

void ReleaseLayer(Backend& backend, const Layer& layer) {
  for (LinearId id : layer.ids) backend.Release(id);
}

void Scratch::Reserve(const ModelConfig& c, int64_t tokens) {
  const auto grow = [tokens](std::vector<float>& buffer, int64_t width) {
    buffer.resize(std::max(buffer.size(), static_cast<size_t>(tokens * width)));
  };
  grow(h, c.hidden_size);
  grow(q, c.heads * c.head_dim);
  grow(k, c.kv_heads * c.head_dim);
  grow(v, c.kv_heads * c.head_dim);
  grow(gate, c.intermediate_size);
  grow(up, c.intermediate_size);
  grow(a, std::max(c.heads * c.head_dim, c.intermediate_size));
}

AttentionSpec Decoder::attention() const {
  return {.heads = config.heads,
          .scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim)),
          .sliding_window = config.sliding_window};
}

void AttentionInput(const Decoder& d, const Layer& layer, const float* x, int64_t tokens,
                    float* h) {
  d.backend.RmsNorm(x, OrNull(layer.attention_norm), static_cast<float>(d.config.norm_eps), tokens,
                    d.config.hidden_size, h);
}

void AttentionCore(const Decoder& d, const Layer& layer, const float* h,
                   std::span<const SequenceSlice> batch, float* a) {
  const int64_t tokens = Tokens(batch), kv_width = d.config.kv_heads * d.config.head_dim;
  Scratch& s = d.scratch;
  s.Reserve(d.config, tokens);
  const Activations acts = d.backend.PrepareActs(h, tokens, layer.qkv_input);
  d.backend.Gemm(acts, layer.id(Role::kQ), s.q.data(), d.config.heads * d.config.head_dim, false);
  d.backend.Gemm(acts, layer.id(Role::kK), s.k.data(), kv_width, false);
  d.backend.Gemm(acts, layer.id(Role::kV), s.v.data(), kv_width, false);
  d.backend.RopeAndAppend(s.q.data(), s.k.data(), s.v.data(), d.attention(), d.rope, d.kv, batch);
  d.backend.Attention(s.q.data(), d.attention(), d.kv, batch, a);
}

void AttentionOutput(const Decoder& d, const Layer& layer, const float* a, int64_t tokens,
                     float* x) {
  const Activations acts = d.backend.PrepareActs(a, tokens, layer.o_input);
  d.backend.Gemm(acts, layer.id(Role::kO), x, d.config.hidden_size, true);
}

void MlpInput(const Decoder& d, const Layer& layer, const float* x, int64_t tokens, float* h) {
  d.backend.RmsNorm(x, OrNull(layer.mlp_norm), static_cast<float>(d.config.norm_eps), tokens,
                    d.config.hidden_size, h);
}

void MlpCore(const Decoder& d, const Layer& layer, const float* h, int64_t tokens, float* a) {
  const int64_t width = d.config.intermediate_size;
  Scratch& s = d.scratch;
  s.Reserve(d.config, tokens);
  const Activations acts = d.backend.PrepareActs(h, tokens, layer.mlp_input);
  d.backend.Gemm(acts, layer.id(Role::kGate), s.gate.data(), width, false);
  d.backend.Gemm(acts, layer.id(Role::kUp), s.up.data(), width, false);
  d.backend.SiluMul(s.gate.data(), s.up.data(), tokens * width, a);
}

void MlpOutput(const Decoder& d, const Layer& layer, const float* a, int64_t tokens, float* x) {
  const Activations acts = d.backend.PrepareActs(a, tokens, layer.down_input);
  d.backend.Gemm(acts, layer.id(Role::kDown), x, d.config.hidden_size, true);
}

void ForwardLayer(const Decoder& d, const Layer& layer, std::span<const SequenceSlice> batch,
                  float* x) {
  const int64_t tokens = Tokens(batch);
  Scratch& s = d.scratch;
  s.Reserve(d.config, tokens);
  AttentionInput(d, layer, x, tokens, s.h.data());
  AttentionCore(d, layer, s.h.data(), batch, s.a.data());
  AttentionOutput(d, layer, s.a.data(), tokens, x);
  MlpInput(d, layer, x, tokens, s.h.data());
  MlpCore(d, layer, s.h.data(), tokens, s.a.data());
  MlpOutput(d, layer, s.a.data(), tokens, x);
}

}  // namespace nibble
