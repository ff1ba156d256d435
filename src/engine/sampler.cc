// SPDX-License-Identifier: Apache-2.0
#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"

namespace nibble {
namespace {

struct Candidate {
  float logit;
  int32_t id;
  double weight;  // unnormalized probability, the likeliest's is 1

  bool before(const Candidate& other) const {
    return logit != other.logit ? logit > other.logit : id < other.id;
  }
};
constexpr auto kBefore = [](const Candidate& a, const Candidate& b) { return a.before(b); };
constexpr auto kBehind = [](const Candidate& a, const Candidate& b) { return b.before(a); };

double TotalWeight(const std::vector<Candidate>& candidates) {
  double total = 0;
  for (const Candidate& c : candidates) total += c.weight;
  return total;
}

// The most typical ones, in no order.
void KeepTypical(std::vector<Candidate>& candidates, double mass) {
  const double total = TotalWeight(candidates);
  const auto surprise = [&](const Candidate& c) { return std::log(total) - std::log(c.weight); };
  double entropy = 0;
  std::erase_if(candidates, [](const Candidate& c) { return c.weight == 0; });
  for (const Candidate& c : candidates) entropy += c.weight / total * surprise(c);
  std::ranges::sort(candidates, [&](const Candidate& a, const Candidate& b) {
    const double x = std::fabs(surprise(a) - entropy), y = std::fabs(surprise(b) - entropy);
    return x != y ? x < y : a.id < b.id;
  });
  double kept = 0;
  size_t count = 0;
  while (count < candidates.size() && kept < mass * total) kept += candidates[count++].weight;
  candidates.resize(count);
}

// The likeliest ones, of this share of the mass and at least this weight.
void KeepLikely(std::vector<Candidate>& candidates, double top_p, double min_p) {
  const double mass = top_p * TotalWeight(candidates);
  // A heap, since few of many are kept most times.
  std::ranges::make_heap(candidates, kBehind);
  const double min = min_p * candidates.front().weight;
  double kept = 0;
  auto end = candidates.end();
  while (end != candidates.begin() && kept < mass && candidates.front().weight >= min) {
    std::pop_heap(candidates.begin(), end--, kBehind);
    kept += end->weight;
  }
  candidates.erase(candidates.begin(), end);
}

}  // namespace

void CheckSampling(const Sampling& s) {
  const auto check = [](const char* name, auto value, auto min, auto max) {
    if (value >= min && value <= max) return;  // NaN is not
    FailUsage("{} = {} is not in {}..{}", name, value, min, max);
  };
  check("temperature", s.temperature, 0.0, Sampling::kMaxTemperature);
  check("top-p", s.top_p, Sampling::kMinTopP, 1.0);
  check("top-k", s.top_k, int64_t{0}, Sampling::kMaxTopK);
  check("min-p", s.min_p, 0.0, 1.0);
  check("typical-p", s.typical, Sampling::kMinTopP, 1.0);
  check("repetition-penalty", s.repetition, 1 / Sampling::kMaxRepetition, Sampling::kMaxRepetition);
  check("presence-penalty", s.presence, -Sampling::kMaxPenalty, Sampling::kMaxPenalty);
  check("frequency-penalty", s.frequency, -Sampling::kMaxPenalty, Sampling::kMaxPenalty);
}

void TokenCounts::AddPrompt(std::span<const int32_t> ids) {
  for (const int32_t id : ids) written_.try_emplace(id);
}

void TokenCounts::Penalize(std::span<float> logits, const Sampling& sampling) const {
  for (const auto& [id, count] : written_) {
    float& logit = logits[static_cast<size_t>(id)];
    double value = logit > 0 ? logit / sampling.repetition : logit * sampling.repetition;
    if (count > 0) value -= sampling.presence + sampling.frequency * static_cast<double>(count);
    logit = static_cast<float>(value);
  }
}

namespace {

float Cold(const Sampling& sampling) {
  constexpr double kMax = std::numeric_limits<float>::max();
  return static_cast<float>(std::min(1 / sampling.temperature, kMax));
}

// The order of candidates depends on how they were selected, which must not decide.
int32_t DrawById(std::vector<Candidate>& candidates, Rng& rng) {
  std::ranges::sort(candidates, {}, &Candidate::id);
  double draw = rng.Uniform() * TotalWeight(candidates);
  const Candidate* last = nullptr;
  for (const Candidate& c : candidates) {
    if (c.weight == 0) continue;
    last = &c;
    draw -= c.weight;
    if (draw < 0) break;
  }
  return last->id;
}

int32_t DrawFromAll(std::span<const float> logits, const Sampling& sampling, Rng& rng) {
  const float top = *std::ranges::max_element(logits), cold = Cold(sampling);
  std::vector<Candidate> candidates;
  candidates.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    candidates.push_back({logits[i], static_cast<int32_t>(i), std::exp((logits[i] - top) * cold)});
  }
  if (sampling.top_k > 0 && static_cast<size_t>(sampling.top_k) < candidates.size()) {
    std::ranges::nth_element(candidates, candidates.begin() + sampling.top_k, kBefore);
    candidates.resize(static_cast<size_t>(sampling.top_k));
  }
  if (sampling.typical < 1) KeepTypical(candidates, sampling.typical);
  if (sampling.top_p < 1 || sampling.min_p > 0) {
    KeepLikely(candidates, sampling.top_p, sampling.min_p);
  }
  return DrawById(candidates, rng);
}

constexpr double kFarBelow = 20;  // e^-20 of the likeliest one's probability

}  // namespace

