// SPDX-License-Identifier: Apache-2.0
#include "quantize/walk/stream.h"

#include <algorithm>

#include "engine/layer_inputs.h"

namespace nibble {
namespace {

std::vector<KvSpec> CalibrationCaches(const ModelConfig& config, const Plan& plan, bool quantized) {
  std::vector<KvSpec> caches = FinestLayerCaches(config, plan);
  if (quantized) return caches;
  for (KvSpec& cache : caches) cache.k = cache.v = {.bits = 32};
  return caches;
}

// The width of the inputs of o and down that a window keeps: of both at once where attention and
// FFN stand side by side.
int64_t KeptWidth(const ModelConfig& c) {
  const int64_t o = c.Widest(Role::kQ), down = c.ffn_size();
  return c.parallel ? o + down : std::max(o, down);
}

}  // namespace

std::vector<LinearSet> LinearSets(const ModelConfig& config, int64_t layer) {
  std::vector<LinearSet> sets = {{LinearSet::kQkv, -1, !config.spec(layer).owns_kv()},
                                 LinearSet::kO};
  for (Role role : config.layer_roles(layer)) {
    if (KindOf(role) == Role::kGate) {
      sets.emplace_back(LinearSet::kMlp, ExpertOf(role), config.gating.alone);
    }
    if (KindOf(role) == Role::kDown) sets.emplace_back(LinearSet::kDown, ExpertOf(role));
  }
  return sets;
}

std::vector<Role> RolesOf(LinearSet set) {
  switch (set.kind) {
    case LinearSet::kQkv:
      if (set.alone) return {Role::kQ};
      return {Role::kQ, Role::kK, Role::kV};
    case LinearSet::kO:
      return {Role::kO};
    case LinearSet::kMlp:
      if (set.alone) return {Role::kGate};
      return {OfExpert(Role::kGate, set.expert), OfExpert(Role::kUp, set.expert)};
    case LinearSet::kDown:
      return {OfExpert(Role::kDown, set.expert)};
  }
  NIBBLE_CHECK(false);
}

Stream::Stream(Backend& backend, const ModelConfig& config, const Plan& plan,
               const EmbeddingRows& embedding, std::span<const int32_t> ids, int64_t context,
               bool quantized, SpillFile* file)
    : backend_(backend),
      config_(config),
      plan_(plan),
      ropes_(backend, config.ropes, context),
      context_(context),
      windows_(static_cast<int64_t>(ids.size()) / context),
      quantized_(quantized),
      file_(file),
      kv_(CalibrationCaches(config, plan, quantized)),
      cache_(LargestCache(kv_), 1, backend),
      scratch_(backend),
      x_(file != nullptr ? file->allocator() : backend.allocator()),
      a_(file != nullptr ? file->allocator() : backend.allocator()),
      layer_inputs_(file != nullptr ? file->allocator() : backend.allocator()),
      routes_(static_cast<size_t>(windows_)) {
  const auto tokens = static_cast<int64_t>(ids.size());
  x_.Grow(tokens * config.hidden_size);
  a_.Grow(tokens * KeptWidth(config));
  for (int64_t w = 0; w < windows_; ++w) {
    const auto count = static_cast<size_t>(context);
    const Matrix<float> rows = embedding(ids.subspan(static_cast<size_t>(w) * count, count));
    backend_.Write(rows.data.data(), rows.data.size() * sizeof(float), x(w));
    Rest();
  }
  if (embedding.layer_inputs != nullptr) MakeLayerInputs(*embedding.layer_inputs, ids);
}

// All of them: a layer's part would be made of the whole table each time.
void Stream::MakeLayerInputs(const Network& network, std::span<const int32_t> ids) {
  LayerInputs inputs(backend_, network);
  const int64_t count = context_ * config_.layers * config_.layer_input_size;
  const int64_t bytes = count * backend_.IntermediateBytes();
  layer_inputs_.Grow(windows_ * bytes);
  for (int64_t w = 0; w < windows_; ++w) {
    const Intermediate* made = inputs.Make(
        ids.subspan(static_cast<size_t>(w * context_), static_cast<size_t>(context_)), x(w));
    backend_.Copy(reinterpret_cast<const float*>(made), bytes / int64_t{sizeof(float)},
                  reinterpret_cast<float*>(layer_inputs_.data() + w * bytes));
    Rest();
  }
}

const Intermediate* Stream::GivenTo(int64_t window) const {
  if (layer_inputs_.size() == 0) return nullptr;
  const int64_t part = context_ * config_.layer_input_size * backend_.IntermediateBytes();
  return layer_inputs_.data() + (window * config_.layers + index_) * part;
}

void Stream::Rest() const {
  if (file_ == nullptr) return;
  const auto rest = [](const auto& buffer) {
    SpillFile::Rest(std::as_bytes(std::span(buffer.data(), static_cast<size_t>(buffer.size()))));
  };
  rest(x_), rest(a_), rest(layer_inputs_);
}

size_t Stream::Bytes(const ModelConfig& c, int64_t tokens) {
  int64_t lent = 0;
  for (int64_t i = 0; i < c.layers; ++i) {
    if (c.lends_kv(i)) lent += 2 * c.head_shape(i).kv_width();
  }
  const int64_t inputs = c.layers * c.layer_input_size;
  return static_cast<size_t>(tokens * (c.hidden_size + KeptWidth(c) + lent + inputs)) *
         sizeof(float);
}

InputSpec Stream::Planned(Role role, const PackedLinear& linear) const {
  InputSpec input = plan_.at(index_, role).Input(config_.inputs(index_, role));
  if (!quantized_) input.activations = input.tail_activations = {}, input.transform_bits = 0;
  // Weights that are known say whether a tail splits their columns: floats have none.
  if (linear.weights.cols > 0) input.tail_width = input.width - linear.weights.cols;
  input.gather = linear.input.gather;
  input.scales = linear.input.scales;
  return input;
}

int64_t Stream::tokens(LinearSet set, int64_t window) const {
  if (set.expert < 0) return context_;
  const Routes& routes = routes_[static_cast<size_t>(window)];
  return static_cast<int64_t>(routes.experts[static_cast<size_t>(set.expert)].rows.size());
}

void Stream::Begin(const LayerWeights& layer, int64_t index, const Visit& visit) {
  index_ = index;
  sets_ = LinearSets(config_, index);
  places_.assign(static_cast<size_t>(windows_), 0);
  layer_ = Layer{};
  for (Role role : config_.layer_roles(index)) layer_.inputs[role] = Planned(role, layer[role]);
  layer_.spec = config_.spec(index);
  layer_.heads = config_.head_shape(index);
  layer_.cache = kv_[static_cast<size_t>(index)];
  for (const auto& [norm, weight] : layer.vectors) {
    layer_.vectors[norm] = UploadNorm(backend_, weight);
  }
  for (Role role : config_.layer_roles(index)) {
    if (FixedPlan(role) != nullptr) Upload(role, layer[role]);
  }
  for (LinearSet set : sets_) {
    if (visit) visit(set);
    for (Role role : RolesOf(set)) Upload(role, layer[role]);
  }
}

void Stream::Upload(Role role, const PackedLinear& linear) {
  PackedLinear planned = linear;
  planned.input = layer_.inputs[role] = Planned(role, linear);
  layer_.outputs[role] = plan_.at(index_, role).output_transform;
  layer_.ids[role] = backend_.Upload(planned);
}

void Stream::Route(int64_t window) {
  const auto w = static_cast<size_t>(window);
  const Routes* chosen = leader_ == nullptr ? nullptr : &leader_->routes_[w];
  routes_[w] = RouteTokens(decoder(window), layer_, x(window), context_, chosen);
}

const float* Stream::Rows(LinearSet set, int64_t window) {
  if (set.expert < 0) return x(window);
  const Routes& routes = routes_[static_cast<size_t>(window)];
  return GatherRows(decoder(window), {&routes.experts[static_cast<size_t>(set.expert)], 1},
                    context_, x(window));
}

void Stream::Keep(const ActsSource& source, LinearSet set, int64_t window) {
  const InputSpec plain = {.width = config_.inputs(index_, RolesOf(set)[0])};
  const int64_t count = tokens(set, window);
  const float* values = backend_.PrepareActs(source, count, plain).values;
  backend_.Copy(values, count * plain.width, a(set, window));
}

SequenceSlice Stream::CacheOf(int64_t window) {
  const LayerSpec& spec = layer_.spec;
  const int64_t owner = spec.owns_kv() ? index_ : spec.kv_layer;
  KvCache* cache = &cache_;
  if (config_.lends_kv(owner)) {
    cache = &lent_.try_emplace({owner, window}, LargestCache(kv_), 1, backend_).first->second;
  }
  if (spec.owns_kv()) {
    cache->Clear();
    cache->Reserve(context_);
  }
  return cache->Slice(0, context_);
}

void Stream::Advance(LinearSet set, int64_t window) {
  const Decoder d = decoder(window);
  float* x = this->x(window);
  switch (set.kind) {
    case LinearSet::kQkv:
      return;
    case LinearSet::kO: {
      const SequenceSlice slice = CacheOf(window);
      return Keep(AttentionCore(d, layer_, x, {&slice, 1}), set, window);
    }
    case LinearSet::kMlp:
      // The attention's a is read here for the last time; kDown reuses its memory.
      if (set.expert == (config_.has_ffn(index_) ? -1 : 0) && !config_.parallel) {
        AttentionOutput(d, layer_, {.x = a(LinearSet::kO, window)}, context_, x);
      }
      if (set.expert == 0) Route(window);
      return;
    case LinearSet::kDown: {
      const int64_t count = tokens(set, window);
      if (count == 0) return;
      const ActsSource mlp = MlpCore(d, layer_, Rows(set, window), count, set.expert);
      if (config_.parallel) {  // x was the FFN's until now
        AttentionOutput(d, layer_, {.x = a(LinearSet::kO, window)}, context_, x);
      }
      return Keep(mlp, set, window);
    }
  }
}

void Stream::RunTo(LinearSet set, int64_t window) {
  size_t& place = places_[static_cast<size_t>(window)];
  while (sets_.at(place) != set) Advance(sets_.at(++place), window);
}

float* Stream::a(LinearSet set, int64_t window) {
  const bool behind = config_.parallel && set.kind == LinearSet::kDown;  // those of attention
  const int64_t first = behind ? windows_ * config_.inputs(index_, Role::kO) : 0;
  return a_.data() + (first + window * config_.inputs(index_, RolesOf(set)[0])) * context_;
}

ActsSource Stream::Source(LinearSet set, int64_t window) {
  if (set.kind == LinearSet::kO || set.kind == LinearSet::kDown) return {.x = a(set, window)};
  return LayerInput(config_, layer_, RolesOf(set)[0], Rows(set, window));
}

Stream::SetInput Stream::Input(LinearSet set, int64_t window, const FormatSpec& activations) {
  Rest();
  RunTo(set, window);
  const int64_t count = tokens(set, window);
  if (count == 0) return {nullptr, 0};
  input_ = layer_.inputs[RolesOf(set)[0]];
  input_.activations = activations;
  if (!activations.quantized()) input_.tail_activations = {};
  return {backend_.Decode(backend_.PrepareActs(Source(set, window), count, input_)), count};
}

void Stream::Finish() {
  for (int64_t w = 0; w < windows(); ++w) {
    RunTo(sets_.back(), w);
    if (config_.has_experts(index_)) {
      ForwardMlp(decoder(w), layer_, context_, x(w), &routes_[static_cast<size_t>(w)]);
    } else {
      MlpOutput(decoder(w), layer_, {.x = a(LinearSet::kDown, w)}, context_, x(w));
      AddLayerInput(decoder(w), layer_, context_, x(w));
    }
    Rest();
  }
  ReleaseLayer(backend_, layer_);
}

void Stream::Pass(const LayerWeights& layer, int64_t index) {
  Begin(layer, index);
  for (int64_t w = 0; w < windows(); ++w) {
    const SequenceSlice slice = CacheOf(w);
    if (config_.has_experts(index_)) {
      ForwardAttention(decoder(w), layer_, {&slice, 1}, x(w));
      Route(w);
      ForwardMlp(decoder(w), layer_, context_, x(w), &routes_[static_cast<size_t>(w)]);
    } else {
      ForwardLayer(decoder(w), layer_, {&slice, 1}, x(w));
    }
    Rest();
  }
  ReleaseLayer(backend_, layer_);
}

}  // namespace nibble
