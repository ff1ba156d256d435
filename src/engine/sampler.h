// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>

#include "base/rng.h"
#include "compute/likely.h"

namespace nibble {

struct Sampling {
  static constexpr double kMaxTemperature = 100, kMinTopP = 1e-6;
  static constexpr int64_t kMaxTopK = int64_t{1} << 32;
  static constexpr double kMaxRepetition = 100, kMaxPenalty = 100;

  double temperature = 0;  // 0 = the most likely token
  double top_p = 1;        // keep the smallest set of tokens that holds this much probability
  int64_t top_k = 0;       // keep this many tokens; 0 = all
  double min_p = 0;        // keep tokens of at least this share of the likeliest one's probability
  // Logits of tokens that occurred, in the prompt or after it, are divided by this if they are
  // positive and multiplied if not (Keskar et al. 2019, CTRL, section 4.1); 1 = as they are.
  double repetition = 1;
  // Taken from the logits of tokens written after the prompt: once, and for each time.
  double presence = 0, frequency = 0;
  // Keep the smallest set of tokens of this much probability whose surprise is nearest to the
  // entropy (Meister et al. 2023, "Locally Typical Sampling", equation 6).
  double typical = 1;

  bool penalizes() const { return repetition != 1 || presence != 0 || frequency != 0; }
};
// Values that a caller chose and that mean nothing are a usage error.
void CheckSampling(const Sampling& sampling);

// The tokens that occurred in a text, for penalties.
class TokenCounts {
 public:
  void AddPrompt(std::span<const int32_t> ids);
  void AddWritten(int32_t id) { ++written_[id]; }
  // Applies the penalties to logits [vocab].
  void Penalize(std::span<float> logits, const Sampling& sampling) const;

 private:
  std::unordered_map<int32_t, int64_t> written_;  // how often; 0: in the prompt alone
};

// What a draw needs to know of the logits; nullopt: all of them.
std::optional<LikelyQuery> QueryOf(const Sampling& sampling);

// Sample, from the answer to QueryOf; nullopt, without a draw, if that does not hold enough. Tokens
// of less than e^-20 of the likeliest one's probability are left out where top_k asks for them.
std::optional<int32_t> Draw(const Likely& likely, const Sampling& sampling, Rng& rng);

// Draws a token from softmax(logits / temperature) after top_k, typical, top_p and min_p. Ties go
// to the lower id. Logits may be minus infinity, not all of them, and are numbers otherwise.
int32_t Sample(std::span<const float> logits, const Sampling& sampling, Rng& rng);

}  // namespace nibble
