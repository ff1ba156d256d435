// SPDX-License-Identifier: Apache-2.0
#include "quantize/learn/tune_block.h"

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "quantize/learn/scale_factors.h"
#include "quantize/learn/weight_gradients.h"

namespace nibble {
namespace {

constexpr int64_t kBatchTokens = 2048;
constexpr double kWeightRate = 2e-3;  // in a step, of the root mean square of a matrix
constexpr int64_t kHeldOut = 8;       // one batch of so many is not learned from
constexpr int64_t kWarmSteps = 8;     // until the rate is whole

int64_t BatchWindows(int64_t windows, int64_t context) {
  return std::clamp<int64_t>(kBatchTokens / context, 1, std::max<int64_t>(1, windows / kHeldOut));
}

Adam WeightDescent(const Matrix<double>& w) {
  double squares = 0;
  for (const double value : w.data) squares += value * value;
  return Adam(std::vector<float>(w.data.begin(), w.data.end()),
              kWeightRate * std::sqrt(squares / static_cast<double>(w.data.size())));
}

LayerWeights OfSet(LinearSet set, const LayerWeights& stored) {
  LayerWeights some;
  for (const Role role : RolesOf(set)) {
    if (stored[role].weights.format.quantized()) some[role] = stored[role];
  }
  return some;
}

// The linears that the plan rounds and that are not rounded yet.
std::vector<Role> Unrounded(const FloatLayer& layer, const Plan& plan, int64_t index) {
  std::vector<Role> roles;
  for (const auto& [role, w] : layer.weights) {
    if (w.rows > 0 && plan.at(index, role).weights.quantized()) roles.push_back(role);
  }
  return roles;
}

// The plan while these linears are floats, which read floats, as do others of their sets.
Plan WithFloats(const ModelConfig& config, Plan plan, int64_t index,
                const std::vector<Role>& unrounded) {
  for (const LinearSet set : LinearSets(config, index)) {
    const std::vector<Role> roles = RolesOf(set);
    if (std::ranges::find_first_of(roles, unrounded) == roles.end()) continue;
    for (const Role role : roles) plan.linears.at(LinearName(index, role)).activations = {};
  }
  return plan;
}

// A layer of which one set has just been rounded.
class TunedLayer {
 public:
  // The arguments have to stay. batch: windows of a step.
  TunedLayer(Backend& backend, const DenseMath& math, const ModelConfig& config, const Plan& plan,
             int64_t index, int64_t batch, int64_t context, LinearSet set, const FloatLayer& rest,
             const LayerWeights& stored)
      : config_(config),
        index_(index),
        plan_(WithFloats(config, plan, index, Unrounded(rest, plan, index))),
        stored_(stored),
        scales_(OfSet(set, stored)),
        backprop_(backend, math, config, plan_, {}, {}, batch, context),
        gradients_(math, config, backprop_, batch * context) {
    for (const Role role : Unrounded(rest, plan, index)) weights_[role] = WeightDescent(rest[role]);
    backprop_.KeepInputs();
  }

  bool empty() const { return weights_.begin() == weights_.end(); }

  // The mean squared error of a batch's output; a step by `share` follows, where that is not 0.
  double Loss(const float* x, const float* target, double share = 0) {
    const LayerWeights layer = Current();
    backprop_.BeginAt(x);
    backprop_.Forward(layer, index_);
    const double loss = backprop_.Approach(target);
    if (share == 0) return loss;
    ByRole<Matrix<float>> of_weights;
    const LayerScales of_scales = backprop_.Backward(
        backprop_.MatricesOf(layer, index_), index_, [&](Role role, const float* y) {
          if (weights_.contains(role)) of_weights[role] = gradients_.Of(plan_, index_, role, y);
        });
    for (auto& [role, adam] : weights_) adam.Step(of_weights[role].data, steps_, share);
    scales_.Step(of_scales, steps_, share);
    ++steps_;
    return loss;
  }
  void KeepBest() {
    for (auto& [role, adam] : weights_) adam.KeepBest();
    scales_.KeepBest();
  }
  // Gives `rest` and `stored` the best values.
  void Take(FloatLayer& rest, LayerWeights& stored) const {
    for (const auto& [role, adam] : weights_) {
      std::ranges::copy(adam.best(), rest[role].data.begin());
    }
    ApplyScales(scales_.best(), stored);
  }

