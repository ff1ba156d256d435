// SPDX-License-Identifier: Apache-2.0
// Chooses the tokens of one answer from the model's logits.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/rng.h"
#include "schedule/request.h"

namespace nibble {

class Matcher;
class VocabularyTrie;

class TokenPicker {
 public:
  // The request must outlive this, and so must the vocabulary where it has a grammar.
  TokenPicker(const GenerationRequest& request, int index, const VocabularyTrie* vocabulary);
  TokenPicker(TokenPicker&&) noexcept;
  ~TokenPicker();

  // What the token behind `written` ones needs of the logits, for PickFrom; nullopt: all of them.
  std::optional<LikelyQuery> Query(int64_t written) const;
  // That token; nullopt if `likely` does not hold enough.
  std::optional<int32_t> PickFrom(const Likely& likely);
  // The next token behind `written` ones, and its logprob if asked for. Logits [vocab] are finite.
  TokenLogprob Pick(std::span<const float> logits, int64_t written);

 private:
  // Every chosen token passes here: penalties and the grammar count it.
  void Take(int32_t id);
  bool Changes(int64_t written) const;
  std::unique_ptr<Matcher> NewMatcher() const;
  bool Masks() const { return matcher_ != nullptr && matches_; }
  // Returns whether the answer is too short for a stop id.
  bool BelowMinTokens(int64_t written) const {
    return written < request_->min_tokens && !request_->stop_ids.empty();
  }
  // The logits as penalties, biases, the least length and the grammar change them.
  std::span<const float> Change(std::span<const float> logits, int64_t written);

  const GenerationRequest* request_;
  Rng rng_;
  TokenCounts counts_;
  const VocabularyTrie* vocabulary_;
  std::unique_ptr<Matcher> matcher_;
  bool matches_ = true;  // the grammar's part of the text has begun
  std::vector<float> changed_;
};

// The logprobs of `id` and of the `top` likeliest tokens (ties: the lower id first).
TokenLogprob Logprob(std::span<const float> logits, int32_t id, int top);

}  // namespace nibble
