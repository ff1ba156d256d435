// SPDX-License-Identifier: Apache-2.0
#include "quantize/learn_scales.h"

#include <algorithm>
#include <cmath>

#include "base/half.h"

namespace nibble {
namespace {

constexpr int64_t kLength = 512;     // tokens of a sequence
constexpr int64_t kBatch = 8;        // sequences of a step
constexpr int64_t kTokens = 131072;  // of the text, at most
constexpr double kRate = 2e-3;       // of a factor's logarithm, in one step, with 4 bits
constexpr int64_t kWarmup = 8;       // steps until the rate is that

// Where activations and weights lose little, few and long steps gain as much (docs/quality.md).
struct Schedule {
  Schedule(const Recipe& recipe, int64_t context, int64_t ids)
      : rough(recipe.weights.bits < 4 || recipe.activations.bits < 8),
        steps(rough ? 60 : 8),
        length(std::min(kLength, context)),
        sequences(std::min({ids, kTokens, steps * kBatch * length}) / length) {}

  bool rough;
  int64_t steps, length, sequences;

  // Tokens, which rough networks see four times at most, others once.
  int64_t least() const { return steps * kBatch / (rough ? 4 : 1) * length; }
  // Worked on until `step` (ScaleLearningTokens).
  double Tokens(int64_t step) const {
    return static_cast<double>((sequences + 2 * step * kBatch) * length);
  }
  // Of `rate`, in a step.
  double Rate(double rate, int64_t step) const {
    const double done = static_cast<double>(step) / static_cast<double>(steps);
    const double warm = static_cast<double>(step + 1) / static_cast<double>(kWarmup);
    return rate * std::sqrt(60.0 / static_cast<double>(steps)) * std::min(1.0, warm) * 0.5 *
           (1 + std::cos(M_PI * done));
  }
};

bool Learns(const PackedLinear& linear) {
  const FormatSpec& format = linear.weights.format;
  return format.quantized() && linear.bias.data == nullptr;
}

// The coarser weights are, the further from 1 are the factors that make up for it: on samples/tiny
// with points of 2 bits, perplexity 41.4 becomes 35.6 at kRate, 34.2 at five times as much.
double RateOf(const FormatSpec& format) {
  return kRate * std::exp2(std::max(0, 4 - format.bits));
}

// Whose linears read one input behind a norm.
constexpr LinearSet kBehindNorms[] = {LinearSet::kQkv, LinearSet::kMlp};

// The linear that reads an input for others, too.
Role ReaderOf(Role role) {
  for (const LinearSet set : kBehindNorms) {
    const std::vector<Role> roles = RolesOf(set);
    if (std::ranges::count(roles, role) > 0) return roles[0];
  }
  return role;
}

// The descent of one linear's factors, by their logarithms.
class Adam {
 public:
  explicit Adam(int64_t count = 0, double rate = 0)
      : rate_(rate),
        logs_(static_cast<size_t>(count)),
        means_(logs_.size()),
        squares_(logs_.size()) {}
  double rate() const { return rate_; }

  void Step(std::span<const float> slopes, int64_t step, double rate) {
    constexpr double kMean = 0.9, kSquare = 0.99;
    const double means = 1 - std::pow(kMean, static_cast<double>(step + 1));
    const double squares = 1 - std::pow(kSquare, static_cast<double>(step + 1));
    for (size_t n = 0; n < logs_.size(); ++n) {
      const double slope = slopes[n];
      means_[n] += (1 - kMean) * (slope - means_[n]);
      squares_[n] += (1 - kSquare) * (slope * slope - squares_[n]);
      logs_[n] -= rate * (means_[n] / means) / (std::sqrt(squares_[n] / squares) + 1e-12);
    }
  }
  std::vector<float> Factors() const {
    std::vector<float> factors;
    for (const double log : logs_) factors.push_back(static_cast<float>(std::exp(log)));
    return factors;
  }

