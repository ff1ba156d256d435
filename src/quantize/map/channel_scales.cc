// SPDX-License-Identifier: Apache-2.0
#include "quantize/map/channel_scales.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

// s = x^alpha / w^(1 - alpha) from sums of squares x^2 and w^2, in front of a Hadamard matrix.
// Errors are in proportion to sum w^2 s^2 times sum x^2 / s^2, least with alpha = 1/2. GPTQ moves
// errors to where inputs are small, and has fewer with a smaller alpha.
//
// The geometric mean is 1, and so is the scale of a channel that is zero on either side.
std::vector<double> BalancingScales(std::span<const double> x, std::span<const double> w,
                                    double alpha) {
  constexpr double kMax = 7;  // of a logarithm
  std::vector<double> scales(x.size(), 1);
  const auto used = [&](size_t k) { return x[k] > 0 && w[k] > 0; };
  double sum = 0, count = 0;
  for (size_t k = 0; k < scales.size(); ++k) {
    if (!used(k)) continue;
    scales[k] = (alpha * std::log(x[k]) - (1 - alpha) * std::log(w[k])) / 2;
    sum += scales[k], ++count;
  }
  for (size_t k = 0; k < scales.size(); ++k) {
    if (used(k)) scales[k] = std::exp(std::clamp(scales[k] - sum / count, -kMax, kMax));
  }
  return scales;
}

std::vector<double> ColumnEnergy(std::span<const Role> readers, const FloatLayer& layer) {
  std::vector<double> energy(static_cast<size_t>(layer[readers[0]].cols));
  for (Role role : readers) {
    const Matrix<double>& w = layer[role];
    for (int64_t n = 0; n < w.rows; ++n) {
      for (size_t k = 0; k < energy.size(); ++k) energy[k] += w.row(n)[k] * w.row(n)[k];
    }
  }
  return energy;
}

std::vector<Role> NormReaders(const ModelConfig& config, int64_t index, LayerVector norm) {
  std::vector<Role> readers;
  for (Role role : config.layer_roles(index)) {
    if (config.NormInFront(role) == norm) readers.push_back(role);
  }
  return readers;
}

// Section 4.2 of QServe: the largest key to a power.
std::vector<double> KeyScales(const KeyStatistics& keys, const Recipe& recipe) {
  if (recipe.key_balance > 0) {
    return BalancingScales(recipe.centers_keys() ? keys.spread : keys.energy, keys.query_energy,
                           recipe.key_balance);
  }
  std::vector<double> scales;
  for (const double largest : keys.largest) {
    scales.push_back(largest > 0 ? std::pow(largest, recipe.key_smoothing) : 1);
  }
  return scales;
}

}  // namespace

std::vector<double> SmoothingScales(const ChannelStatistics& input, double alpha,
                                    std::span<const Role> readers, const FloatLayer& layer) {
  std::vector<double> scales(input.largest.size());
  for (size_t k = 0; k < scales.size(); ++k) {
    double weight = 0;
    for (Role role : readers) {
      const Matrix<double>& w = layer[role];
      for (int64_t n = 0; n < w.rows; ++n) weight = std::max(weight, std::fabs(w.row(n)[k]));
    }
    const double scale = std::pow(input.largest[k], alpha) / std::pow(weight, 1 - alpha);
    scales[k] = input.largest[k] > 0 && weight > 0 ? std::max(scale, 1e-5) : 1;
  }
  return scales;
}

namespace {

ChannelScales ScalesOfLayer(const LayerStatistics& statistics, const ModelConfig& config,
                            const Recipe& recipe, int64_t index, const FloatLayer& layer) {
  ChannelScales scales;
  if (recipe.scales_keys()) scales.keys = KeyScales(statistics.keys, recipe);
  if (recipe.centers_keys()) scales.key_mean = statistics.keys.mean;
  for (const Role first : {Role::kQ, Role::kGate, OfExpert(Role::kGate, 0)}) {
    const auto norm = config.NormInFront(first);
    const bool scaled = recipe.smoothing > 0 || recipe.balance > 0;
    if (!scaled || !norm || !layer.weights.contains(first)) continue;
    const std::vector<Role> readers = NormReaders(config, index, *norm);
    const ChannelStatistics& input = statistics.inputs[first];
    scales.norms[*norm] =
        recipe.balance > 0
            ? BalancingScales(input.energy, ColumnEnergy(readers, layer), recipe.balance)
            : SmoothingScales(input, recipe.smoothing, readers, layer);
  }
  return scales;
}

}  // namespace

std::vector<ChannelScales> ScalesOf(const std::vector<LayerStatistics>& statistics,
                                    const Rotator& source, const ModelConfig& config,
                                    const Recipe& recipe) {
  std::vector<ChannelScales> scales;
  for (int64_t i = 0; i < config.layers; ++i) {
    scales.push_back(
        ScalesOfLayer(statistics[static_cast<size_t>(i)], config, recipe, i, source.Layer(i)));
  }
  return scales;
}

}  // namespace nibble
