// SPDX-License-Identifier: Apache-2.0
#include "quantize/walk/calibrate.h"

#include <algorithm>

namespace nibble {
namespace {

constexpr double kRoundedShare = 0.1;  // of a set's time, the rest of which tuning takes

// The plan of GPTAQ's reference: the network as it is, but for 8 bits where both weights and
// activations are to have no more. Their error is small beside what is compared, and products of
// integers take a quarter of the time.
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

}  // namespace

Calibration::Calibration(Backend& backend, const ModelConfig& config, const Plan& plan,
                         const Recipe& recipe, const EmbeddingRows& embedding,
                         std::vector<int32_t> ids, int64_t context, SpillFile* file,
                         LossWeights weights)
    : backend_(backend),
      config_(config),
      plan_(plan),
      recipe_(recipe),
      ids_(std::move(ids)),
      stream_(backend, config, plan, embedding, ids_, context, recipe.quantized_calibration, file),
      reference_plan_(ReferencePlan(plan)),
      weights_(std::move(weights)) {
  if (recipe.gptaq > 0) {
    reference_.emplace(backend, config, reference_plan_, embedding, ids_, context, true, file);
    reference_->Follow(stream_);
  }
}

LayerWeights Calibration::Round(FloatLayer layer, int64_t index, std::map<Role, double>& errors,
                                const Progress& progress, const Tune& tune) {
  LayerWeights stored = StoreUnquantized(layer, plan_, index);
  const auto sets = static_cast<double>(LinearSets(config_, index).size());
  double rounded = 0;
  last_ = std::chrono::steady_clock::now();
  if (reference_) reference_->Begin(StoreNearest(layer, reference_plan_, index), index);
  stream_.Walk(stored, index, [&](LinearSet set) {
    const double own = tune ? kRoundedShare : 1;
    RoundSet(set, layer, index, stored, errors, [&](double share, std::string_view what) {
      progress((rounded + own * share) / sets, what);
    });
    if (tune) {
      tune(set, layer, stored,
           [&](double share) { progress((rounded + own + (1 - own) * share) / sets, "tuning"); });
      last_ = std::chrono::steady_clock::now();
    }
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

std::vector<Gptq> Calibration::Begin(LinearSet set, int64_t index) {
  const std::vector<Role> roles = RolesOf(set);
  const GptqOptions options = {.act_order = recipe_.act_order,
                               .damp = recipe_.damp,
                               .gptaq = recipe_.gptaq,
                               .foem = recipe_.foem,
                               .sweeps = recipe_.sweeps,
                               .tail = plan_.at(index, roles[0]).tail.columns,
                               .host = std::ranges::any_of(roles, [&](Role role) {
                                 return NeedsHost(plan_.at(index, role).weights, recipe_.sweeps);
                               })};
  const int64_t width = config_.inputs(index, roles[0]);
  std::vector<Gptq> sums;
  if (weights_.empty()) {
    sums.emplace_back(backend_, width, options);
  } else {
    for (Role role : roles) {
      sums.emplace_back(backend_, width, options, weights_[static_cast<size_t>(index)][role].rows);
    }
  }
  return sums;
}

void Calibration::RoundSet(LinearSet set, FloatLayer& layer, int64_t index, LayerWeights& stored,
                           std::map<Role, double>& errors, const Progress& progress) {
  const std::vector<Role> roles = RolesOf(set);
  const int64_t width = layer[roles[0]].cols;
  std::vector<Gptq> sums = Begin(set, index);
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
    if (weights_.empty()) sums[0].Add(input, exact, tokens);
    for (size_t i = 0; i < roles.size() && !weights_.empty(); ++i) {
      sums[i].Add(input, exact, tokens, weights_[static_cast<size_t>(index)][roles[i]],
                  w * stream_.context());
    }
    Account(seconds_.sums);
    progress(static_cast<double>(w + 1) / static_cast<double>(stream_.windows()),
             RoleName(roles[0]));
  }
  // For 28672 inputs and 2048 tokens the working memory is half a gigabyte, which a Hessian needs
  // more.
  stream_.Release();
  if (reference_) reference_->Release();
  for (size_t i = 0; i < roles.size(); ++i) {
    const Role role = roles[i];
    const LinearPlan& plan = plan_.at(index, role);
    if (plan.weights.quantized()) {
      Rounded rounded =
          sums[weights_.empty() ? 0 : i].Round(layer[role], plan.weights, plan.tail.weights);
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
