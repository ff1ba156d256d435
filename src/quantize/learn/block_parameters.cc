// SPDX-License-Identifier: Apache-2.0
#include "quantize/learn/block_parameters.h"

#include <algorithm>
#include <cmath>

#include "base/thread_pool.h"

namespace nibble {
namespace {

constexpr float kFirstLogit = 4;
constexpr double kClipRate = 1e-2, kScaleRate = 5e-3;  // the paper's programs'

double Sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

// One group on the way back.
struct Group {
  std::span<const double> w;
  std::span<float> gradients;
  double low, high;  // shares of the range that are kept
};
struct Ends {
  double low, high;  // gradients of logits
};

Ends ThroughGroup(const Group& g, int bits) {
  const auto [min, max] = std::ranges::minmax_element(g.w);
  const double lo = std::min(0.0, *min), hi = std::max(0.0, *max);
  const double bottom = g.low * lo, top = g.high * hi, levels = (1 << bits) - 1;
  const double step = (top - bottom) / levels;
  if (!(step > 0)) return {0, 0};
  double of_bottom = 0, of_top = 0;
  for (size_t k = 0; k < g.w.size(); ++k) {
    float& gradient = g.gradients[k];
    if (g.w[k] > top || g.w[k] < bottom) {
      (g.w[k] > top ? of_top : of_bottom) += gradient;
      gradient = 0;
      continue;
    }
    const double error = std::nearbyint(g.w[k] / step) - g.w[k] / step;
    of_top += gradient * error / levels;
    of_bottom -= gradient * error / levels;
  }
  if (hi > 0) g.gradients[static_cast<size_t>(max - g.w.begin())] += of_top * g.high;
  if (lo < 0) g.gradients[static_cast<size_t>(min - g.w.begin())] += of_bottom * g.low;
  return {of_bottom * lo * g.low * (1 - g.low), of_top * hi * g.high * (1 - g.high)};
}

std::vector<double> Exponentials(std::span<const float> logarithms) {
  std::vector<double> values;
  for (const float value : logarithms) values.push_back(std::exp(static_cast<double>(value)));
  return values;
}

// Sum over rows of w's elements times their gradients, by columns.
std::vector<double> ColumnDots(const Matrix<double>& w, const Matrix<float>& gradients) {
  std::vector<double> sums(static_cast<size_t>(w.cols));
  for (int64_t n = 0; n < w.rows; ++n) {
    for (size_t k = 0; k < sums.size(); ++k) sums[k] += w.row(n)[k] * gradients.row(n)[k];
  }
  return sums;
}

}  // namespace

EndGradients ThroughRounding(const Matrix<double>& w, const FormatSpec& format,
                             std::span<const float> low, std::span<const float> high,
                             Matrix<float>& gradients) {
  const auto groups = static_cast<size_t>(format.groups(w.cols));
  const size_t width = static_cast<size_t>(w.cols) / groups;
  EndGradients ends = {std::vector<float>(low.size()), std::vector<float>(high.size())};
  ParallelFor(static_cast<size_t>(w.rows), [&](size_t n) {
    const auto row = static_cast<int64_t>(n);
    for (size_t g = 0; g < groups; ++g) {
      const size_t at = n * groups + g;
      const Ends found = ThroughGroup(
          {w.row(row).subspan(g * width, width), gradients.row(row).subspan(g * width, width),
           Sigmoid(low[at]), Sigmoid(high[at])},
          format.bits);
      ends.low[at] = static_cast<float>(found.low);
      ends.high[at] = static_cast<float>(found.high);
    }
  });
  return ends;
}

std::vector<double> FactorGradients(const ReadInputs& x, int64_t width, const FormatSpec& format) {
  std::vector<double> sums(static_cast<size_t>(width));
  const auto group = static_cast<size_t>(format.group == 0 ? width : format.group);
  for (size_t first = 0; first < x.exact.size(); first += group) {
    const auto exact = x.exact.subspan(first, group), rounded = x.rounded.subspan(first, group),
               gradients = x.gradients.subspan(first, group);
    const size_t column = first % sums.size();
    double of_step = 0;  // the derivative by the logarithm of the step
    for (size_t k = 0; k < group; ++k) {
      sums[column + k] += exact[k] * gradients[k];
      of_step += (rounded[k] - exact[k]) * gradients[k];
    }
    if (!format.quantized()) continue;
    const auto [min, max] = std::ranges::minmax_element(exact);
    const auto low = static_cast<size_t>(min - exact.begin()),
               high = static_cast<size_t>(max - exact.begin());
    if (format.symmetric) {
      sums[column + (-*min > *max ? low : high)] += of_step;
    } else if (*max > *min) {
      sums[column + high] += of_step * *max / (*max - *min);
      sums[column + low] -= of_step * *min / (*max - *min);
    }
  }
  return sums;
}

BlockParameters::BlockParameters(const ModelConfig& config, const Plan& plan, int64_t index,
                                 const FloatLayer& layer, bool scales)
    : config_(config), plan_(plan), index_(index), layer_(layer), scaled_(layer) {
  const auto begin = [](int64_t count, float value, double rate) {
    return Adam(std::vector<float>(static_cast<size_t>(count), value), rate);
  };
  for (const auto& [role, w] : layer.weights) {
    const FormatSpec& format = plan.at(index, role).weights;
    if (!format.quantized()) continue;
    const int64_t count = w.rows * format.groups(w.cols);
    low_[role] = begin(count, kFirstLogit, kClipRate);
    high_[role] = begin(count, kFirstLogit, kClipRate);
    const auto norm = config.NormInFront(role);
    if (scales && norm) norms_[*norm] = begin(config.hidden_size, 0, kScaleRate);
  }
  if (scales && !config.value_norms) {
    values_ = begin(config.head_shape(index).kv_width(), 0, kScaleRate);
  }
}

void BlockParameters::Scale() {
  ChannelScales scales;
  for (const auto& [norm, adam] : norms_) scales.norms[norm] = Exponentials(adam.values());
  if (!values_.values().empty()) scales.outputs[Role::kV] = Exponentials(values_.values());
  scaled_ = layer_;
  ScaleChannels(config_, index_, scales, scaled_);
}

FloatLayer BlockParameters::Clipped() const {
  FloatLayer layer = scaled_;
  for (const auto& [role, high] : high_) {
    Matrix<double>& w = layer[role];
    const std::span<const float> tops = high.values(), bottoms = low_[role].values();
    const auto groups = static_cast<size_t>(plan_.at(index_, role).weights.groups(w.cols));
    ParallelFor(static_cast<size_t>(w.rows), [&](size_t n) {
      const size_t width = static_cast<size_t>(w.cols) / groups;
      for (size_t g = 0; g < groups; ++g) {
        const auto group = w.row(static_cast<int64_t>(n)).subspan(g * width, width);
        const auto [min, max] = std::ranges::minmax(group);
        const double bottom = std::min(0.0, min) * Sigmoid(bottoms[n * groups + g]);
        const double top = std::max(0.0, max) * Sigmoid(tops[n * groups + g]);
        for (double& value : group) value = std::clamp(value, bottom, top);
      }
    });
  }
  return layer;
}

void BlockParameters::AddWeights(Role role, Matrix<float> gradients) {
  const Matrix<double>& w = scaled_[role];
  if (high_.contains(role)) {
    ends_[role] = ThroughRounding(w, plan_.at(index_, role).weights, low_[role].values(),
                                  high_[role].values(), gradients);
  }
  const auto norm = config_.NormInFront(role);
  const auto add = [&](std::vector<float>& sums, const auto& column) {
    const std::vector<double> dots = ColumnDots(w, gradients);
    for (size_t k = 0; k < dots.size(); ++k) sums[column(k)] += static_cast<float>(dots[k]);
  };
  if (norm && norms_.contains(*norm)) {
    norm_gradients_[*norm].resize(static_cast<size_t>(w.cols));
    add(norm_gradients_[*norm], [](size_t k) { return k; });
  }
  if (role != Role::kO || values_.values().empty()) return;
  const HeadShape shape = config_.head_shape(index_);
  const auto d = static_cast<size_t>(shape.head_dim);
  const auto queries = static_cast<size_t>(shape.heads / shape.kv_heads);
  value_gradients_.resize(values_.values().size());
  add(value_gradients_, [&](size_t k) { return k / d / queries * d + k % d; });
}

void BlockParameters::AddInputs(Role first, const ReadInputs& x) {
  const auto norm = config_.NormInFront(first);
  if (!norm || !norms_.contains(*norm)) return;
  std::vector<float>& sums = norm_gradients_[*norm];
  sums.resize(static_cast<size_t>(config_.hidden_size));
  const auto dots = FactorGradients(x, config_.hidden_size, plan_.at(index_, first).activations);
  for (size_t k = 0; k < sums.size(); ++k) sums[k] -= static_cast<float>(dots[k]);
}

void BlockParameters::AddValues(std::span<const float> gradients) {
  if (values_.values().empty()) return;
  value_gradients_.resize(gradients.size());
  for (size_t n = 0; n < gradients.size(); ++n) value_gradients_[n] -= gradients[n];
}

void BlockParameters::Step(double share) {
  for (auto& [role, ends] : ends_) {
    low_[role].Step(ends.low, steps_, share);
    high_[role].Step(ends.high, steps_, share);
  }
  for (auto& [norm, sums] : norm_gradients_) norms_[norm].Step(sums, steps_, share);
  if (!value_gradients_.empty()) values_.Step(value_gradients_, steps_, share);
  ends_ = {}, norm_gradients_ = {}, value_gradients_ = {};
  ++steps_;
  Scale();
}

}  // namespace nibble