 private:
  LayerWeights Current() const {
    LayerWeights layer = stored_;
    ApplyScales(scales_.factors(), layer);
    for (const auto& [role, adam] : weights_) {
      const int64_t rows = config_.outputs(index_, role), cols = config_.inputs(index_, role);
      const std::span<const float> values = adam.values();
      layer[role].weights = {.format = {.bits = 32},
                             .rows = rows,
                             .cols = cols,
                             .values = Tensor::Of(DType::kF32, {rows, cols},
                                                  std::vector(values.begin(), values.end()))};
    }
    return layer;
  }

  const ModelConfig& config_;
  const int64_t index_;
  const Plan plan_;
  const LayerWeights& stored_;
  ScaleDescent scales_;
  ByRole<Adam> weights_;
  Backprop backprop_;
  WeightGradients gradients_;
  int64_t steps_ = 0;
};

}  // namespace

BlockTuning::BlockTuning(Backend& backend, const DenseMath& math, const ModelConfig& config,
                         const Recipe& recipe, const Plan& plan, const EmbeddingRows& embedding,
                         std::span<const int32_t> ids, int64_t context)
    : backend_(backend),
      math_(math),
      config_(config),
      recipe_(recipe),
      plan_(plan),
      context_(context),
      floats_(backend, config, plan, embedding, ids, context, false),
      rounded_(backend, config, plan, embedding, ids, context, true) {}

void BlockTuning::Begin(int64_t index, const FloatLayer& layer) {
  index_ = index;
  floats_.Pass(StoreFloats(layer), index);
}

BlockTuning::Losses BlockTuning::Tune(LinearSet set, FloatLayer& rest, LayerWeights& stored,
                                      const std::function<void(double)>& progress) {
  const int64_t batch = BatchWindows(rounded_.windows(), context_);
  const int64_t batches = rounded_.windows() / batch;
  const int64_t trained = batches - std::max<int64_t>(1, batches / kHeldOut);
  const int64_t values = batch * context_ * config_.hidden_size;
  TunedLayer layer(backend_, math_, config_, plan_, index_, batch, context_, set, rest, stored);
  if (layer.empty()) return {};
  const auto loss = [&](int64_t b, double share) {
    return layer.Loss(rounded_.x() + b * values, floats_.x() + b * values, share);
  };
  const auto measure = [&] {
    double sum = 0;
    for (int64_t b = trained; b < batches; ++b) sum += loss(b, 0);
    return sum / static_cast<double>(batches - trained);
  };
  const double first = measure();
  Losses losses = {first, first};
  const int64_t steps = recipe_.tune_epochs * trained;
  for (int64_t step = 0; step < steps;) {
    const auto order = Rng(0, static_cast<uint64_t>(step)).Permutation(trained);
    for (const int64_t b : order) {
      const double done = static_cast<double>(step) / static_cast<double>(steps);
      const double warm = static_cast<double>(step + 1) / static_cast<double>(kWarmSteps);
      progress(done);
      loss(b, std::min(1.0, warm) * 0.5 * (1 + std::cos(M_PI * done)));
      ++step;
    }
    const double now = measure();
    if (now >= losses.last) continue;
    losses.last = now;
    layer.KeepBest();
  }
  if (losses.last < first) layer.Take(rest, stored);
  return losses;
}

double BlockTuningBytes(const ModelConfig& c, int64_t context) {
  const int64_t tokens = std::max(kBatchTokens, context);
  int64_t weights = 0, row = 0;  // row: inputs and outputs of all linears for a token
  for (const Role role : c.layer_roles(0)) {
    weights += c.outputs(0, role) * c.inputs(0, role);
    row += c.outputs(0, role) + c.inputs(0, role);
  }
  // Weights as they run, as the way back reads them, and a gradient; values there and back.
  return static_cast<double>(3 * weights + 2 * tokens * row) * sizeof(float);
}

}  // namespace nibble
