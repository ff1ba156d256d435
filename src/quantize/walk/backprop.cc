// SPDX-License-Identifier: Apache-2.0
#include "quantize/walk/backprop.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <tuple>

namespace nibble {
namespace {

constexpr size_t kLanes = 16;      // kv heads that are worked on at a time
constexpr int64_t kQueries = 256;  // of a block of probabilities

using enum DenseProduct::Transposed;

}  // namespace

// A layer's values for the way back: x in front of attention and of the MLP, and the outputs of
// linears, [tokens, width].
struct Backprop::Saved {
  LayerSpec spec;
  HeadShape heads;
  ByRole<InputSpec> inputs;
  ByRole<TransformSpec> outputs;
  AttentionSpec attention;
  float scale = 1;  // of x behind the layer
  Floats x, middle, q, k, v, gate, up;
  ByVector<Floats> vectors;             // weights
  Floats normed_q, normed_k, normed_v;  // behind their norms, where there are some
  Floats o_output, down_output;         // in front of theirs, likewise
  ByRole<Floats> read;                  // KeepInputs

  const Floats& read_v() const { return normed_v.size() > 0 ? normed_v : v; }
  const Floats& turned_q() const {
    return vectors[LayerVector::kQueryNorm].size() > 0 ? normed_q : q;
  }
  const Floats& turned_k() const {
    return vectors[LayerVector::kKeyNorm].size() > 0 ? normed_k : k;
  }
};

// One query head and its kv head in one sequence, [length, head_dim], and a block of it.
struct Backprop::HeadMemory {
  Floats q, k, v, out_gradients, q_gradients, k_gradients, v_gradients;
  Floats p, gradients;  // [kQueries, length]
};

bool Differentiable(const ModelConfig& c) {
  return c.router.experts == 0 && c.attention_softcap == 0 && c.has(LayerVector::kMlpNorm) &&
         c.gating.has_gradients() && !c.parallel && !c.shares_kv() && c.layer_input_size == 0;
}

double BackpropBytes(const ModelConfig& c, int64_t sequences, int64_t length) {
  const int64_t kept =
      2 * c.hidden_size + (c.heads + 2 * c.kv_heads) * c.head_dim + 2 * c.intermediate_size;
  const int64_t floats =
      c.parameters() + (c.layers + 2) * sequences * length * kept + 2 * length * c.vocab_size;
  return static_cast<double>(floats) * sizeof(float);
}

Backprop::Floats Backprop::NewFloats(int64_t count) const {
  Floats floats(math_.allocator());
  if (count > 0) floats.Grow(count);
  return floats;
}

Backprop::Backprop(Backend& backend, const DenseMath& math, const ModelConfig& config,
                   const Plan& plan, const Matrix<float>& head,
                   const std::vector<float>& final_norm, int64_t sequences, int64_t length)
    : backend_(backend),
      math_(math),
      config_(config),
      plan_(plan),
      sequences_(sequences),
      length_(length),
      kv_(FinestLayerCaches(config, plan)),
      ropes_(backend, config.ropes, length),
      scratch_(backend),
      head_(ToBackend(backend, head.data)),
      final_norm_(ToBackend(backend, final_norm)) {
  for (Floats* floats : {&x_, &x_gradients_, &input_gradients_, &a_gradients_, &q_gradients_,
                         &k_gradients_, &v_gradients_, &gate_gradients_, &up_gradients_,
                         &output_gradients_, &loaded_head_, &head_gradients_, &products_, &logits_,
                         &target_, &target_logits_, &sums_, &norm_weights_}) {
    *floats = NewFloats();
  }
  for (int64_t i = 0; i < sequences; ++i) {
    caches_.emplace_back(LargestCache(kv_), 1, backend).Reserve(length);
    batch_.push_back(caches_.back().Slice(i * length, length));
  }
  const int64_t head_values =
      length * config.Largest([&](int64_t i) { return config.head_shape(i).head_dim; });
  for (size_t i = 0; i < kLanes; ++i) {
    HeadMemory& m = heads_.emplace_back();
    for (Floats* f :
         {&m.q, &m.k, &m.v, &m.out_gradients, &m.q_gradients, &m.k_gradients, &m.v_gradients}) {
      *f = NewFloats(head_values);
    }
    for (Floats* f : {&m.p, &m.gradients}) *f = NewFloats(kQueries * length);
  }
}

Backprop::~Backprop() = default;

Backprop::Matrices Backprop::MatricesOf(const LayerWeights& layer, int64_t index) {
  Matrices matrices;
  for (const auto& [role, linear] : layer.linears) {
    const TransformSpec& transform = plan_.at(index, role).input_transform;
    Matrix<float> w = Decode(linear.weights);
    if (const TransformSpec& after = plan_.at(index, role).output_transform; !after.identity()) {
      Matrix<double> whole(w.rows, w.cols);
      std::ranges::copy(w.data, whole.data.begin());
      ApplyTransformToColumns(after, whole);
      std::ranges::copy(whole.data, w.data.begin());
    }
    Floats there = ToBackend(backend_, w.data);
    if (transform.identity()) {
      matrices[role] = std::move(there);
      continue;
    }
    auto known =
        std::ranges::find(transforms_, transform, &decltype(transforms_)::value_type::first);
    if (known == transforms_.end()) {
      Matrix<double> turned(w.cols, w.cols);
      for (int64_t i = 0; i < w.cols; ++i) turned.row(i)[static_cast<size_t>(i)] = 1;
      ApplyTransformToRows(transform, turned);
      const std::vector<float> values(turned.data.begin(), turned.data.end());
      known = transforms_.emplace(known, transform, ToBackend(backend_, values));
    }
    Floats& undone = matrices[role] = NewFloats(w.rows * w.cols);
    math_.Multiply({.a = there.data(),
                    .b = known->second.data(),
                    .transposed = kB,
                    .rows = w.rows,
                    .inner = w.cols,
                    .cols = w.cols,
                    .out = undone.data()});
  }
  return matrices;
}

void Backprop::Begin(const PackedWeights& embedding, std::span<const int32_t> ids) {
  NIBBLE_CHECK(static_cast<int64_t>(ids.size()) == tokens());
  backend_.Embed(embedding, ids, static_cast<float>(config_.embedding_scale),
                 x_.Grow(tokens() * config_.hidden_size));
}

void Backprop::BeginAt(const float* x) {
  const int64_t values = tokens() * config_.hidden_size;
  backend_.Copy(x, values, x_.Grow(values));
}

const float* Backprop::Input(Role first) const {
  return saved_[static_cast<size_t>(layer_)].read[first].data();
}

void Backprop::KeepInput(Role first, const ActsSource& source) {
  if (!keeps_inputs_) return;
  Saved& saved = saved_[static_cast<size_t>(layer_)];
  const InputSpec& input = saved.inputs[first];
  Floats& read = saved.read[first] = NewFloats(tokens() * input.width);
  backend_.Copy(backend_.Decode(backend_.PrepareActs(source, tokens(), input)), read.size(),
                read.data());
}

void Backprop::Keep(const Intermediate* values, int64_t width, Floats& kept) const {
  const int64_t count = tokens() * width;
  math_.Widen(values, count, kept.Grow(count));
}

void Backprop::Forward(const LayerWeights& stored, int64_t index) {
  while (static_cast<int64_t>(saved_.size()) <= index) {
    Saved& s = saved_.emplace_back();
    for (Floats* f : {&s.x, &s.middle, &s.q, &s.k, &s.v, &s.gate, &s.up, &s.normed_q, &s.normed_k,
                      &s.normed_v, &s.o_output, &s.down_output}) {
      *f = NewFloats();
    }
  }
  layer_ = index;
  Saved& saved = saved_[static_cast<size_t>(index)];
  Scratch& s = scratch_;
  const Decoder d = {backend_, config_, ropes_, s};
  Layer layer = UploadLayer(backend_, config_, index, Planned(stored, plan_, index),
                            kv_[static_cast<size_t>(index)]);
  const int64_t values = tokens() * config_.hidden_size;
  float* const x = x_.data();
  backend_.Copy(x, values, saved.x.Grow(values));
  ProjectHeads(d, layer, x, tokens());
  Keep(s.q.data(), config_.outputs(layer_, Role::kQ), saved.q);
  Keep(s.k.data(), config_.outputs(layer_, Role::kK), saved.k);
  Keep(s.v.data(), config_.outputs(layer_, Role::kV), saved.v);
  saved.spec = layer.spec, saved.heads = layer.heads, saved.inputs = layer.inputs;
  saved.outputs = layer.outputs;
  KeepInput(Role::kQ, LayerInput(config_, layer, Role::kQ, x));
  const int64_t head_dim = layer.heads.head_dim;
  const auto norm_heads = [&](const Floats& weight, const Floats& y, Floats& normed) {
    const ActsSource source = Normed(config_, weight, y.data());
    const Activations acts = backend_.PrepareActs(source, y.size() / head_dim, {.width = head_dim});
    backend_.Copy(acts.values, y.size(), normed.Grow(y.size()));
  };
  const std::tuple<LayerVector, const Floats*, Floats*> norms[] = {
      {LayerVector::kQueryNorm, &saved.q, &saved.normed_q},
      {LayerVector::kKeyNorm, &saved.k, &saved.normed_k}};
  for (const auto& [norm, y, normed] : norms) {
    if (config_.has(norm)) norm_heads(layer.vectors[norm], *y, *normed);
  }
  if (config_.value_norms) norm_heads({}, saved.v, saved.normed_v);
  saved.attention = d.attention(layer);
  const ActsSource attended = AttendHeads(d, layer, batch_);
  KeepInput(Role::kO, attended);
  AttentionOutput(d, layer, attended, tokens(), x);
  if (config_.has(LayerVector::kPostAttentionNorm)) {
    backend_.Copy(s.outputs.data(), values, saved.o_output.Grow(values));
  }
  backend_.Copy(x, values, saved.middle.Grow(values));
  const ActsSource gated = MlpCore(d, layer, x, tokens(), -1, /*keep=*/true);
  Keep(s.gate.data(), config_.intermediate_size, saved.gate);
  Keep(s.up.data(), config_.intermediate_size, saved.up);
  KeepInput(Role::kGate, LayerInput(config_, layer, Role::kGate, x));
  KeepInput(Role::kDown, gated);
  MlpOutput(d, layer, gated, tokens(), x);
  if (config_.has(LayerVector::kPostMlpNorm)) {
    backend_.Copy(s.outputs.data(), values, saved.down_output.Grow(values));
  }
  ReleaseLayer(backend_, layer);
  const Floats& scale = layer.vectors[LayerVector::kLayerScale];
  saved.scale = scale.size() > 0 ? *backend_.Read(scale.data(), 1) : 1;
  saved.vectors = std::move(layer.vectors);
}

void Backprop::UseHead(std::span<const float> head) {
  own_head_ = math_.Load(head, loaded_head_);
}

std::vector<float> Backprop::HeadGradients() const {
  std::vector<float> gradients(static_cast<size_t>(head_gradients_.size()));
  math_.Store(head_gradients_.data(), gradients);
  return gradients;
}

const float* Backprop::Predict(int64_t sequence, const float* head) {
  const int64_t hidden = config_.hidden_size, vocab = config_.vocab_size;
  const float* const x = x_.data() + sequence * length_ * hidden;
  const float* const read = backend_.Decode(
      backend_.PrepareActs(Normed(config_, final_norm_, x), length_, {.width = hidden}));
  math_.Multiply({read, head, kB, length_, hidden, vocab, 1, false, logits_.Grow(length_ * vocab)});
  return read;
}

void Backprop::ThroughHead(int64_t sequence, const float* head) {
  const int64_t hidden = config_.hidden_size, at = sequence * length_ * hidden;
  math_.Multiply({logits_.data(), head, kNone, length_, config_.vocab_size, hidden, 1, false,
                  input_gradients_.Grow(tokens() * hidden)});
  math_.NormGradients(x_.data() + at, final_norm_.data(), input_gradients_.data(), length_, hidden,
                      eps(), 0, x_gradients_.data() + at);
}

double Backprop::Diverge(std::span<const float> targets) {
  const int64_t hidden = config_.hidden_size, vocab = config_.vocab_size;
  const int64_t values = length_ * hidden;
  const float* const head = own_head_ != nullptr ? own_head_ : head_.data();
  x_gradients_.Grow(tokens() * hidden);
  std::vector<float> divergences(static_cast<size_t>(length_));
  double sum = 0;
  for (int64_t i = 0; i < sequences_; ++i) {
    const auto target =
        targets.subspan(static_cast<size_t>(i * values), static_cast<size_t>(values));
    const float* const read = Predict(i, head);
    math_.Multiply({math_.Load(target, target_), head_.data(), kB, length_, hidden, vocab, 1, false,
                    target_logits_.Grow(length_ * vocab)});
    math_.DivergenceGradients(target_logits_.data(), length_, vocab, logits_.data(),
                              sums_.Grow(length_));
    math_.Store(sums_.data(), divergences);
    sum += std::accumulate(divergences.begin(), divergences.end(), 0.0);
    if (own_head_ != nullptr) {
      math_.Multiply({logits_.data(), read, kA, vocab, length_, hidden, 1, i > 0,
                      head_gradients_.Grow(vocab * hidden)});
    }
    ThroughHead(i, head);
  }
  return sum;
}

void Backprop::Draw(Rng& rng) {
  x_gradients_.Grow(tokens() * config_.hidden_size);
  std::vector<float> draws(static_cast<size_t>(length_));
  for (int64_t i = 0; i < sequences_; ++i) {
    for (float& draw : draws) draw = static_cast<float>(rng.Uniform());
    Predict(i, head_.data());
    math_.DrawnGradients(draws, config_.vocab_size, logits_.data());
    ThroughHead(i, head_.data());
  }
}

double Backprop::Approach(const float* target) {
  const int64_t values = tokens() * config_.hidden_size;
  float* const gradients = x_gradients_.Grow(values);
  math_.Combine(0, 1, x_.data(), values, gradients);
  math_.Combine(1, -1, target, values, gradients);
  const double distance = math_.Length(gradients, values);
  const auto count = static_cast<double>(values);
  math_.Combine(static_cast<float>(2 / count), 0, gradients, values, gradients);
  return distance * distance / count;
}

std::vector<float> Backprop::FactorGradients(const float* y, const float* y_gradients,
                                             int64_t width) {
  math_.ColumnDots(y, y_gradients, tokens(), width, sums_.Grow(width));
  std::vector<float> gradients(static_cast<size_t>(width));
  math_.Store(sums_.data(), gradients);
  return gradients;
}

std::vector<float> Backprop::RowGradients(Role role, const float* y, const float* y_gradients) {
  const int64_t width = config_.outputs(layer_, role);
  const TransformSpec& transform = saved_[static_cast<size_t>(layer_)].outputs[role];
  if (transform.identity()) return FactorGradients(y, y_gradients, width);
  const InputSpec undone = {
      .width = width, .transform = Inverse(transform), .activations = {.bits = 32}};
  const auto in_front = [&](const float* rows) {
    return backend_.PrepareActs({.x = rows}, tokens(), undone).values;
  };
  backend_.Copy(in_front(y), tokens() * width, products_.Grow(tokens() * width));
  return FactorGradients(products_.data(), in_front(y_gradients), width);
}

const float* Backprop::AddedGradients(Role role, const float* before, const float* after,
                                      const Floats& weight, const Floats& output,
                                      LayerScales& gradients) {
  const int64_t hidden = config_.hidden_size, values = tokens() * hidden;
  if (weight.size() > 0) {
    float* const output_gradients = output_gradients_.Grow(values);
    math_.NormGradients(output.data(), weight.data(), x_gradients_.data(), tokens(), hidden, eps(),
                        0, output_gradients);
    gradients.rows[role] = RowGradients(role, output.data(), output_gradients);
    return output_gradients;
  }
  float* const added = input_gradients_.Grow(values);
  math_.Combine(0, 1, after, values, added);
  math_.Combine(1, -1, before, values, added);
  gradients.rows[role] = RowGradients(role, added, x_gradients_.data());
  return x_gradients_.data();
}

void Backprop::VisitNormed(const VisitInput& visit, Role first, const Saved& saved,
                           const Floats& x) {
  if (!visit) return;
  const Floats& norm = saved.vectors[*config_.NormInFront(first)];
  const ActsSource source = Normed(config_, norm, x.data());
  const InputSpec plain = {.width = config_.hidden_size};
  visit(first, backend_.Decode(backend_.PrepareActs(source, tokens(), plain)),
        input_gradients_.data());
}

void Backprop::ThroughNorm(Role role, const Saved& saved, const Floats& x, LayerScales& gradients) {
  const int64_t hidden = config_.hidden_size;
  const std::vector<float>& scales = saved.inputs[role].scales;
  const Floats& norm = saved.vectors[*config_.NormInFront(role)];
  const float* weights = norm.data();
  std::vector<float> both;  // stays until the gradients are there
  if (!scales.empty()) {
    const InputSpec scaled = {.width = hidden, .scales = scales};
    const Activations h = backend_.PrepareActs(Normed(config_, norm, x.data()), tokens(), scaled);
    gradients.inputs[role] = FactorGradients(backend_.Decode(h), input_gradients_.data(), hidden);
    both = scales;
    if (weights != nullptr) {
      std::ranges::transform(both, std::span(backend_.Read(weights, hidden), both.size()),
                             both.begin(), std::multiplies<>());
    }
    weights = math_.Load(both, norm_weights_);
  }
  math_.NormGradients(x.data(), weights, input_gradients_.data(), tokens(), hidden, eps(), 1,
                      x_gradients_.data());
}

void Backprop::Multiply(Role role, const float* y_gradients, const Matrices& matrices,
                        bool accumulate, Floats& out) const {
  const int64_t inputs = config_.inputs(layer_, role);
  math_.Multiply({y_gradients, matrices[role].data(), kNone, tokens(),
                  config_.outputs(layer_, role), inputs, 1, accumulate,
                  out.Grow(tokens() * inputs)});
}

LayerScales Backprop::Backward(const Matrices& matrices, int64_t index, const Visit& visit,
                               const VisitInput& visit_input) {
  layer_ = index;
  const auto at = static_cast<size_t>(index);
  const Saved& saved = saved_[at];
  const float* const after = at + 1 < saved_.size() ? saved_[at + 1].x.data() : x_.data();
  LayerScales gradients;
  const auto of_rows = [&](Role role, const Floats& y, const Floats& y_gradients) {
    gradients.rows[role] = RowGradients(role, y.data(), y_gradients.data());
    if (visit) visit(role, y_gradients.data());
  };
  const auto through_heads = [&](const Floats& weight, const Floats& x, Floats& of_heads) {
    const int64_t dim = saved.heads.head_dim;
    math_.NormGradients(x.data(), weight.data(), of_heads.data(), x.size() / dim, dim, eps(), 0,
                        of_heads.data());
  };
  if (saved.scale != 1) {
    const int64_t values = tokens() * config_.hidden_size;
    math_.Combine(saved.scale, 0, x_gradients_.data(), values, x_gradients_.data());
  }
  const float* const down =
      AddedGradients(Role::kDown, saved.middle.data(), after,
                     saved.vectors[LayerVector::kPostMlpNorm], saved.down_output, gradients);
  if (visit) visit(Role::kDown, down);
  Multiply(Role::kDown, down, matrices, false, up_gradients_);
  const int64_t gated = tokens() * config_.intermediate_size;
  math_.GateGradients(config_.gating, saved.gate.data(), saved.up.data(), gated,
                      up_gradients_.data(), gate_gradients_.Grow(gated));
  of_rows(Role::kGate, saved.gate, gate_gradients_);
  of_rows(Role::kUp, saved.up, up_gradients_);
  Multiply(Role::kGate, gate_gradients_.data(), matrices, false, input_gradients_);
  Multiply(Role::kUp, up_gradients_.data(), matrices, true, input_gradients_);
  VisitNormed(visit_input, Role::kGate, saved, saved.middle);
  ThroughNorm(Role::kGate, saved, saved.middle, gradients);
  const float* const o =
      AddedGradients(Role::kO, saved.x.data(), saved.middle.data(),
                     saved.vectors[LayerVector::kPostAttentionNorm], saved.o_output, gradients);
  if (visit) visit(Role::kO, o);
  Multiply(Role::kO, o, matrices, false, a_gradients_);
  AttentionGradients(saved);
  const Floats &q_norm = saved.vectors[LayerVector::kQueryNorm],
               &k_norm = saved.vectors[LayerVector::kKeyNorm];
  if (q_norm.size() > 0) through_heads(q_norm, saved.q, q_gradients_);
  if (k_norm.size() > 0) through_heads(k_norm, saved.k, k_gradients_);
  if (config_.value_norms) through_heads({}, saved.v, v_gradients_);
  of_rows(Role::kQ, saved.q, q_gradients_);
  of_rows(Role::kK, saved.k, k_gradients_);
  of_rows(Role::kV, saved.v, v_gradients_);
  Multiply(Role::kQ, q_gradients_.data(), matrices, false, input_gradients_);
  Multiply(Role::kK, k_gradients_.data(), matrices, true, input_gradients_);
  Multiply(Role::kV, v_gradients_.data(), matrices, true, input_gradients_);
  VisitNormed(visit_input, Role::kQ, saved, saved.x);
  ThroughNorm(Role::kQ, saved, saved.x, gradients);
  return gradients;
}

void Backprop::AttentionGradients(const Saved& saved) {
  q_gradients_.Grow(tokens() * config_.outputs(layer_, Role::kQ));
  k_gradients_.Grow(tokens() * config_.outputs(layer_, Role::kK));
  v_gradients_.Grow(tokens() * config_.outputs(layer_, Role::kV));
  const size_t heads = static_cast<size_t>(sequences_ * saved.heads.kv_heads);
  math_.ForEach(std::min(heads, kLanes), [&](size_t lane) {
    for (size_t i = lane; i < heads; i += kLanes) {
      HeadGradients(saved, static_cast<int64_t>(i), heads_[lane]);
    }
  });
}

void Backprop::HeadGradients(const Saved& saved, int64_t index, HeadMemory& m) const {
  const auto& [heads, kv_heads, dim] = saved.heads;
  const int64_t sequence = index / kv_heads, kv_head = index % kv_heads, group = heads / kv_heads;
  const int64_t q_width = saved.heads.q_width(), kv_width = saved.heads.kv_width();
  const RopeView rope = ropes_.view(saved.spec.rope);
  const HeadAngles angles = {rope.cos, rope.sin, rope.angles};
  const int64_t kv_at = sequence * length_ * kv_width + kv_head * dim;
  math_.TakeHead(saved.turned_k().data() + kv_at, length_, kv_width, dim, angles, m.k.data());
  math_.TakeHead(saved.read_v().data() + kv_at, length_, kv_width, dim, {}, m.v.data());
  for (int64_t g = 0; g < group; ++g) {
    const int64_t q_at = sequence * length_ * q_width + (kv_head * group + g) * dim;
    math_.TakeHead(saved.turned_q().data() + q_at, length_, q_width, dim, angles, m.q.data());
    math_.TakeHead(a_gradients_.data() + q_at, length_, q_width, dim, {}, m.out_gradients.data());
    QueryGradients(saved, g == 0, m);
    math_.PutHead(m.q_gradients.data(), length_, q_width, dim, angles, q_gradients_.data() + q_at);
  }
  math_.PutHead(m.k_gradients.data(), length_, kv_width, dim, angles, k_gradients_.data() + kv_at);
  math_.PutHead(m.v_gradients.data(), length_, kv_width, dim, {}, v_gradients_.data() + kv_at);
}

// The last block of queries comes first, since it sees all keys.
void Backprop::QueryGradients(const Saved& saved, bool first_head, HeadMemory& m) const {
  const AttentionSpec& attention = saved.attention;
  const int64_t dim = saved.heads.head_dim;
  const float scale = attention.scale;
  bool add = !first_head;
  for (int64_t first = (length_ - 1) / kQueries * kQueries; first >= 0; first -= kQueries) {
    const CausalBlock block = {first, std::min(kQueries, length_ - first),
                               attention.sliding_window};
    const int64_t rows = block.rows, keys = block.keys();
    const float *const q = m.q.data() + first * dim, *const out =
                                                         m.out_gradients.data() + first * dim;
    float *const p = m.p.data(), *const gradients = m.gradients.data();
    math_.Multiply({q, m.k.data(), kB, rows, dim, keys, scale, false, p});
    math_.Softmax(block, p);
    math_.Multiply({p, out, kA, keys, rows, dim, 1, add, m.v_gradients.data()});
    math_.Multiply({out, m.v.data(), kB, rows, dim, keys, 1, false, gradients});
    math_.SoftmaxGradients(block, p, gradients);
    math_.Multiply({gradients, m.k.data(), kNone, rows, keys, dim, scale, false,
                    m.q_gradients.data() + first * dim});
    math_.Multiply({gradients, q, kA, keys, rows, dim, scale, add, m.k_gradients.data()});
    add = true;
  }
}

}  // namespace nibble