 private:
  double rate_;
  std::vector<double> logs_, means_, squares_;
};

void ScaleRows(std::span<const float> rows, Tensor& plane) {
  std::vector<float> scales = ToF32(plane).data;
  const size_t each = scales.size() / rows.size();
  for (size_t i = 0; i < scales.size(); ++i) scales[i] *= rows[i / each];
  if (plane.dtype == DType::kF32) {
    plane = Tensor::Of(DType::kF32, plane.shape, std::move(scales));
    return;
  }
  std::vector<uint16_t> half;
  for (const float scale : scales) half.push_back(F16FromF32(scale));
  plane = Tensor::Of(DType::kF16, plane.shape, std::move(half));
}

// What the head reads in the float network, [tokens, hidden].
Matrix<float> Targets(Backend& backend, const ScaleTask& task, std::span<const int32_t> ids,
                      int64_t length, const ScaleProgress& progress) {
  const ModelConfig& c = task.config;
  const BackendRopes ropes(backend, c.ropes, length);
  const Plan plan = FloatPlan(task.plan);
  Stream stream(backend, c, plan, ropes, RowsOf(task.embedding, c.embedding_scale), ids, length,
                false);
  const auto tokens = static_cast<double>(ids.size());
  for (int64_t i = 0; i < c.layers; ++i) {
    progress(static_cast<double>(i) * tokens / static_cast<double>(c.layers), "targets");
    stream.Pass(StoreFloats(task.layers(i)), i);
  }
  Matrix<float> targets(stream.windows() * length, c.hidden_size);
  for (int64_t w = 0; w < stream.windows(); ++w) {
    const float* const x = stream.x() + w * length * c.hidden_size;
    const float* const normed =
        backend.Decode(backend.PrepareActs(Normed(c, {}, x), length, {.width = c.hidden_size}));
    const int64_t count = length * c.hidden_size;
    std::copy_n(backend.Read(normed, count), count, targets.row(w * length).data());
  }
  return targets;
}

class Learner {
 public:
  Learner(Backend& backend, const DenseMath& math, const ScaleTask& task, const Schedule& schedule)
      : task_(task),
        schedule_(schedule),
        embedding_(backend.Share(FloatTable(task.embedding), embedding_memory_)),
        backprop_(backend, math, task.config, task.plan, task.head, kBatch, schedule.length) {
    for (int64_t i = 0; i < task.config.layers; ++i) {
      const LayerWeights& layer = task.rounded[static_cast<size_t>(i)];
      matrices_.push_back(backprop_.MatricesOf(layer, i));
      Descent& descent = descents_.emplace_back();
      for (const auto& [role, linear] : layer.linears) {
        const PackedWeights& w = linear.weights;
        if (Learns(linear)) descent.rows[role] = Adam(w.rows, RateOf(w.format));
        if (!linear.input.scales.empty() && ReaderOf(role) == role) {
          descent.inputs[role] = Adam(w.cols, RateOf(w.format));
        }
      }
    }
  }

  // Returns the divergence in nats per token before the step.
  double Step(int64_t step, const Matrix<float>& targets, const std::vector<int64_t>& order);
  ScaleFactors Factors() const;

 private:
  struct Descent {
    ByRole<Adam> rows, inputs;
  };

