// SPDX-License-Identifier: Apache-2.0
#include "quantize/learn/train_block.h"

#include <algorithm>
#include <cmath>

#include "quantize/learn/block_parameters.h"
#include "quantize/learn/weight_gradients.h"
#include "quantize/walk/backprop.h"

namespace nibble {
namespace {

// The paper's 128 windows and 20 epochs. Fewer steps are longer, and all get shorter towards the
// end.
constexpr double kPaperSteps = 2560;

double ShareOf(int64_t step, int64_t steps) {
  const auto count = static_cast<double>(steps);
  const double done = static_cast<double>(step) / count;
  return std::sqrt(std::max(1.0, kPaperSteps / count)) * 0.5 * (1 + std::cos(M_PI * done));
}

// One layer's way there and back.
class LayerDescent {
 public:
  LayerDescent(Backend& backend, const DenseMath& math, const ModelConfig& config, const Plan& plan,
               int64_t index, int64_t context, BlockParameters& parameters)
      : math_(math),
        config_(config),
        plan_(plan),
        index_(index),
        tokens_(context),
        parameters_(parameters),
        backprop_(backend, math, config, plan, {}, {}, 1, context),
        weight_gradients_(math, config, backprop_, context) {
    backprop_.KeepInputs();
  }

  // The mean squared error of a window's output; a step by `share` follows, where that is not 0.
  double Loss(const float* x, const float* target, double share = 0) {
    const LayerWeights stored = StoreNearest(parameters_.Clipped(), plan_, index_);
    backprop_.BeginAt(x);
    backprop_.Forward(stored, index_);
    const double loss = backprop_.Approach(target);
    if (share == 0) return loss;
    const Backprop::Matrices matrices = backprop_.MatricesOf(stored, index_);
    const LayerScales factors = backprop_.Backward(
        matrices, index_,
        [&](Role role, const float* y) {
          parameters_.AddWeights(role, weight_gradients_.Of(plan_, index_, role, y));
        },
        [&](Role first, const float* exact, const float* gradients) {
          const int64_t count = tokens_ * config_.inputs(index_, first);
          const std::vector<float> floats = Stored(exact, count), back = Stored(gradients, count);
          const std::vector<float> rounded = Stored(backprop_.Input(first), count);
          parameters_.AddInputs(first, {floats, rounded, back});
        });
    parameters_.AddValues(factors.rows[Role::kV]);
    parameters_.Step(share);
    return loss;
  }

 private:
  std::vector<float> Stored(const float* values, int64_t count) const {
    std::vector<float> copy(static_cast<size_t>(count));
    math_.Store(values, copy);
    return copy;
  }

  const DenseMath& math_;
  const ModelConfig& config_;
  const Plan& plan_;
  const int64_t index_, tokens_;
  BlockParameters& parameters_;
  Backprop backprop_;
  WeightGradients weight_gradients_;
};

}  // namespace

BlockTraining::BlockTraining(Backend& backend, const DenseMath& math, const ModelConfig& config,
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

BlockTraining::Losses BlockTraining::Train(int64_t index, FloatLayer& layer,
                                           const std::function<void(double)>& progress) {
  floats_.Pass(StoreFloats(layer), index);
  BlockParameters parameters(config_, plan_, index, layer, recipe_.learned_channels);
  if (parameters.empty()) return {};
  LayerDescent descent(backend_, math_, config_, plan_, index, context_, parameters);
  const int64_t windows = rounded_.windows(), values = context_ * config_.hidden_size;
  const auto loss = [&](int64_t w, double share) {
    return descent.Loss(rounded_.x() + w * values, floats_.x() + w * values, share);
  };
  const auto mean = [&] {
    double sum = 0;
    for (int64_t w = 0; w < windows; ++w) sum += loss(w, 0);
    return sum / static_cast<double>(windows);
  };
  Losses losses = {.first = mean()};
  const int64_t steps = recipe_.block_epochs * windows;
  for (int64_t step = 0; step < steps; ++step) {
    progress(static_cast<double>(step) / static_cast<double>(steps));
    loss(step % windows, ShareOf(step, steps));
  }
  losses.last = mean();
  FloatLayer trained = parameters.Clipped();
  layer = std::move(trained);
  return losses;
}

}  // namespace nibble
