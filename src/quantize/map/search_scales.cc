// SPDX-License-Identifier: Apache-2.0
#include "quantize/map/search_scales.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>

#include "base/thread_pool.h"
#include "transforms/blas.h"

namespace nibble {
namespace {

// A channel that is next to nothing keeps its share of s within bounds.
constexpr double kSmallest = 1e-4;

std::vector<double> ScalesAt(std::span<const double> means, double a) {
  const double floor = kSmallest * std::ranges::max(means);
  std::vector<double> scales(means.size(), 1);
  if (floor == 0) return scales;
  for (size_t k = 0; k < scales.size(); ++k) scales[k] = std::pow(std::max(means[k], floor), a);
  const auto [min, max] = std::ranges::minmax(scales);
  const double middle = std::sqrt(min * max);
  for (double& scale : scales) scale /= middle;
  return scales;
}

// |x (Q(W s) / s - W)^T|^2 for x [tokens, K]; a clip that is to be searched is 1 here.
double ScaledError(const Matrix<double>& x, FormatSpec format, std::span<const double> scales,
                   const Matrix<double>& w) {
  const auto for_each = [&](const auto& work) {
    ParallelFor(static_cast<size_t>(w.rows), [&](size_t n) {
      for (size_t k = 0; k < scales.size(); ++k) work(static_cast<int64_t>(n), k);
    });
  };
  if (format.clip == 0) format.clip = 1;
  Matrix<double> error = w;
  for_each([&](int64_t n, size_t k) { error.row(n)[k] *= scales[k]; });
  const Matrix<float> rounded = Decode(RoundColumns(error, format));
  for_each(
      [&](int64_t n, size_t k) { error.row(n)[k] = rounded.row(n)[k] / scales[k] - w.row(n)[k]; });
  Matrix<double> y(x.rows, w.rows);
  Multiply(x, error, true, y);
  return std::inner_product(y.data.begin(), y.data.end(), y.data.begin(), 0.0);
}

// The searches of one layer.
class LayerSearch {
 public:
  LayerSearch(const ScaleSearch& search, int64_t index, const FloatLayer& layer)
      : search_(search), config_(search.config), index_(index), layer_(layer) {}

  // Takes what the linears of a set read; sets come in the order they run.
  void See(LinearSet set, InputSample sample) {
    if (sample.tokens == 0) return;
    const Role first = RolesOf(set)[0];
    if (const auto norm = config_.NormInFront(first)) {
      behind_[*norm].emplace_back(set, std::move(sample));
    } else if (KindOf(first) == Role::kDown && config_.gating.linear_in_up()) {
      AddOutputs(OfExpert(Role::kUp, set.expert), Best({{set, std::move(sample)}}, {}));
    } else if (first == Role::kO && !config_.shares_kv() && !config_.value_norms) {
      AddOutputs(Role::kV, Best({{set, std::move(sample)}}, config_.head_shape(index_)));
    }
  }
  ChannelScales Finish() {
    for (const auto& [norm, readers] : behind_) found_.norms[norm] = Best(readers, {});
    return std::move(found_);
  }

 private:
  using Readers = std::vector<std::pair<LinearSet, InputSample>>;

  void AddOutputs(Role made, std::vector<double> scales) {
    if (!scales.empty()) found_.outputs[made] = std::move(scales);
  }
  // The scales with the smallest error; none where that is without any. `shape`: of the heads whose
  // channels have those of their value head.
  std::vector<double> Best(const Readers& readers, std::optional<HeadShape> shape) const {
    std::vector<double> means = Means(readers), best;
    if (shape) means = OfValues(*shape, means);
    double least = std::numeric_limits<double>::infinity();
    for (int step = 0; step <= search_.steps; ++step) {
      std::vector<double> scales = ScalesAt(means, static_cast<double>(step) / search_.steps);
      const double error = Error(readers, shape ? ForQueries(*shape, scales) : scales);
      if (error >= least) continue;
      least = error;
      best = step == 0 ? std::vector<double>() : std::move(scales);
    }
    return best;
  }
  static std::vector<double> Means(const Readers& readers) {
    std::vector<double> means(readers[0].second.absolute.size());
    double tokens = 0;
    for (const auto& [set, sample] : readers) {
      for (size_t k = 0; k < means.size(); ++k) means[k] += sample.absolute[k];
      tokens += static_cast<double>(sample.tokens);
    }
    for (double& mean : means) mean /= tokens;
    return means;
  }
  // Means over the query heads of each value head.
  static std::vector<double> OfValues(const HeadShape& shape, const std::vector<double>& means) {
    const auto d = static_cast<size_t>(shape.head_dim);
    const auto queries = static_cast<size_t>(shape.heads / shape.kv_heads);
    std::vector<double> shared(means.size() / queries);
    for (size_t n = 0; n < means.size(); ++n) {
      shared[n / d / queries * d + n % d] += means[n] / static_cast<double>(queries);
    }
    return shared;
  }
  double Error(const Readers& readers, const std::vector<double>& scales) const {
    double error = 0;
    for (const auto& [set, sample] : readers) {
      for (Role role : RolesOf(set)) {
        const FormatSpec& format = search_.plan.at(index_, role).weights;
        if (format.quantized()) error += ScaledError(sample.rows, format, scales, layer_[role]);
      }
    }
    return error;
  }
  const ScaleSearch& search_;
  const ModelConfig& config_;
  const int64_t index_;
  const FloatLayer& layer_;
  std::map<LayerVector, Readers> behind_;  // norms
  ChannelScales found_;
};

}  // namespace

std::vector<ChannelScales> SearchScales(Backend& backend, const ScaleSearch& search,
                                        const std::function<void(double)>& progress) {
  const ModelConfig& c = search.config;
  const Plan plain = SourcePlan(search.plan);
  Stream stream(backend, c, plain, search.source.embedding(), search.ids, search.context, false);
  std::vector<ChannelScales> scales;
  for (int64_t i = 0; i < c.layers; ++i) {
    const FloatLayer layer = search.source.Layer(i);
    LayerSearch of_layer(search, i, layer);
    stream.Walk(StoreFloats(layer), i, [&](LinearSet set) {
      of_layer.See(set, SampleInputs(backend, stream, set, c.inputs(i, RolesOf(set)[0])));
    });
    scales.push_back(of_layer.Finish());
    progress(static_cast<double>(i + 1));
  }
  return scales;
}

}  // namespace nibble
