// SPDX-License-Identifier: Apache-2.0
#include "quantize/learn/learn_scales.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

namespace nibble {
namespace {

constexpr int64_t kLength = 512;     // tokens of a sequence
constexpr int64_t kBatch = 8;        // sequences of a step
constexpr int64_t kTokens = 131072;  // of the text, at most
constexpr int64_t kWarmup = 8;       // steps until the rate is whole
constexpr int64_t kPatience = 3;     // measurements that find nothing better
constexpr double kHeadRate = 0.01;   // in a step, of the root mean square of what is in the head

// Returns whether activations or weights have so few bits that they lose much.
bool Rough(const Recipe& recipe) {
  return recipe.weights.bits < 4 || recipe.activations.bits < 8;
}

// A head that is a table of its own, where weights lose much; with 4 bits it gained nothing.
bool LearnsHead(const Recipe& recipe, const ModelConfig& config) {
  return recipe.weights.bits < 4 && !config.tied_head && !config.has_bias(Role::kHead);
}

Adam HeadDescent(const Matrix<float>& head) {
  double squares = 0;
  for (const float value : head.data) squares += static_cast<double>(value) * value;
  return Adam(head.data, kHeadRate * std::sqrt(squares / static_cast<double>(head.data.size())));
}

// If activations and weights lose little, few and long steps gain as much (docs/quality.md); if
// they gain nothing, the descent begins again with shorter ones.
struct Schedule {
  Schedule(const Recipe& recipe, int64_t context, int64_t ids)
      : rough(Rough(recipe)),
        steps(rough ? 60 : 8),
        interval(rough ? 12 : 8),
        length(std::min(kLength, context)),
        sequences(std::min({ids, kTokens, (steps + 1) * kBatch * length}) / length),
        held_out(std::clamp<int64_t>((sequences - needed()) / kBatch, 0,
                                     std::max<int64_t>(1, sequences / (16 * kBatch))) *
                 kBatch) {}

  bool rough;
  int64_t steps, interval;  // of a descent; interval: steps between measurements
  int64_t length, sequences;
  int64_t held_out;  // sequences, the last ones, which the steps do not need

  int64_t trained() const { return sequences - held_out; }
  // Sequences, which rough networks see four times at most, others once.
  int64_t needed() const { return steps * kBatch / (rough ? 4 : 1); }
  // Tokens worked on until `step` (ScaleLearningTokens).
  double Tokens(int64_t step) const {
    const int64_t measured = (1 + step / interval) * held_out;
    return static_cast<double>((sequences + measured + 2 * step * kBatch) * length);
  }
  // The steps of all descents, at most.
  int64_t max_steps() const { return rough ? steps : 2 * steps; }
  // The share of a factor's rate that a step takes.
  double Share(int64_t step) const {
    const double max = std::sqrt(60.0 / static_cast<double>(steps)) * (step < steps ? 1 : 0.3);
    const double done = static_cast<double>(step % steps) / static_cast<double>(steps);
    const double warm = static_cast<double>(step % steps + 1) / static_cast<double>(kWarmup);
    return max * std::min(1.0, warm) * 0.5 * (1 + std::cos(M_PI * done));
  }
};

// The inputs of the head in the float network, [tokens, hidden].
Matrix<float> Targets(Backend& backend, const ScaleTask& task, std::span<const int32_t> ids,
                      int64_t length, const ScaleProgress& progress) {
  const ModelConfig& c = task.config;
  Stream stream(backend, c, task.plan, RowsOf(task.embedding, c.embedding_scale), ids, length,
                false);
  const auto tokens = static_cast<double>(ids.size());
  for (int64_t i = 0; i < c.layers; ++i) {
    progress(static_cast<double>(i) * tokens / static_cast<double>(c.layers), "targets");
    stream.Pass(StoreFloats(task.layers(i)), i);
  }
  const Buffer<float> norm = ToBackend(backend, task.final_norm);
  Matrix<float> targets(stream.windows() * length, c.hidden_size);
  for (int64_t w = 0; w < stream.windows(); ++w) {
    const float* const x = stream.x() + w * length * c.hidden_size;
    const float* const normed =
        backend.Decode(backend.PrepareActs(Normed(c, norm, x), length, {.width = c.hidden_size}));
    const int64_t count = length * c.hidden_size;
    std::copy_n(backend.Read(normed, count), count, targets.row(w * length).data());
  }
  return targets;
}

class Learner {
 public:
  // targets [tokens, hidden]: what the head reads in the float network.
  Learner(Backend& backend, const DenseMath& math, const ScaleTask& task, const Schedule& schedule,
          const Matrix<float>& targets);

