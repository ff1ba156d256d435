// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "base/rng.h"

namespace nibble {

struct Sampling {
  static constexpr double kMaxTemperature = 100, kMinTopP = 1e-6;
  static constexpr int64_t kMaxTopK = int64_t{1} << 32;

  double temperature = 0;  // 0 = the most likely token
  double top_p = 1;        // keep the smallest set of tokens that holds this much probability
  int64_t top_k = 0;       // keep this many tokens; 0 = all
};
// Values that a caller chose and that mean nothing are a usage error.
void CheckSampling(const Sampling& sampling);

// Draws a token from softmax(logits / temperature) after top_k and top_p. Ties go to the lower id.
// Logits are finite numbers.
int32_t Sample(std::span<const float> logits, const Sampling& sampling, Rng& rng);

}  // namespace nibble
