// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace nibble {

// The router of a mixture of experts (Mixtral: Jiang et al. 2024, section 2.1; DeepSeek V3:
// DeepSeek-AI 2024, section 2.1.2). It chooses the experts of a token with the largest scores,
// which are the logits' softmax or each logit's sigmoid; a bias may be added to them for the choice
// alone.
struct RouterSpec {
  int64_t experts = 0;  // to choose among; 0: there is one FFN and no router
  int64_t experts_per_token = 0;
  // Shared experts, behind the others: every token has them, with weight 1.
  int64_t shared = 0;
  bool sigmoid = false;
  // The weights of a token's experts are divided by their sum.
  bool normalized = true;
  float scale = 1;  // a factor of the weights of experts

  constexpr int64_t all() const { return experts + shared; }
  constexpr int64_t of_token() const { return experts_per_token + shared; }
};
inline constexpr float kMinScoreSum = 1e-20f;  // added to the sum of sigmoids that divides them

}  // namespace nibble
