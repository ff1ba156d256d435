// SPDX-License-Identifier: Apache-2.0
#include "quantize/calibrate.h"

#include <algorithm>

#include "quantize/set_rounder.h"

namespace nibble {
namespace {

KvSpec CalibrationKv(const ModelConfig& config, const Plan& plan, bool quantized) {
  KvSpec kv = PlannedKv(config, plan);
  if (!quantized) kv.k = kv.v = FormatSpec{};
  return kv;
}

}  // namespace

std::span<const Role> RolesOf(LinearSet set) {
  static constexpr Role kQkv[] = {Role::kQ, Role::kK, Role::kV};
  static constexpr Role kO[] = {Role::kO};
  static constexpr Role kMlp[] = {Role::kGate, Role::kUp};
  static constexpr Role kDown[] = {Role::kDown};
  switch (set) {
    case LinearSet::kQkv:
      return kQkv;
    case LinearSet::kO:
      return kO;
    case LinearSet::kMlp:
      return kMlp;
    case LinearSet::kDown:
      return kDown;
  }
  NIBBLE_CHECK(false);
}

Plan FloatPlan(Plan plan) {
  for (auto& [name, linear] : plan.linears) linear.tail = {};
  return plan;
}

Stream::Stream(Backend& backend, const ModelConfig& config, const Plan& plan, const RopeView& rope,
               const Matrix<float>& embedding, std::span<const int32_t> ids, int64_t context,
               bool quantized)
    : backend_(backend),
      config_(config),
      plan_(plan),
      rope_(rope),
      context_(context),
      windows_(static_cast<int64_t>(ids.size()) / context),
      quantized_(quantized),
      kv_(CalibrationKv(config, plan, quantized)),
      cache_(kv_, 1, backend),
      scratch_(backend),
      x_(backend.allocator()),
      a_(backend.allocator()) {
  const auto tokens = static_cast<int64_t>(ids.size());
  x_.Grow(tokens * config.hidden_size);
  a_.Grow(tokens * std::max(config.heads * config.head_dim, config.intermediate_size));
  AlignedBytes memory;
  const TensorView table = FloatView(embedding.data, {embedding.rows, embedding.cols});
  backend_.Embed(backend_.Share(table, memory), ids, x_.data());
}

size_t Stream::Bytes(const ModelConfig& c, int64_t tokens) {
  const int64_t a = std::max(c.heads * c.head_dim, c.intermediate_size);
  return static_cast<size_t>(tokens * (c.hidden_size + a)) * sizeof(float);
}

InputSpec Stream::Planned(Role role, const StoredLinear& linear) const {
  InputSpec input = plan_.at(index_, role).Input(config_.inputs(role));
  if (!quantized_) input.activation = input.tail_activation = {};
  input.gather = linear.gather;
  return input;
}

InputSpec& Stream::LayerInput(Role role) {
  switch (role) {
    case Role::kO:
      return layer_.o_input;
    case Role::kGate:
    case Role::kUp:
      return layer_.mlp_input;
    case Role::kDown:
      return layer_.down_input;
    default:
      return layer_.qkv_input;
  }
}

void Stream::Begin(const StoredLayer& layer, int64_t index) {
  index_ = index;
  layer_ = Layer{};
  layer_.qkv_input = Planned(Role::kQ, layer[Role::kQ]);
  layer_.o_input = Planned(Role::kO, layer[Role::kO]);
  layer_.mlp_input = Planned(Role::kGate, layer[Role::kGate]);
  layer_.down_input = Planned(Role::kDown, layer[Role::kDown]);
  layer_.attention_norm = ToBackend(backend_, layer.attention_norm);
  layer_.mlp_norm = ToBackend(backend_, layer.mlp_norm);
}

void Stream::Upload(Role role, const StoredLinear& linear) {
  LayerInput(role) = Planned(role, linear);
  layer_.ids[static_cast<size_t>(role)] = backend_.Upload(linear.View(LayerInput(role)));
}

void Stream::Advance(LinearSet set, int64_t window) {
  const Decoder d = decoder();
  float* x = this->x(window);
  switch (set) {
    case LinearSet::kQkv:
      return;
    case LinearSet::kO: {
      cache_.Clear();
      cache_.Reserve(context_);
      const SequenceSlice slice = {.tokens = context_, .pages = cache_.pages()};
      return AttentionCore(d, layer_, x, {&slice, 1}, a(set, window));
    }
    case LinearSet::kMlp:
      // The attention's a is read here for the last time; kDown reuses its memory.
      return AttentionOutput(d, layer_, a(LinearSet::kO, window), context_, x);
    case LinearSet::kDown: {
      const InputSpec plain = {.width = config_.intermediate_size};
      const ActsSource gated = MlpCore(d, layer_, x, context_);
      const float* values = backend_.PrepareActs(gated, context_, plain).values;
      return backend_.Copy(values, context_ * plain.width, a(set, window));
    }
  }
}

ActsSource Stream::Source(LinearSet set, int64_t window) {
  if (set == LinearSet::kQkv) return Normed(config_, layer_.attention_norm, x(window));
  if (set == LinearSet::kMlp) return Normed(config_, layer_.mlp_norm, x(window));
  return {.x = a(set, window)};
}

const float* Stream::Input(LinearSet set, int64_t window, const FormatSpec& activation) {
  input_ = LayerInput(RolesOf(set)[0]);
  input_.activation = activation;
  if (!activation.quantized()) input_.tail_activation = {};
  return backend_.Decode(backend_.PrepareActs(Source(set, window), context_, input_));
}

void Stream::Finish() {
  for (int64_t w = 0; w < windows(); ++w) {
    MlpOutput(decoder(), layer_, {.x = a(LinearSet::kDown, w)}, context_, x(w));
  }
  ReleaseLayer(backend_, layer_);
}

void Stream::Pass(const StoredLayer& layer, int64_t index) {
  Begin(layer, index);
  for (Role role : kLayerRoles) Upload(role, layer[role]);
  for (int64_t w = 0; w < windows(); ++w) {
    cache_.Clear();
    cache_.Reserve(context_);
    const SequenceSlice slice = {.tokens = context_, .pages = cache_.pages()};
    ForwardLayer(decoder(), layer_, {&slice, 1}, x(w));
  }
  ReleaseLayer(backend_, layer_);
}

Calibration::Calibration(Backend& backend, const ModelConfig& config, const Plan& plan,
                         const Recipe& recipe, const Matrix<float>& embedding,
                         std::vector<int32_t> ids, int64_t context)
    : backend_(backend),
      plan_(plan),
      recipe_(recipe),
      rope_(backend, BuildRope(config.rope, context)),
      ids_(std::move(ids)),
      stream_(backend, config, plan, rope_.view(), embedding, ids_, context,
              recipe.quantized_calibration),
      float_plan_(FloatPlan(plan)) {
  if (recipe.gptaq > 0) {
    fp32_.emplace(backend, config, float_plan_, rope_.view(), embedding, ids_, context, false);
  }
}

StoredLayer Calibration::Round(const FloatLayer& layer, int64_t index,
                               std::map<Role, double>& errors, const Progress& progress) {
  // The other stream multiplies with all of the float weights.
  StoredLayer stored = fp32_ ? StoreFloats(layer) : StoreUnquantized(layer, plan_, index);
  last_ = std::chrono::steady_clock::now();
  stream_.Begin(stored, index);
  if (fp32_) {
    fp32_->Begin(stored, index);
    for (Role role : kLayerRoles) fp32_->Upload(role, stored[role]);
  }
  for (LinearSet set : kLinearSets) RoundSet(set, layer, index, stored, errors, progress);
  stream_.Finish();
  if (fp32_) fp32_->Finish();
  Account(seconds_.inputs);
  return stored;
}

void Calibration::Account(double& stage) {
  backend_.Read(stream_.x(), 1);
  const auto now = std::chrono::steady_clock::now();
  stage += std::chrono::duration<double>(now - last_).count();
  last_ = now;
}

void Calibration::RoundSet(LinearSet set, const FloatLayer& layer, int64_t index,
                           StoredLayer& stored, std::map<Role, double>& errors,
                           const Progress& progress) {
  const int64_t width = layer.weights[static_cast<size_t>(RolesOf(set)[0])].cols;
  const TailPlan& tail = plan_.at(index, RolesOf(set)[0]).tail;
  SetRounder rounder(backend_, width,
                     {recipe_.act_order, recipe_.damp, recipe_.gptaq, recipe_.sweeps, tail});
  Buffer<float> copy(backend_.allocator());
  for (int64_t w = 0; w < stream_.windows(); ++w) {
    stream_.Advance(set, w);
    const float *input = stream_.Input(set, w), *exact = nullptr;
    if (fp32_) {  // whose inputs would take the place of these
      const int64_t count = stream_.context() * width;
      backend_.Copy(input, count, copy.Grow(count));
      input = copy.data();
      fp32_->Advance(set, w);
      exact = fp32_->Input(set, w);
    }
    Account(seconds_.inputs);
    rounder.Add(input, exact, stream_.context());
    Account(seconds_.sums);
    const double sets = static_cast<double>(set) +
                        static_cast<double>(w + 1) / static_cast<double>(stream_.windows());
    progress(sets / 4, RoleName(RolesOf(set)[0]));
  }
  for (Role role : RolesOf(set)) {
    const LinearPlan& plan = plan_.at(index, role);
    if (plan.weights.quantized()) {
      Rounded rounded =
          rounder.Round(layer.weights[static_cast<size_t>(role)], plan.weights, plan.tail.weights);
      errors[role] = rounded.relative_error;
      stored[role].SetRounded(std::move(rounded));
      Account(seconds_.rounding);
    }
    stream_.Upload(role, stored[role]);
  }
}

void Calibration::Skip(const StoredLayer& stored, const FloatLayer& layer, int64_t index) {
  stream_.Pass(stored, index);
  if (fp32_) fp32_->Pass(StoreFloats(layer), index);
}

}  // namespace nibble
