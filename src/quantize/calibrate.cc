// SPDX-License-Identifier: Apache-2.0
#include "quantize/calibrate.h"

#include <algorithm>

#include "engine/layer_inputs.h"
#include "quantize/gptq.h"

namespace nibble {
namespace {

KvSpec CalibrationKv(const ModelConfig& config, const Plan& plan, bool quantized) {
  KvSpec kv = PlannedKv(config, plan);
  if (!quantized) kv.k = kv.v = {.bits = 32};
  return kv;
}

// What GPTAQ compares with: the network as it is, but for 8 bits where both weights and activations
// are to have no more. Their error is small beside what is compared, and products of integers take
// a quarter of the time.
Plan ReferencePlan(Plan plan) {
  for (auto& [name, linear] : plan.linears) {
    const bool integers = linear.weights.quantized() && linear.activations.quantized();
    linear.weights = {.bits = integers ? 8 : 32};
    linear.activations = {.bits = integers ? 8 : 16};
    linear.tail = {};
  }
  plan.k = plan.v = {.bits = 32};
  return plan;
}

// Of what o and down read, which a window has at once where attention and FFN stand side by side.
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
      kv_(CalibrationKv(config, plan, quantized)),
      cache_(LargestKv(config, kv_), 1, backend),
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
  if (!quantized_) input.activation = input.tail_activation = {};
  // Weights that are known say whether a tail splits their columns: floats have none.
  if (linear.weights.cols > 0) input.tail_width = input.width - linear.weights.cols;
  input.gather = linear.input.gather;
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
    cache = &lent_.try_emplace({owner, window}, LargestKv(config_, kv_), 1, backend_).first->second;
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

Stream::SetInput Stream::Input(LinearSet set, int64_t window, const FormatSpec& activation) {
  Rest();
  RunTo(set, window);
  const int64_t count = tokens(set, window);
  if (count == 0) return {nullptr, 0};
  input_ = layer_.inputs[RolesOf(set)[0]];
  input_.activation = activation;
  if (!activation.quantized()) input_.tail_activation = {};
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

Calibration::Calibration(Backend& backend, const ModelConfig& config, const Plan& plan,
                         const Recipe& recipe, const EmbeddingRows& embedding,
                         std::vector<int32_t> ids, int64_t context, SpillFile* file)
    : backend_(backend),
      config_(config),
      plan_(plan),
      recipe_(recipe),
      ids_(std::move(ids)),
      stream_(backend, config, plan, embedding, ids_, context, recipe.quantized_calibration, file),
      reference_plan_(ReferencePlan(plan)) {
  if (recipe.gptaq > 0) {
    reference_.emplace(backend, config, reference_plan_, embedding, ids_, context, true, file);
    reference_->Follow(stream_);
  }
}

LayerWeights Calibration::Round(FloatLayer layer, int64_t index, std::map<Role, double>& errors,
                                const Progress& progress) {
  LayerWeights stored = StoreUnquantized(layer, plan_, index);
  const auto sets = static_cast<double>(LinearSets(config_, index).size());
  double rounded = 0;
  last_ = std::chrono::steady_clock::now();
  if (reference_) reference_->Begin(StoreNearest(layer, reference_plan_, index), index);
  stream_.Walk(stored, index, [&](LinearSet set) {
    RoundSet(set, layer, index, stored, errors, [&](double share, std::string_view what) {
      progress((rounded + share) / sets, what);
    });
    ++rounded;
  });
  if (reference_) reference_->Finish();
  Account(seconds_.inputs);
  return stored;
}

void Calibration::Account(double& stage) {
  backend_.Read(stream_.x(), 1);
  const auto now = std::chrono::steady_clock::now();
  stage += std::chrono::duration<double>(now - last_).count();
  last_ = now;
}

void Calibration::RoundSet(LinearSet set, FloatLayer& layer, int64_t index, LayerWeights& stored,
                           std::map<Role, double>& errors, const Progress& progress) {
  const int64_t width = layer[RolesOf(set)[0]].cols;
  Gptq gptq(backend_, width,
            {.act_order = recipe_.act_order,
             .damp = recipe_.damp,
             .gptaq = recipe_.gptaq,
             .sweeps = recipe_.sweeps,
             .tail = plan_.at(index, RolesOf(set)[0]).tail.columns,
             .lattice = std::ranges::any_of(RolesOf(set), [&](Role role) {
               return plan_.at(index, role).weights.lattice();
             })});
  Buffer<float> copy(backend_.allocator());
  for (int64_t w = 0; w < stream_.windows(); ++w) {
    auto [input, tokens] = stream_.Input(set, w);
    if (tokens == 0) continue;
    const float* exact = nullptr;
    if (reference_) {  // whose inputs would take the place of these
      const int64_t count = tokens * width;
      backend_.Copy(input, count, copy.Grow(count));
      input = copy.data();
      exact = reference_->Input(set, w).values;
    }
    Account(seconds_.inputs);
    gptq.Add(input, exact, tokens);
    Account(seconds_.sums);
    progress(static_cast<double>(w + 1) / static_cast<double>(stream_.windows()),
             RoleName(RolesOf(set)[0]));
  }
  // Of 28672 inputs and 2048 tokens half a gigabyte, which a Hessian needs more.
  stream_.Release();
  if (reference_) reference_->Release();
  for (Role role : RolesOf(set)) {
    const LinearPlan& plan = plan_.at(index, role);
    if (plan.weights.quantized()) {
      Rounded rounded = gptq.Round(layer[role], plan.weights, plan.tail.weights);
      errors[role] = rounded.relative_error;
      SetRounded(std::move(rounded), stored[role]);
      Account(seconds_.rounding);
    }
    layer[role] = {};
  }
}

void Calibration::Skip(const LayerWeights& stored, const FloatLayer& layer, int64_t index) {
  stream_.Pass(stored, index);
  if (reference_) reference_->Pass(StoreNearest(layer, reference_plan_, index), index);
}

}  // namespace nibble
