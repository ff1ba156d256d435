// SPDX-License-Identifier: Apache-2.0
#include "engine/layer.h"

#include <algorithm>
#include <cmath>

#include "engine/mixture.h"

namespace nibble {
namespace {

int64_t Tokens(std::span<const SequenceSlice> batch) {
  int64_t tokens = 0;
  for (const SequenceSlice& slice : batch) tokens += slice.tokens;
  return tokens;
}

// The experts of a layer as one op; nullopt if they do not all read the same inputs.
std::optional<ExpertsSpec> SpecOfExperts(const ModelConfig& config, const Layer& layer) {
  ExpertsSpec spec = {.router = config.router,
                      .gating = config.gating,
                      .router_bias = layer.vectors[LayerVector::kRouterBias].data(),
                      .expert_scales = layer.vectors[LayerVector::kExpertScales].data(),
                      .router_linear = layer.ids[Role::kRouter],
                      .gate = {},
                      .up = {},
                      .down = {},
                      .router_input = layer.inputs[Role::kRouter],
                      .input = layer.inputs[OfExpert(Role::kGate, 0)],
                      .down_input = layer.inputs[OfExpert(Role::kDown, 0)]};
  for (int64_t e = 0; e < config.router.all(); ++e) {
    const Role gate = OfExpert(Role::kGate, e), down = OfExpert(Role::kDown, e);
    if (layer.inputs[gate] != spec.input || layer.inputs[down] != spec.down_input) return {};
    if (layer.transforms_gated(e)) return {};
    spec.gate.push_back(layer.ids[gate]);
    spec.up.push_back(layer.ids[OfExpert(Role::kUp, e)]);
    spec.down.push_back(layer.ids[down]);
  }
  return spec;
}

}  // namespace

Buffer<float> UploadNorm(Backend& backend, const Tensor& view) {
  return view.data == nullptr ? Buffer<float>() : ToBackend(backend, ToF32(view).data);
}

Layer UploadLayer(Backend& backend, const ModelConfig& config, int64_t index,
                  const LayerWeights& weights, const KvSpec& cache) {
  Layer layer;
  layer.spec = config.spec(index);
  layer.heads = config.head_shape(index);
  layer.cache = cache;
  for (const auto& [role, linear] : weights.linears) {
    NIBBLE_CHECK(linear.weights.rows == config.outputs(index, role), "layer {}: {} has {} rows",
                 index, RoleName(role), linear.weights.rows);
    layer.ids[role] = backend.Upload(linear);
    layer.inputs[role] = linear.input;
    layer.outputs[role] = linear.output_transform;
  }
  for (const auto& [norm, weight] : weights.vectors) {
    layer.vectors[norm] = UploadNorm(backend, weight);
  }
  if (config.has_experts(index)) {
    if (const auto spec = SpecOfExperts(config, layer)) {
      layer.experts_alike = true;
      layer.experts = backend.JoinExperts(*spec);
    }
  }
  return layer;
}

void ReleaseLayer(Backend& backend, const Layer& layer) {
  if (layer.experts) backend.ReleaseExperts(*layer.experts);
  for (const auto& [role, id] : layer.ids) backend.Release(id);
}

Scratch::Scratch(Backend& backend) : value_bytes_(backend.IntermediateBytes()) {
  for (auto* buffer : {&q, &k, &v, &a, &gate, &up}) {
    *buffer = Buffer<Intermediate>(backend.allocator());
  }
  for (auto* buffer : {&router_logits, &rows, &outputs, &branches}) {
    *buffer = Buffer<float>(backend.allocator());
  }
}

void Scratch::Reserve(const ModelConfig& c, int64_t tokens) {
  const int64_t wide = c.Widest(Role::kQ), narrow = c.Widest(Role::kK);
  for (auto* buffer : {&q, &a}) buffer->Grow(tokens * wide * value_bytes_);
  for (auto* buffer : {&k, &v}) buffer->Grow(tokens * narrow * value_bytes_);
  gate.Grow(tokens * c.ffn_size() * value_bytes_);
  up.Grow(tokens * c.ffn_size() * value_bytes_);
  if (c.router.experts > 0 || c.has(LayerVector::kPostAttentionNorm)) {
    outputs.Grow(tokens * c.hidden_size);
  }
  if (c.router.experts == 0) return;
  router_logits.Grow(tokens * c.router.experts);
  rows.Grow(tokens * c.router.of_token() * c.hidden_size);
  if (c.dense_beside_experts) branches.Grow(2 * tokens * c.hidden_size);
}

AttentionSpec Decoder::attention(const Layer& layer) const {
  return {.heads = layer.heads.heads,
          .scale = config.attention_scale > 0
                       ? static_cast<float>(config.attention_scale)
                       : 1.0f / std::sqrt(static_cast<float>(layer.heads.head_dim)),
          .sliding_window = layer.spec.sliding_window,
          .softcap = static_cast<float>(config.attention_softcap),
          .sinks = layer.vectors[LayerVector::kSinks].data(),
          .q_norm = layer.vectors[LayerVector::kQueryNorm].data(),
          .k_norm = layer.vectors[LayerVector::kKeyNorm].data(),
          .norm_eps = static_cast<float>(config.norm_eps),
          .key_center = layer.vectors[LayerVector::kKeyCenter].data()};
}

ActsSource Normed(const ModelConfig& config, const Buffer<float>& weight, const float* x) {
  return {.x = x,
          .op = ActsSource::Op::kRmsNorm,
          .norm_weight = weight.data(),
          .norm_eps = static_cast<float>(config.norm_eps)};
}

ActsSource LayerInput(const ModelConfig& config, const Layer& layer, Role role, const float* x) {
  const std::optional<LayerVector> norm = config.NormInFront(role);
  return norm ? Normed(config, layer.vectors[*norm], x) : ActsSource{.x = x};
}

ActsSource AttendHeads(const Decoder& d, const Layer& layer, std::span<const SequenceSlice> batch) {
  const int64_t tokens = Tokens(batch);
  Scratch& s = d.scratch;
  AttentionSpec attention = d.attention(layer);
  if (d.config.wide_query_norms) {
    const auto norm = [&](const Buffer<Intermediate>& values, int64_t width, LayerVector weight) {
      d.backend.NormRows(values.data(), tokens, width, layer.vectors[weight].data(),
                         attention.norm_eps);
    };
    norm(s.q, layer.heads.q_width(), LayerVector::kQueryNorm);
    norm(s.k, layer.heads.kv_width(), LayerVector::kKeyNorm);
    attention.q_norm = attention.k_norm = nullptr;
  }
  const bool owns = layer.spec.owns_kv();
  if (d.config.value_norms && owns) {
    d.backend.NormRows(s.v.data(), tokens * layer.heads.kv_heads, layer.heads.head_dim, nullptr,
                       attention.norm_eps);
  }
  d.backend.RopeAndAppend(s.q.data(), owns ? s.k.data() : nullptr, owns ? s.v.data() : nullptr,
                          attention, d.ropes.view(layer.spec.rope), layer.cache, batch);
  d.backend.Attention(s.q.data(), attention, layer.cache, batch, s.a.data());
  return {.op = ActsSource::Op::kIntermediate, .values = s.a.data()};
}

namespace {

// Project, and the outputs' transforms.
void ProjectRoles(const Decoder& d, const Layer& layer, const Activations& acts,
                  std::span<const std::pair<Role, Intermediate*>> outputs) {
  std::vector<Backend::Projection> projections;
  for (const auto& [role, y] : outputs) projections.push_back({layer.ids[role], y});
  d.backend.Project(acts, projections);
  for (size_t i = 0; i < outputs.size();) {  // neighbours of one transform at once
    const TransformSpec& transform = layer.outputs[outputs[i].first];
    std::vector<Intermediate*> alike;
    for (; i < outputs.size() && layer.outputs[outputs[i].first] == transform; ++i) {
      alike.push_back(outputs[i].second);
    }
    if (!transform.identity()) d.backend.Transform(transform, acts.tokens, alike);
  }
}

}  // namespace

void ProjectHeads(const Decoder& d, const Layer& layer, const float* x, int64_t tokens) {
  Scratch& s = d.scratch;
  s.Reserve(d.config, tokens);
  const ActsSource h = LayerInput(d.config, layer, Role::kQ, x);
  const Activations acts = d.backend.PrepareActs(h, tokens, layer.inputs[Role::kQ]);
  const std::pair<Role, Intermediate*> outputs[] = {
      {Role::kQ, s.q.data()}, {Role::kK, s.k.data()}, {Role::kV, s.v.data()}};
  ProjectRoles(d, layer, acts, std::span(outputs).first(layer.spec.owns_kv() ? 3 : 1));
}

ActsSource AttentionCore(const Decoder& d, const Layer& layer, const float* x,
                         std::span<const SequenceSlice> batch) {
  ProjectHeads(d, layer, x, Tokens(batch));
  return AttendHeads(d, layer, batch);
}

namespace {

// x += the linear's output, or its norm; x is then multiplied with the scale, if there is one.
void AddOutput(const Decoder& d, const Layer& layer, Role role, LayerVector norm,
               const ActsSource& a, int64_t tokens, const float* scale, float* x) {
  const int64_t hidden = d.config.hidden_size;
  const Activations acts = d.backend.PrepareActs(a, tokens, layer.inputs[role]);
  const float* const weight = layer.vectors[norm].data();
  if (weight == nullptr) return d.backend.Gemm(acts, layer.ids[role], x, hidden, true);
  float* const output = d.scratch.outputs.Grow(tokens * hidden);
  d.backend.Gemm(acts, layer.ids[role], output, hidden, false);
  if (const TransformSpec& transform = layer.outputs[role]; !transform.identity()) {
    const InputSpec spec = {.width = hidden, .transform = transform, .activations = {.bits = 32}};
    d.backend.Copy(d.backend.PrepareActs({.x = output}, tokens, spec).values, tokens * hidden,
                   output);
  }
  d.backend.AddNormed(output, tokens, hidden, weight, static_cast<float>(d.config.norm_eps), scale,
                      x);
}

}  // namespace

void AttentionOutput(const Decoder& d, const Layer& layer, const ActsSource& a, int64_t tokens,
                     float* x) {
  AddOutput(d, layer, Role::kO, LayerVector::kPostAttentionNorm, a, tokens, nullptr, x);
}

ActsSource MlpCore(const Decoder& d, const Layer& layer, const float* x, int64_t tokens,
                   int64_t expert, bool keep) {
  const Role gate = OfExpert(Role::kGate, expert), up = OfExpert(Role::kUp, expert);
  Scratch& s = d.scratch;
  s.Reserve(d.config, tokens);
  const ActsSource h = LayerInput(d.config, layer, gate, x);
  const Activations acts = d.backend.PrepareActs(h, tokens, layer.inputs[gate]);
  const bool alone = d.config.gating.alone;
  if (!keep && !alone && !layer.transforms_gated(expert)) {
    return d.backend.ProjectGated(acts, {layer.ids[gate], s.gate.data()},
                                  {layer.ids[up], s.up.data()}, d.config.gating);
  }
  const std::pair<Role, Intermediate*> outputs[] = {{gate, s.gate.data()}, {up, s.up.data()}};
  ProjectRoles(d, layer, acts, std::span(outputs).first(alone ? 1 : 2));
  return {.op = ActsSource::Op::kGated,
          .gate = s.gate.data(),
          .up = alone ? s.gate.data() : s.up.data(),
          .gating = d.config.gating};
}

namespace {

// The scale of x behind the FFN; null where AddLayerInput follows, which then scales x.
const float* ScaleBehindMlp(const Layer& layer) {
  const bool last = !layer.ids.contains(Role::kLayerOutput);
  return last ? layer.vectors[LayerVector::kLayerScale].data() : nullptr;
}

}  // namespace

void MlpOutput(const Decoder& d, const Layer& layer, const ActsSource& a, int64_t tokens,
               float* x) {
  AddOutput(d, layer, Role::kDown, LayerVector::kPostMlpNorm, a, tokens, ScaleBehindMlp(layer), x);
}

void AddLayerInput(const Decoder& d, const Layer& layer, int64_t tokens, float* x) {
  if (!layer.ids.contains(Role::kLayerOutput)) return;
  NIBBLE_CHECK(d.layer_input != nullptr);
  d.scratch.Reserve(d.config, tokens);
  Intermediate* const gate = d.scratch.gate.data();
  const ActsSource h = LayerInput(d.config, layer, Role::kLayerGate, x);
  const Activations acts = d.backend.PrepareActs(h, tokens, layer.inputs[Role::kLayerGate]);
  const Backend::Projection output = {layer.ids[Role::kLayerGate], gate};
  d.backend.Project(acts, {&output, 1});
  const ActsSource gated = {
      .op = ActsSource::Op::kGated, .gate = gate, .up = d.layer_input, .gating = d.config.gating};
  AddOutput(d, layer, Role::kLayerOutput, LayerVector::kPostLayerInputNorm, gated, tokens,
            layer.vectors[LayerVector::kLayerScale].data(), x);
}

void ForwardAttention(const Decoder& d, const Layer& layer, std::span<const SequenceSlice> batch,
                      float* x) {
  AttentionOutput(d, layer, AttentionCore(d, layer, x, batch), Tokens(batch), x);
}

namespace {

// sum += the experts' outputs for x; sum may be x.
void AddExperts(const Decoder& d, const Layer& layer, const float* x, int64_t tokens,
                const Routes* routes, float* sum) {
  if (routes != nullptr) return RunMixture(d, layer, *routes, x, sum);
  if (!layer.experts) return RunMixture(d, layer, RouteTokens(d, layer, x, tokens), x, sum);
  const auto input = [&](Role role) { return LayerInput(d.config, layer, role, x); };
  d.backend.RunExperts(*layer.experts, input(Role::kRouter), input(OfExpert(Role::kGate, 0)),
                       tokens, sum);
}

// x += the norm of the sum of norms of what the FFN and what the experts make of it.
void AddBoth(const Decoder& d, const Layer& layer, int64_t tokens, const Routes* routes, float* x) {
  const int64_t hidden = d.config.hidden_size, count = tokens * hidden;
  d.scratch.Reserve(d.config, tokens);
  float *const sum = d.scratch.branches.data(), *const mixture = sum + count;
  d.backend.Clear(sum, 2 * count);
  AddOutput(d, layer, Role::kDown, LayerVector::kPostDenseNorm, MlpCore(d, layer, x, tokens),
            tokens, nullptr, sum);
  AddExperts(d, layer, x, tokens, routes, mixture);
  const auto add = [&](const float* y, LayerVector norm, const float* scale, float* to) {
    d.backend.AddNormed(y, tokens, hidden, layer.vectors[norm].data(),
                        static_cast<float>(d.config.norm_eps), scale, to);
  };
  add(mixture, LayerVector::kPostExpertsNorm, nullptr, sum);
  add(sum, LayerVector::kPostMlpNorm, ScaleBehindMlp(layer), x);
}

}  // namespace

void ForwardMlp(const Decoder& d, const Layer& layer, int64_t tokens, float* x,
                const Routes* routes) {
  const bool experts = layer.ids.contains(Role::kRouter);
  if (experts && layer.ids.contains(Role::kGate)) {
    AddBoth(d, layer, tokens, routes, x);
  } else if (experts) {
    AddExperts(d, layer, x, tokens, routes, x);
  } else {
    MlpOutput(d, layer, MlpCore(d, layer, x, tokens), tokens, x);
  }
  AddLayerInput(d, layer, tokens, x);
}

void ForwardLayer(const Decoder& d, const Layer& layer, std::span<const SequenceSlice> batch,
                  float* x) {
  const int64_t tokens = Tokens(batch);
  if (d.config.parallel) {
    const ActsSource a = AttentionCore(d, layer, x, batch), mlp = MlpCore(d, layer, x, tokens);
    AttentionOutput(d, layer, a, tokens, x);
    return MlpOutput(d, layer, mlp, tokens, x);
  }
  ForwardAttention(d, layer, batch, x);
  ForwardMlp(d, layer, tokens, x);
}

}  // namespace nibble