  const ScaleTask& task_;
  const Schedule schedule_;
  AlignedBytes embedding_memory_;
  const PackedWeights embedding_;
  Backprop backprop_;
  std::vector<Backprop::Matrices> matrices_;
  std::vector<Descent> descents_;
};

ScaleFactors Learner::Factors() const {
  ScaleFactors factors;
  for (const Descent& descent : descents_) {
    LayerScales& layer = factors.emplace_back();
    for (const auto& [role, adam] : descent.rows) layer.rows[role] = adam.Factors();
    for (const auto& [role, adam] : descent.inputs) layer.inputs[role] = adam.Factors();
  }
  return factors;
}

double Learner::Step(int64_t step, const Matrix<float>& targets,
                     const std::vector<int64_t>& order) {
  const int64_t length = schedule_.length, hidden = task_.config.hidden_size;
  std::vector<int32_t> ids;
  std::vector<float> wanted;
  for (int64_t i = 0; i < kBatch; ++i) {
    const auto at = static_cast<size_t>((step * kBatch + i) % schedule_.sequences);
    const int64_t first = order[at] * length;
    ids.insert(ids.end(), task_.ids.begin() + first, task_.ids.begin() + first + length);
    const float* const rows = targets.row(first).data();
    wanted.insert(wanted.end(), rows, rows + length * hidden);
  }
  const ScaleFactors factors = Factors();
  backprop_.Begin(embedding_, ids);
  for (size_t i = 0; i < factors.size(); ++i) {
    LayerWeights layer = task_.rounded[i];
    ApplyScales(factors[i], layer);
    backprop_.Forward(layer, static_cast<int64_t>(i));
  }
  const double divergence = backprop_.Diverge(wanted);
  const auto descend = [&](ByRole<Adam>& adams, const ByRole<std::vector<float>>& slopes) {
    for (auto& [role, adam] : adams) {
      adam.Step(slopes[role], step, schedule_.Rate(adam.rate(), step));
    }
  };
  for (size_t i = descents_.size(); i-- > 0;) {
    const LayerScales slopes = backprop_.Backward(matrices_[i], static_cast<int64_t>(i));
    descend(descents_[i].rows, slopes.rows);
    descend(descents_[i].inputs, slopes.inputs);
  }
  return divergence / static_cast<double>(ids.size());
}

}  // namespace

std::string_view WhyScalesStay(const Recipe& recipe) {
  if (recipe.rotation == Rotation::kNone) return "nothing is rotated; use --rotation";
  if (recipe.rounding != Rounding::kGptq) return "weights are rounded to nearest";
  return recipe.arranges_channels() ? "channels are ordered or scaled" : "";
}

bool LearnsScales(const Recipe& recipe, const ModelConfig& config, int64_t ids) {
  return recipe.learned_scales && WhyScalesStay(recipe).empty() && config.router.experts == 0 &&
         config.attention_softcap == 0 && config.has(LayerVector::kMlpNorm) &&
         !config.gating.alone && !config.parallel && !config.shares_kv() &&
         ids >= ScaleLearningLeast(recipe, config);
}

int64_t ScaleLearningLeast(const Recipe& recipe, const ModelConfig& config) {
  return Schedule(recipe, config.context, 0).least();
}

void PlanInputScales(const ModelConfig& config, Plan& plan) {
  for (int64_t i = 0; i < config.layers; ++i) {
    for (const LinearSet set : kBehindNorms) {
      const auto at = [&](Role role) -> LinearPlan& {
        return plan.linears.at(LinearName(i, role));
      };
      const std::vector<Role> readers = RolesOf(set);
      const auto rounded = [&](Role role) { return at(role).weights.quantized(); };
      if (!std::ranges::all_of(readers, rounded)) continue;
      for (const Role role : readers) at(role).input_scales = true;
    }
  }
}

void ApplyScales(const LayerScales& factors, LayerWeights& layer) {
  for (auto& [role, linear] : layer.linears) {
    if (const auto& rows = factors.rows[role]; !rows.empty()) {
      ScaleRows(rows, linear.weights.scales);
    }
    std::vector<float>& scales = linear.input.scales;
    const std::vector<float>& inputs = factors.inputs[ReaderOf(role)];
    for (size_t i = 0; i < inputs.size(); ++i) scales[i] *= inputs[i];
  }
}

ScaleFactors LearnScales(Backend& backend, const DenseMath& math, const ScaleTask& task,
                         const ScaleProgress& progress) {
  const Schedule schedule(task.recipe, task.config.context, static_cast<int64_t>(task.ids.size()));
  const auto count = static_cast<size_t>(schedule.sequences * schedule.length);
  const Matrix<float> targets =
      Targets(backend, task, std::span(task.ids).first(count), schedule.length, progress);
  Learner learner(backend, math, task, schedule);
  const std::vector<int64_t> order = Rng(0).Permutation(schedule.sequences);
  for (int64_t step = 0; step < schedule.steps; ++step) {
    const double divergence = learner.Step(step, targets, order);
    progress(schedule.Tokens(step + 1),
             fmt::format("step {}/{}, divergence {:.4f}", step + 1, schedule.steps, divergence));
  }
  return learner.Factors();
}

double ScaleLearningBytes(const Recipe& recipe, const ModelConfig& c, int64_t ids) {
  const Schedule schedule(recipe, c.context, ids);
  const int64_t kept =
      2 * c.hidden_size + (c.heads + 2 * c.kv_heads) * c.head_dim + 2 * c.intermediate_size;
  const int64_t floats =
      c.parameters() + (c.layers + 2) * kBatch * schedule.length * kept +
      2 * schedule.length * c.vocab_size +
      schedule.sequences * schedule.length * (c.hidden_size + c.intermediate_size);
  return static_cast<double>(floats) * sizeof(float);
}

double ScaleLearningTokens(const Recipe& recipe, const ModelConfig& c, int64_t ids) {
  const Schedule schedule(recipe, c.context, ids);
  return schedule.Tokens(schedule.steps);
}

}  // namespace nibble
