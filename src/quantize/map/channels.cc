// SPDX-License-Identifier: Apache-2.0
#include "quantize/map/channels.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "quantize/map/channel_scales.h"

namespace nibble {
namespace {

void AddTokens(const float* x, int64_t tokens, ChannelStatistics& statistics) {
  const size_t width = statistics.largest.size();
  statistics.tokens += tokens;
  for (int64_t t = 0; t < tokens; ++t, x += width) {
    for (size_t k = 0; k < width; ++k) {
      const double value = x[k];
      statistics.largest[k] = std::max(statistics.largest[k], std::fabs(value));
      statistics.energy[k] += value * value;
    }
  }
}

// Multiplies the columns that read an input by the scales; whoever makes it has to divide by them.
void Smooth(std::span<const double> scales, std::span<const Role> readers, ChannelStatistics& input,
            FloatLayer& layer) {
  for (size_t k = 0; k < scales.size(); ++k) {
    input.largest[k] /= scales[k];
    input.energy[k] /= scales[k] * scales[k];
    for (Role role : readers) {
      Matrix<double>& w = layer[role];
      for (int64_t n = 0; n < w.rows; ++n) w.row(n)[k] *= scales[k];
    }
  }
}

void ScaleRow(int64_t n, double factor, FloatLayer& layer, Role role) {
  for (double& value : layer[role].row(n)) value *= factor;
  std::vector<double>& bias = layer.biases[role];
  if (!bias.empty()) bias[static_cast<size_t>(n)] *= factor;
}

// Section 4.2 of QServe: SmoothQuant's scales for what o and down read, folded into the rows of v
// and up. Query heads that share a value head share its scales, the largest of theirs.
void SmoothOutputs(double alpha, const ModelConfig& config, int64_t index,
                   ByRole<ChannelStatistics>& inputs, FloatLayer& layer) {
  for (Role down : config.layer_roles(index)) {
    if (KindOf(down) != Role::kDown) continue;
    const auto scales = SmoothingScales(inputs[down], alpha, {&down, 1}, layer);
    Smooth(scales, {&down, 1}, inputs[down], layer);
    for (size_t k = 0; k < scales.size(); ++k) {
      const Role up = OfExpert(Role::kUp, ExpertOf(down));
      ScaleRow(static_cast<int64_t>(k), 1 / scales[k], layer, up);
    }
  }
  constexpr Role kO[] = {Role::kO};
  auto scales = SmoothingScales(inputs[Role::kO], alpha, kO, layer);
  const HeadShape shape = config.head_shape(index);
  const auto d = static_cast<size_t>(shape.head_dim);
  const size_t queries = static_cast<size_t>(shape.heads / shape.kv_heads);
  for (size_t n = 0; n < scales.size() / queries; ++n) {  // rows of v
    const auto reader = [&](size_t q) -> double& {
      return scales[(n / d * queries + q) * d + n % d];
    };
    double shared = 0;
    for (size_t q = 0; q < queries; ++q) shared = std::max(shared, reader(q));
    for (size_t q = 0; q < queries; ++q) reader(q) = shared;
    ScaleRow(static_cast<int64_t>(n), 1 / shared, layer, Role::kV);
  }
  Smooth(scales, kO, inputs[Role::kO], layer);
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
  std::vector<double>& bias = layer.biases[role];
  const std::vector<double> biases = bias;
  for (int64_t n = 0; n < rows.rows; ++n) {
    const int32_t from = order[static_cast<size_t>(n)];
    std::copy(rows.row(from).begin(), rows.row(from).end(), layer[role].row(n).begin());
    if (!bias.empty()) bias[static_cast<size_t>(n)] = biases[static_cast<size_t>(from)];
  }
}

// Merges the statistics of experts' gates: each gets those of what all of them read.
void ShareNorm(const ModelConfig& config, ByRole<ChannelStatistics>& inputs) {
  ChannelStatistics all = inputs[OfExpert(Role::kGate, 0)];
  for (int64_t e = 1; e < config.router.all(); ++e) {
    const ChannelStatistics& one = inputs[OfExpert(Role::kGate, e)];
    for (size_t k = 0; k < all.largest.size(); ++k) {
      all.largest[k] = std::max(all.largest[k], one.largest[k]);
      all.energy[k] += one.energy[k];
    }
    all.tokens += one.tokens;
  }
  for (int64_t e = 0; e < config.router.all(); ++e) inputs[OfExpert(Role::kGate, e)] = all;
}

}  // namespace

std::vector<LayerStatistics> CollectStatistics(Backend& backend, const ModelConfig& config,
                                               const Plan& plan, const Rotator& rotator,
                                               std::span<const int32_t> ids, int64_t context,
                                               bool with_keys,
                                               const Calibration::Progress& progress) {
  Stream stream(backend, config, plan, rotator.embedding(), ids, context, false);
  std::vector<LayerStatistics> statistics(static_cast<size_t>(config.layers));
  for (int64_t i = 0; i < config.layers; ++i) {
    const LayerWeights layer = StoreFloats(rotator.Layer(i));
    LayerStatistics& seen = statistics[static_cast<size_t>(i)];
    stream.Walk(layer, i, [&](LinearSet set) {
      if (with_keys && set.kind == LinearSet::kQkv) {
        seen.keys = CollectKeys(backend, config, i, layer, stream);
      }
      const Role first = RolesOf(set)[0];
      const int64_t width = config.inputs(i, first);
      ChannelStatistics& sums = seen.inputs[first];
      sums.largest = sums.energy = std::vector<double>(static_cast<size_t>(width));
      for (int64_t w = 0; w < stream.windows(); ++w) {
        const auto [x, tokens] = stream.Input(set, w);
        if (tokens > 0) AddTokens(backend.Read(x, tokens * width), tokens, sums);
      }
    });
    if (config.has_experts(i)) ShareNorm(config, seen.inputs);
    progress(static_cast<double>(i + 1) / static_cast<double>(config.layers), "channels");
  }
  return statistics;
}

void ArrangeChannels(const LayerStatistics& statistics, const ModelConfig& config,
                     const Recipe& recipe, const Plan& plan, int64_t index, FloatLayer& layer) {
  auto inputs = statistics.inputs;
  if (recipe.output_smoothing > 0) {
    SmoothOutputs(recipe.output_smoothing, config, index, inputs, layer);
  }
  if (recipe.order == ChannelOrder::kNone) return;
  for (LinearSet set : LinearSets(config, index)) {
    // Experts' shares of smoothed inputs are those of the first.
    const bool expert = set.kind == LinearSet::kMlp && set.expert >= 0;
    const Role first = expert ? OfExpert(Role::kGate, 0) : RolesOf(set)[0];
    const auto& size =
        recipe.order == ChannelOrder::kLargest ? inputs[first].largest : inputs[first].energy;
    std::vector<int32_t> order(size.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, {}, [&](int32_t k) { return size[static_cast<size_t>(k)]; });
    for (Role role : RolesOf(set)) OrderColumns(order, layer[role]);
    if (set.kind == LinearSet::kDown && !plan.at(index, RolesOf(set)[0]).gather) {
      for (Role role : RolesOf({LinearSet::kMlp, set.expert, config.gating.alone}))
        OrderRows(order, layer, role);
      continue;
    }
    for (Role role : RolesOf(set)) layer.gathers[role] = order;
  }
}

}  // namespace nibble