  // Goes on from a state, or measures where learning begins.
  void Begin(const LearningState& begun);
  bool Continues(const LearningState& begun) const;
  bool finished() const {
    return step_ == schedule_.max_steps() || worse_ == kPatience ||
           (step_ == schedule_.steps && worse_ == 0);
  }
  // Returns a line on the step for reports.
  std::string Step();
  std::string held_out() const {
    return schedule_.held_out > 0 ? fmt::format(", held out {:.4f}", best_) : "";
  }
  // The tokens worked on so far; estimates foresee the first descent alone, so a second adds
  // nothing.
  double tokens() const { return schedule_.Tokens(std::min(step_, schedule_.steps)); }
  LearningState state() const;
  Learned best() const;

 private:
  // The divergence of a batch, in nats per token.
  double Divergence(std::span<const int64_t> batch);
  // The divergence of the held-out sequences; 0 without any.
  float Measure();

  const ScaleTask& task_;
  const Schedule schedule_;
  const Matrix<float>& targets_;
  const std::vector<int64_t> order_;  // of sequences
  AlignedBytes embedding_memory_;
  const PackedWeights embedding_;
  Backprop backprop_;
  std::vector<Backprop::Matrices> matrices_;
  std::vector<ScaleDescent> descents_;
  std::optional<Adam> head_;
  int64_t step_ = 0, worse_ = 0;  // steps made; measurements since the best one
  float best_ = 0;                // divergence of what is held out, in nats per token
};

Learner::Learner(Backend& backend, const DenseMath& math, const ScaleTask& task,
                 const Schedule& schedule, const Matrix<float>& targets)
    : task_(task),
      schedule_(schedule),
      targets_(targets),
      order_(Rng(0).Permutation(schedule.trained())),
      embedding_(backend.Share(FloatTable(task.embedding), embedding_memory_)),
      backprop_(backend, math, task.config, task.plan, task.head, task.final_norm, kBatch,
                schedule.length) {
  for (int64_t i = 0; i < task.config.layers; ++i) {
    const LayerWeights& layer = task.rounded[static_cast<size_t>(i)];
    matrices_.push_back(backprop_.MatricesOf(layer, i));
    descents_.emplace_back(layer);
  }
  if (LearnsHead(task.recipe, task.config)) head_ = HeadDescent(task.head);
}

// Names in a state: of step_, worse_ and best_, and of the head's descent.
constexpr const char *kProgressName = "progress", *kHeadName = "head";

void Learner::Begin(const LearningState& begun) {
  if (begun.empty()) {
    best_ = Measure();
    return;
  }
  if (!Continues(begun)) {
    Fail(
        "learning.safetensors is not what was saved there; remove the unfinished run's directory "
        "and begin again");
  }
  for (size_t i = 0; i < descents_.size(); ++i) {
    descents_[i].Resume(static_cast<int64_t>(i), begun);
  }
  if (head_) head_->Resume(begun.at(kHeadName));
  const std::vector<float>& progress = begun.at(kProgressName);
  step_ = static_cast<int64_t>(progress[0]), worse_ = static_cast<int64_t>(progress[1]);
  best_ = progress[2];
}

// Returns whether `begun` has the vectors, of the same sizes, that a state of this learning has.
bool Learner::Continues(const LearningState& begun) const {
  const LearningState own = state();
  const bool alike = std::ranges::all_of(own, [&](const auto& one) {
    const auto found = begun.find(one.first);
    return found != begun.end() && found->second.size() == one.second.size();
  });
  constexpr float kMaxSteps = 1e6f;
  const auto counts = [&](float value) { return value >= 0 && value <= kMaxSteps; };
  return alike && counts(begun.at(kProgressName)[0]) && counts(begun.at(kProgressName)[1]);
}

LearningState Learner::state() const {
  LearningState state = {
      {kProgressName, {static_cast<float>(step_), static_cast<float>(worse_), best_}}};
  if (head_) state[kHeadName] = head_->state();
  for (size_t i = 0; i < descents_.size(); ++i) {
    descents_[i].Save(static_cast<int64_t>(i), state);
  }
  return state;
}

Learned Learner::best() const {
  Learned learned;
  for (const ScaleDescent& descent : descents_) learned.factors.push_back(descent.best());
  if (head_) {
    learned.head = task_.head;
    std::ranges::copy(head_->best(), learned.head.data.begin());
  }
  return learned;
}

double Learner::Divergence(std::span<const int64_t> batch) {
  const int64_t length = schedule_.length, hidden = task_.config.hidden_size;
  std::vector<int32_t> ids;
  std::vector<float> wanted;
  for (const int64_t sequence : batch) {
    const int64_t first = sequence * length;
    ids.insert(ids.end(), task_.ids.begin() + first, task_.ids.begin() + first + length);
    const float* const rows = targets_.row(first).data();
    wanted.insert(wanted.end(), rows, rows + length * hidden);
  }
  if (head_) backprop_.UseHead(head_->values());
  backprop_.Begin(embedding_, ids);
  for (size_t i = 0; i < descents_.size(); ++i) {
    LayerWeights layer = task_.rounded[i];
    ApplyScales(descents_[i].factors(), layer);
    backprop_.Forward(layer, static_cast<int64_t>(i));
  }
  return backprop_.Diverge(wanted) / static_cast<double>(ids.size());
}

float Learner::Measure() {
  double sum = 0;
  for (int64_t first = schedule_.trained(); first < schedule_.sequences; first += kBatch) {
    std::vector<int64_t> batch(kBatch);
    std::iota(batch.begin(), batch.end(), first);
    sum += Divergence(batch);
  }
  return static_cast<float>(sum * kBatch /
                            static_cast<double>(std::max(schedule_.held_out, kBatch)));
}

std::string Learner::Step() {
  const int64_t step = step_ % schedule_.steps;  // of this descent
  if (step_ == schedule_.steps) {                // which begins where the first one did
    for (size_t i = 0; i < descents_.size(); ++i) descents_[i] = ScaleDescent(task_.rounded[i]);
  }
  std::vector<int64_t> batch;
  for (int64_t i = step * kBatch; i < (step + 1) * kBatch; ++i) {
    batch.push_back(order_[static_cast<size_t>(i % schedule_.trained())]);
  }
  const double divergence = Divergence(batch);
  for (size_t i = descents_.size(); i-- > 0;) {
    const LayerScales gradients = backprop_.Backward(matrices_[i], static_cast<int64_t>(i));
    descents_[i].Step(gradients, step, schedule_.Share(step_));
  }
  if (head_) head_->Step(backprop_.HeadGradients(), step, schedule_.Share(step_));
  if (++step_ % schedule_.interval == 0) {
    const float held_out = Measure();
    worse_ = held_out < best_ || schedule_.held_out == 0 ? 0 : worse_ + 1;
    if (worse_ == 0) {
      best_ = held_out;
      for (ScaleDescent& descent : descents_) descent.KeepBest();
      if (head_) head_->KeepBest();
    }
  }
  return fmt::format("{}step {}/{}, divergence {:.4f}", step_ > schedule_.steps ? "shorter " : "",
                     step + 1, schedule_.steps, divergence);
}

}  // namespace

bool LearnsScales(const Recipe& recipe, const ModelConfig& config, int64_t ids) {
  return recipe.learned_scales && WhyScaleTuningIsSkipped(recipe).empty() &&
         Differentiable(config) && ids >= ScaleLearningMin(recipe, config);
}

int64_t ScaleLearningMin(const Recipe& recipe, const ModelConfig& config) {
  const Schedule schedule(recipe, config.context, 0);
  return schedule.needed() * schedule.length;
}

Learned LearnScales(Backend& backend, const DenseMath& math, const ScaleTask& task,
                    const ScaleProgress& progress) {
  const Schedule schedule(task.recipe, task.config.context, static_cast<int64_t>(task.ids.size()));
  const auto count = static_cast<size_t>(schedule.sequences * schedule.length);
  const Matrix<float> targets =
      Targets(backend, task, std::span(task.ids).first(count), schedule.length, progress);
  Learner learner(backend, math, task, schedule, targets);
  learner.Begin(task.begun);
  for (std::string done = "measured";; done = learner.Step()) {
    task.keep([&] { return learner.state(); });
    progress(learner.tokens(), done + learner.held_out());
    if (learner.finished()) return learner.best();
  }
}

double ScaleLearningBytes(const Recipe& recipe, const ModelConfig& c, int64_t ids) {
  const Schedule schedule(recipe, c.context, ids);
  const int64_t floats =
      (LearnsHead(recipe, c) ? 2 * c.vocab_size * c.hidden_size : 0) +
      schedule.sequences * schedule.length * (c.hidden_size + c.intermediate_size);
  return BackpropBytes(c, kBatch, schedule.length) + static_cast<double>(floats) * sizeof(float);
}

double HeadLearningBytes(const Recipe& recipe, const ModelConfig& c) {
  return LearnsHead(recipe, c) ? 32 * static_cast<double>(c.vocab_size * c.hidden_size) : 0;
}

double ScaleLearningTokens(const Recipe& recipe, const ModelConfig& c, int64_t ids) {
  const Schedule schedule(recipe, c.context, ids);
  return schedule.Tokens(schedule.steps);
}

}  // namespace nibble
