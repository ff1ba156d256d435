// SPDX-License-Identifier: Apache-2.0
#include "schedule/token_picker.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "engine/log_sum_exp.h"
#include "grammar/matcher.h"

namespace nibble {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

}  // namespace

TokenPicker::TokenPicker(const GenerationRequest& request, int index,
                         const VocabularyTrie* vocabulary)
    : request_(&request),
      rng_(request.seed, static_cast<uint64_t>(index)),
      vocabulary_(vocabulary) {
  if (request.sampling.penalizes()) counts_.AddPrompt(request.prompt);
  if (request.grammar != nullptr) {
    matches_ = !request.grammar_after;
    matcher_ = NewMatcher();
  }
}

TokenPicker::TokenPicker(TokenPicker&&) noexcept = default;
TokenPicker::~TokenPicker() = default;

// A part that repeats ends by itself; no token is needed for that, and the one that begins it is
// never text.
std::unique_ptr<Matcher> TokenPicker::NewMatcher() const {
  const GenerationRequest& r = *request_;
  return std::make_unique<Matcher>(
      r.grammar, *vocabulary_,
      r.grammar_repeats ? std::vector<int32_t>{*r.grammar_after} : r.stop_ids);
}

bool TokenPicker::Changes(int64_t written) const {
  return request_->sampling.penalizes() || !request_->logit_bias.empty() ||
         BelowMinTokens(written) || Masks();
}

std::optional<LikelyQuery> TokenPicker::Query(int64_t written) const {
  if (request_->logprobs || Changes(written)) return std::nullopt;
  return QueryOf(request_->sampling);
}

std::optional<int32_t> TokenPicker::PickFrom(const Likely& likely) {
  const std::optional<int32_t> id = Draw(likely, request_->sampling, rng_);
  if (id) Take(*id);
  return id;
}

std::span<const float> TokenPicker::Change(std::span<const float> logits, int64_t written) {
  if (!Changes(written)) return logits;
  const GenerationRequest& r = *request_;
  changed_.assign(logits.begin(), logits.end());
  if (r.sampling.penalizes()) counts_.Penalize(changed_, r.sampling);
  for (const auto& [id, bias] : r.logit_bias) changed_[static_cast<size_t>(id)] += bias;
  if (Masks()) {
    const std::span<const uint64_t> mask = matcher_->Mask();
    for (size_t i = 0; i < changed_.size(); ++i) {
      if ((mask[i / 64] >> (i % 64) & 1) == 0) changed_[i] = kNever;
    }
  }
  if (BelowMinTokens(written)) {
    const auto allowed = [&](float logit) { return logit != kNever; };
    std::vector<float> ended = changed_;
    for (const int32_t id : r.stop_ids) changed_[static_cast<size_t>(id)] = kNever;
    // If a grammar leaves nothing but the end, the end comes in spite of min_tokens.
    if (std::ranges::none_of(changed_, allowed)) changed_ = std::move(ended);
  }
  return changed_;
}

// Once a repeating grammar has ended, another part may begin.
void TokenPicker::Take(int32_t id) {
  const GenerationRequest& r = *request_;
  if (r.sampling.penalizes()) counts_.AddWritten(id);
  if (!Masks()) {
    matches_ = matches_ || id == r.grammar_after;
    return;
  }
  if (!matcher_->Accept(id)) {
    Fail("the answer cannot go on: no token of the vocabulary continues what its grammar asks");
  }
  if (!r.grammar_repeats || !matcher_->may_end()) return;
  matches_ = false;
  matcher_ = NewMatcher();
}

TokenLogprob TokenPicker::Pick(std::span<const float> logits, int64_t written) {
  const int32_t id = Sample(Change(logits, written), request_->sampling, rng_);
  Take(id);
  if (!request_->logprobs) return {.id = id};
  return Logprob(logits, id, *request_->logprobs);
}

TokenLogprob Logprob(std::span<const float> logits, int32_t id, int top) {
  const double sum = LogSumExp(logits);
  const auto logprob = [&](int32_t i) {
    return static_cast<double>(logits[static_cast<size_t>(i)]) - sum;
  };
  TokenLogprob result = {id, logprob(id), {}};
  const auto likelier = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  // A heap of the best so far with the worst of them on top: few of many get in.
  std::vector<int32_t> best;
  for (int32_t i = 0; top > 0 && i < static_cast<int32_t>(logits.size()); ++i) {
    if (best.size() == static_cast<size_t>(top)) {
      if (!likelier(i, best.front())) continue;
      std::ranges::pop_heap(best, likelier);
      best.pop_back();
    }
    best.push_back(i);
    std::ranges::push_heap(best, likelier);
  }
  std::ranges::sort(best, likelier);
  for (const int32_t i : best) result.top.emplace_back(i, logprob(i));
  return result;
}

}  // namespace nibble