std::optional<LikelyQuery> QueryOf(const Sampling& sampling) {
  if (sampling.temperature == 0) return LikelyQuery{};
  const bool cuts = sampling.top_k > 0 || sampling.top_p < 1 || sampling.min_p > 0;
  const bool many = sampling.top_k > static_cast<int64_t>(kMaxLikely);
  if (!cuts || many || sampling.typical < 1) return std::nullopt;
  // A little wider than min_p asks for: logits are rounded.
  const double below = sampling.min_p > 0 ? 1e-3 - std::log(sampling.min_p) : kFarBelow;
  const double cold = Cold(sampling);
  return LikelyQuery{static_cast<float>(cold),
                     static_cast<float>(std::min(below, kFarBelow) / cold)};
}

std::optional<int32_t> Draw(const Likely& likely, const Sampling& sampling, Rng& rng) {
  if (!likely.complete || likely.tokens.empty()) return std::nullopt;
  const float top = likely.tokens.front().logit;
  if (sampling.temperature == 0) return likely.tokens.front().id;
  const bool few = sampling.top_k > 0;
  const size_t count = few ? std::min(likely.tokens.size(), static_cast<size_t>(sampling.top_k))
                           : likely.tokens.size();
  std::vector<Candidate> candidates;
  for (const LikelyToken& token : std::span(likely.tokens).first(count)) {
    candidates.push_back({token.logit, token.id, std::exp((token.logit - top) * Cold(sampling))});
  }
  const double total = few ? TotalWeight(candidates) : likely.total;
  const double mass = sampling.top_p < 1 ? sampling.top_p * total : HUGE_VAL;
  double kept = 0;
  size_t end = 0;
  while (end < count && kept < mass && candidates[end].weight >= sampling.min_p) {
    kept += candidates[end++].weight;
  }
  const bool cut = few || sampling.min_p >= std::exp(-kFarBelow) || kept >= mass;
  if (!cut) return std::nullopt;  // the mass reaches further than the window
  candidates.resize(end);
  return DrawById(candidates, rng);
}

int32_t Sample(std::span<const float> logits, const Sampling& sampling, Rng& rng) {
  if (const std::optional<LikelyQuery> query = QueryOf(sampling)) {
    if (const auto id = Draw(FindLikely(logits, *query), sampling, rng)) return *id;
  }
  if (sampling.temperature > 0) return DrawFromAll(logits, sampling, rng);
  return static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
}

}  // namespace nibble
