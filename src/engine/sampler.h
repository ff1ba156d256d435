// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "base/rng.h"

namespace nibble {

struct Sampling {
  double temperature = 0;  // 0 = the most likely token
  double top_p = 1;        // keep the smallest set of tokens that holds this much probability
  int64_t top_k = 0;       // keep this many tokens; 0 = all
};

// Draws a token from softmax(logits / temperature) after top_k and top_p. Ties go to the lower id.
int32_t Sample(std::span<const float> logits, const Sampling& sampling, Rng& rng);

}  // namespace nibble
