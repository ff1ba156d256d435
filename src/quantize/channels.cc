// SPDX-License-Identifier: Apache-2.0
#include "quantize/channels.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace nibble {
namespace {

void AddTokens(const float* x, int64_t tokens, ChannelStatistics& statistics) {
  const size_t width = statistics.largest.size();
  for (int64_t t = 0; t < tokens; ++t, x += width) {
    for (size_t k = 0; k < width; ++k) {
      const double value = x[k];
      statistics.largest[k] = std::max(statistics.largest[k], std::fabs(value));
      statistics.energy[k] += value * value;
    }
  }
}

// s = max|x|^alpha / max|w|^(1 - alpha), the latter over all readers (equation 4 of SmoothQuant). A
// channel that is zero on either side keeps its scale.
std::vector<double> SmoothingScales(const ChannelStatistics& input, double alpha,
                                    std::span<const Role> readers, const FloatLayer& layer) {
  std::vector<double> scales(input.largest.size());
  for (size_t k = 0; k < scales.size(); ++k) {
    double weight = 0;
    for (Role role : readers) {
      const Matrix<double>& w = layer.weights[static_cast<size_t>(role)];
      for (int64_t n = 0; n < w.rows; ++n) weight = std::max(weight, std::fabs(w.row(n)[k]));
    }
    const double scale = std::pow(input.largest[k], alpha) / std::pow(weight, 1 - alpha);
    scales[k] = input.largest[k] > 0 && weight > 0 ? std::max(scale, 1e-5) : 1;
  }
  return scales;
}

// Divides the input by the scales, in its norm, and multiplies the columns that read it.
void Smooth(std::span<const double> scales, std::span<const Role> readers, ChannelStatistics& input,
            std::vector<float>& norm, FloatLayer& layer) {
  for (size_t k = 0; k < scales.size(); ++k) {
    norm[k] = static_cast<float>(norm[k] / scales[k]);
    input.largest[k] /= scales[k];
    input.energy[k] /= scales[k] * scales[k];
    for (Role role : readers) {
      Matrix<double>& w = layer[role];
      for (int64_t n = 0; n < w.rows; ++n) w.row(n)[k] *= scales[k];
    }
  }
}

void OrderColumns(const std::vector<int32_t>& order, Matrix<double>& w) {
  std::vector<double> row(order.size());
  for (int64_t n = 0; n < w.rows; ++n) {
    for (size_t k = 0; k < row.size(); ++k) row[k] = w.row(n)[static_cast<size_t>(order[k])];
    std::copy(row.begin(), row.end(), w.row(n).begin());
  }
}

void OrderRows(const std::vector<int32_t>& order, FloatLayer& layer, Role role) {
  Matrix<double> rows = layer[role];
  std::vector<double>& bias = layer.biases[static_cast<size_t>(role)];
  const std::vector<double> biases = bias;
  for (int64_t n = 0; n < rows.rows; ++n) {
    const int32_t from = order[static_cast<size_t>(n)];
    std::copy(rows.row(from).begin(), rows.row(from).end(), layer[role].row(n).begin());
    if (!bias.empty()) bias[static_cast<size_t>(n)] = biases[static_cast<size_t>(from)];
  }
}

}  // namespace

std::vector<LayerStatistics> CollectStatistics(Backend& backend, const ModelConfig& config,
                                               const Plan& plan, const Rotator& rotator,
                                               std::span<const int32_t> ids, int64_t context,
                                               const Calibration::Progress& progress) {
  const BackendRope rope(backend, BuildRope(config.rope, context));
  const Plan float_plan = FloatPlan(plan);
  Stream stream(backend, config, float_plan, rope.view(), rotator.Embedding(), ids, context, false);
  std::vector<LayerStatistics> statistics(static_cast<size_t>(config.layers));
  for (int64_t i = 0; i < config.layers; ++i) {
    const StoredLayer layer = StoreFloats(rotator.Layer(i));
    stream.Begin(layer, i);
    for (LinearSet set : kLinearSets) {
      const auto width = static_cast<size_t>(config.inputs(RolesOf(set)[0]));
      ChannelStatistics& sums = statistics[static_cast<size_t>(i)][static_cast<size_t>(set)];
      sums = {std::vector<double>(width), std::vector<double>(width)};
      for (int64_t w = 0; w < stream.windows(); ++w) {
        const int64_t count = context * static_cast<int64_t>(width);
        stream.Advance(set, w);
        AddTokens(backend.Read(stream.Input(set, w), count), context, sums);
      }
      for (Role role : RolesOf(set)) stream.Upload(role, layer[role]);
    }
    stream.Finish();
    progress(static_cast<double>(i + 1) / static_cast<double>(config.layers), "channels");
  }
  return statistics;
}

void DropTails(std::span<const LayerStatistics> statistics, const Recipe& recipe, Plan& plan) {
  for (size_t i = 0; i < statistics.size(); ++i) {
    for (LinearSet set : kLinearSets) {
      const double largest = std::ranges::max(statistics[i][static_cast<size_t>(set)].largest);
      if (largest > recipe.tail_threshold * (set == LinearSet::kDown ? 2 : 1)) continue;
      for (Role role : RolesOf(set)) {
        plan.linears[LinearName(static_cast<int64_t>(i), role)].tail = {};
      }
    }
  }
}

void ArrangeChannels(const LayerStatistics& statistics, const Recipe& recipe,
                     const LinearPlan& down, FloatLayer& layer) {
  LayerStatistics inputs = statistics;
  const auto input = [&](LinearSet set) -> ChannelStatistics& {
    return inputs[static_cast<size_t>(set)];
  };
  if (recipe.smoothing > 0) {
    const std::pair<LinearSet, std::vector<float>*> norms[] = {
        {LinearSet::kQkv, &layer.attention_norm}, {LinearSet::kMlp, &layer.mlp_norm}};
    for (const auto& [set, norm] : norms) {
      const auto scales = SmoothingScales(input(set), recipe.smoothing, RolesOf(set), layer);
      Smooth(scales, RolesOf(set), input(set), *norm, layer);
    }
  }
  if (recipe.order == ChannelOrder::kNone) return;
  for (LinearSet set : kLinearSets) {
    const auto& size =
        recipe.order == ChannelOrder::kLargest ? input(set).largest : input(set).energy;
    std::vector<int32_t> order(size.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, {}, [&](int32_t k) { return size[static_cast<size_t>(k)]; });
    for (Role role : RolesOf(set)) OrderColumns(order, layer[role]);
    if (set == LinearSet::kDown && !down.gather) {
      for (Role role : {Role::kGate, Role::kUp}) OrderRows(order, layer, role);
      continue;
    }
    for (Role role : RolesOf(set)) layer.gathers[static_cast<size_t>(role)] = order;
  }
}

}  // namespace nibble
