// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace nibble {

// How a mixture's router chooses among the experts of a token (Mixtral: Jiang et al. 2024, section
// 2.1; DeepSeek V3: DeepSeek-AI 2024, section 2.1.2): those with the largest scores, of the logits'
// softmax or each logit's sigmoid, to which a bias may be added for the choice alone.
struct RouterSpec {
  int64_t experts = 0;  // to choose among; 0: there is one FFN and no router
  int64_t experts_per_token = 0;
  // Behind them, experts that every token has, with weight 1.
  int64_t shared = 0;
  bool sigmoid = false;
  // Whether the weights of a token's experts are divided by their sum.
  bool normalized = true;
  float scale = 1;  // of weights

  constexpr int64_t all() const { return experts + shared; }
  constexpr int64_t of_token() const { return experts_per_token + shared; }
};
inline constexpr float kLeastScoreSum = 1e-20f;  // of normalized sigmoids

}  // namespace nibble
