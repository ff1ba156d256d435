// SPDX-License-Identifier: Apache-2.0
#include "report/incoherence.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace nibble {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// The statistics of all sets of one kind. An FFN of all tokens goes before experts beside it, which
// read another norm. Experts' gates have the statistics of what all of them read.
ChannelStatistics OfKind(LinearSet::Kind kind, const ModelConfig& config, int64_t layer,
                         const LayerStatistics& seen) {
  ChannelStatistics all;
  for (const LinearSet set : LinearSets(config, layer)) {
    if (set.kind != kind) continue;
    if (set.expert >= 0 && config.has_ffn(layer)) continue;
    if (set.expert > 0 && kind == LinearSet::kMlp) continue;
    const ChannelStatistics& one = seen.inputs[RolesOf(set)[0]];
    if (all.largest.empty()) {
      all = one;
      continue;
    }
    NIBBLE_CHECK(one.largest.size() == all.largest.size());
    for (size_t k = 0; k < all.largest.size(); ++k) {
      all.largest[k] = std::max(all.largest[k], one.largest[k]);
      all.energy[k] += one.energy[k];
    }
    all.tokens += one.tokens;
  }
  return all;
}

}  // namespace

double WeightIncoherence(const Matrix<double>& w) {
  double max = 0, squares = 0;
  for (const double value : w.data) {
    max = std::max(max, std::fabs(value));
    squares += value * value;
  }
  return squares > 0 ? max * std::sqrt(static_cast<double>(w.data.size()) / squares) : kNone;
}

double InputSizes::max() const {
  return largest.empty() ? 0 : *std::ranges::max_element(largest);
}

double InputSizes::incoherence() const {
  return mean_square > 0 ? max() / std::sqrt(mean_square) : kNone;
}

InputSizes SizesOf(const ChannelStatistics& statistics) {
  InputSizes sizes = {.largest = statistics.largest};
  const double count =
      static_cast<double>(statistics.tokens) * static_cast<double>(statistics.energy.size());
  for (const double energy : statistics.energy) sizes.mean_square += energy / count;
  return sizes;
}

std::vector<LayerSizes> MeasureSizes(const ModelConfig& config, const Rotator& rotator,
                                     const std::vector<LayerStatistics>& statistics) {
  std::vector<LayerSizes> layers(statistics.size());
  for (int64_t i = 0; i < config.layers; ++i) {
    LayerSizes& layer = layers[static_cast<size_t>(i)];
    for (const auto kind : {LinearSet::kQkv, LinearSet::kO, LinearSet::kMlp, LinearSet::kDown}) {
      layer.inputs[kind] = SizesOf(OfKind(kind, config, i, statistics[static_cast<size_t>(i)]));
    }
    const FloatLayer floats = rotator.Layer(i);
    for (const auto& [role, w] : floats.weights) {
      if (FixedPlan(role) != nullptr) continue;  // never quantized
      const double mu = WeightIncoherence(w);
      const auto [kind, added] = layer.weights.try_emplace(KindOf(role), mu);
      if (!(kind->second >= mu)) kind->second = mu;
    }
  }
  return layers;
}

}  // namespace nibble
