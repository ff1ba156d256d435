// SPDX-License-Identifier: Apache-2.0
// Adam (Kingma and Ba 2015) on the values of a vector.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/thread_pool.h"

namespace nibble {

class Adam {
 public:
  // rate: the length of a value's step.
  explicit Adam(std::span<const float> values = {}, double rate = 0)
      : rate_(rate), count_(values.size()), state_(kParts * count_) {
    for (Part p : {kValues, kBestValues}) std::ranges::copy(values, part(p));
  }

  // The step after `step` others, by `share` of the rate.
  void Step(std::span<const float> gradients, int64_t step, double share) {
    constexpr float kMean = 0.9f, kSquare = 0.99f;
    const auto n = static_cast<double>(step + 1);
    const auto rate = static_cast<float>(rate_ * share / (1 - std::pow(kMean, n)));
    const auto whole = static_cast<float>(1 / (1 - std::pow(kSquare, n)));
    float *const values = part(kValues), *const means = part(kMeans),
                 *const squares = part(kSquares);
    constexpr size_t kTask = 1 << 16;
    ParallelFor((count_ + kTask - 1) / kTask, [&](size_t task) {
      for (size_t i = task * kTask; i < std::min((task + 1) * kTask, count_); ++i) {
        means[i] += (1 - kMean) * (gradients[i] - means[i]);
        squares[i] += (1 - kSquare) * (gradients[i] * gradients[i] - squares[i]);
        values[i] -= rate * means[i] / (std::sqrt(whole * squares[i]) + 1e-12f);
      }
    });
  }
  // Keeps the values as the best ones so far.
  void KeepBest() { std::copy_n(part(kValues), count_, part(kBestValues)); }
  std::span<const float> values() const { return {state_.data() + kValues * count_, count_}; }
  std::span<const float> best() const { return {state_.data() + kBestValues * count_, count_}; }

  // The values, their moments and the best values.
  const std::vector<float>& state() const { return state_; }
  void Resume(std::vector<float> state) { state_ = std::move(state); }

 private:
  enum Part : size_t { kValues, kMeans, kSquares, kBestValues, kParts };
  float* part(Part p) { return state_.data() + p * count_; }

  double rate_;
  size_t count_;
  std::vector<float> state_;  // [kParts, count]
};

}  // namespace nibble
