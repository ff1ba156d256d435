// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace nibble {

// How a mixture's router chooses (Mixtral: Jiang et al. 2024, section 2.1): of the softmax over the
// experts' logits a token has the largest few.
struct RouterSpec {
  int64_t experts = 0;  // 0: there is one FFN and no router
  int64_t experts_per_token = 0;
  // Whether the weights of a token's experts are divided by their sum, which is the softmax over
  // their logits alone.
  bool normalized = true;
};

}  // namespace nibble
