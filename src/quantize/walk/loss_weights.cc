// SPDX-License-Identifier: Apache-2.0
#include "quantize/walk/loss_weights.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "quantize/walk/backprop.h"

namespace nibble {
namespace {

Plan InFloats(Plan plan) {
  for (auto& [name, linear] : plan.linears) {
    linear.weights = {.bits = 32};
    linear.activations = {.bits = 16};
    linear.tail = {};
  }
  plan.k = plan.v = {.bits = 32};
  return plan;
}

// Cuts weights at kHeaviestToken times their mean, and scales them to a mean of 1.
void Scale(std::span<float> weights) {
  const auto mean = [&] {
    return std::accumulate(weights.begin(), weights.end(), 0.0) /
           static_cast<double>(weights.size());
  };
  const double max = kHeaviestToken * mean();
  if (!(max > 0 && std::isfinite(max))) {  // nothing matters, or is known
    std::ranges::fill(weights, 1.0f);
    return;
  }
  for (float& w : weights) w = std::min(w, static_cast<float>(max));
  const double factor = 1 / mean();
  for (float& w : weights) w = static_cast<float>(w * factor);
}

class Finder {
 public:
  Finder(Backend& backend, const DenseMath& math, const LossWeightTask& task)
      : math_(math),
        task_(task),
        plan_(InFloats(task.plan)),
        length_(std::min({kLossPiece, task.config.context, static_cast<int64_t>(task.ids.size())})),
        pieces_(std::min(kLossPieces, static_cast<int64_t>(task.ids.size()) / length_)),
        backprop_(backend, math, task.config, plan_, task.head, task.final_norm, pieces_, length_),
        embedding_(backend.Share(FloatTable(task.embedding), embedding_memory_)),
        powers_(math.allocator()),
        weights_(static_cast<size_t>(task.config.layers)) {
    for (int64_t i = 0; i < task.config.layers; ++i) {
      layers_.push_back(StoreFloats(task.layers(i)));
      matrices_.push_back(backprop_.MatricesOf(layers_.back(), i));
    }
  }

  int64_t tokens() const { return pieces_ * length_; }  // of a run
  // Finds the weights of tokens() tokens from `first` on.
  void Run(int64_t first);
  LossWeights Take();

 private:
  void Keep(Role role, int64_t layer, int64_t first, const float* gradients);

  const DenseMath& math_;
  const LossWeightTask& task_;
  const Plan plan_;
  const int64_t length_, pieces_;
  Backprop backprop_;
  AlignedBytes embedding_memory_;
  const PackedWeights embedding_;
  std::vector<LayerWeights> layers_;
  std::vector<Backprop::Matrices> matrices_;
  Buffer<float> powers_;  // [groups, tokens()]
  Rng rng_{0};
  LossWeights weights_;
};

void Finder::Run(int64_t first) {
  const auto ids = task_.ids.subspan(static_cast<size_t>(first), static_cast<size_t>(tokens()));
  backprop_.Begin(embedding_, ids);
  const int64_t layers = task_.config.layers;
  for (int64_t i = 0; i < layers; ++i) backprop_.Forward(layers_[static_cast<size_t>(i)], i);
  backprop_.Draw(rng_);
  for (int64_t i = layers; i-- > 0;) {
    backprop_.Backward(matrices_[static_cast<size_t>(i)], i,
                       [&](Role role, const float* gradients) { Keep(role, i, first, gradients); });
  }
}

void Finder::Keep(Role role, int64_t layer, int64_t first, const float* gradients) {
  const int64_t groups = task_.groups;
  float* const powers = powers_.Grow(groups * tokens());
  math_.RowPowers(gradients, tokens(), task_.config.outputs(layer, role), groups, powers);
  Matrix<float>& kept = weights_[static_cast<size_t>(layer)][role];
  if (kept.rows == 0) kept = Matrix<float>(groups, static_cast<int64_t>(task_.ids.size()));
  for (int64_t g = 0; g < groups; ++g) {
    math_.Store(powers + g * tokens(),
                kept.row(g).subspan(static_cast<size_t>(first), static_cast<size_t>(tokens())));
  }
}

LossWeights Finder::Take() {
  for (ByRole<Matrix<float>>& layer : weights_) {
    for (auto& [role, weights] : layer) {
      for (int64_t g = 0; g < weights.rows; ++g) Scale(weights.row(g));
    }
  }
  return std::move(weights_);
}

}  // namespace

LossWeights FindLossWeights(Backend& backend, const DenseMath& math, const LossWeightTask& task,
                            const std::function<void(double)>& progress) {
  Finder finder(backend, math, task);
  const auto tokens = static_cast<int64_t>(task.ids.size());
  for (int64_t first = 0; first < tokens; first += finder.tokens()) {
    progress(static_cast<double>(first));
    finder.Run(std::min(first, tokens - finder.tokens()));
  }
  return finder.Take();
}

int64_t HessiansOf(const Recipe& recipe, LinearSet set) {
  const auto linears = static_cast<int64_t>(RolesOf(set).size());
  return recipe.loss_groups == 0 ? 1 : recipe.loss_groups * linears;
}

double LossWeightBytes(const ModelConfig& c, const Recipe& recipe, int64_t tokens) {
  const auto linears = static_cast<double>(c.layer_roles(0).size());
  return static_cast<double>(c.layers * recipe.loss_groups * tokens) * linears * sizeof(float);
}

double LossLayerBytes(const ModelConfig& c) {
  return static_cast<double>(c.parameters()) * sizeof(float);
}

}  // namespace nibble
