// SPDX-License-Identifier: Apache-2.0
#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <vector>

#include "base/error.h"

namespace nibble {

void CheckSampling(const Sampling& s) {
  const auto check = [](const char* name, auto value, auto least, auto most) {
    if (value >= least && value <= most) return;  // NaN is not
    FailUsage("{} = {} is not in {}..{}", name, value, least, most);
  };
  check("temperature", s.temperature, 0.0, Sampling::kMaxTemperature);
  check("top-p", s.top_p, Sampling::kMinTopP, 1.0);
  check("top-k", s.top_k, int64_t{0}, Sampling::kMaxTopK);
  check("min-p", s.min_p, 0.0, 1.0);
  check("repetition-penalty", s.repetition, 1 / Sampling::kMaxRepetition, Sampling::kMaxRepetition);
  check("presence-penalty", s.presence, -Sampling::kMaxPenalty, Sampling::kMaxPenalty);
  check("frequency-penalty", s.frequency, -Sampling::kMaxPenalty, Sampling::kMaxPenalty);
}

void Penalize(std::span<float> logits, std::span<const int32_t> prompt,
              std::span<const int32_t> written, const Sampling& sampling) {
  std::map<int32_t, int64_t> times;  // of all that occurred, how often it was written
  for (const int32_t id : prompt) times[id];
  for (const int32_t id : written) ++times[id];
  for (const auto& [id, count] : times) {
    float& logit = logits[static_cast<size_t>(id)];
    double value = logit > 0 ? logit / sampling.repetition : logit * sampling.repetition;
    if (count > 0) value -= sampling.presence + sampling.frequency * static_cast<double>(count);
    logit = static_cast<float>(value);
  }
}

int32_t Sample(std::span<const float> logits, const Sampling& sampling, Rng& rng) {
  if (sampling.temperature == 0) {
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  if (sampling.top_k > 0 && static_cast<size_t>(sampling.top_k) < order.size()) {
    order.resize(static_cast<size_t>(sampling.top_k));
  }
  const double top = logits[static_cast<size_t>(order[0])];
  std::vector<double> weights;
  double total = 0;
  for (int32_t id : order) {
    weights.push_back(std::exp((logits[static_cast<size_t>(id)] - top) / sampling.temperature));
    total += weights.back();
  }
  double kept = 0;  // probability mass (unnormalized) of the tokens before `count`
  size_t count = 0;
  while (count < weights.size() && kept < sampling.top_p * total &&
         weights[count] >= sampling.min_p) {  // the likeliest token's is 1
    kept += weights[count++];
  }
  double draw = rng.Uniform() * kept;
  for (size_t i = 0; i < count; ++i) {
    draw -= weights[i];
    if (draw < 0) return order[i];
  }
  return order[count - 1];
}

}  // namespace nibble
