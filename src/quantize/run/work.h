// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "quantize/recipes/recipe.h"

namespace nibble {

// Operations that a layer takes, of one kind each.
struct Work {
  double linear = 0;     // of products, per token
  double attention = 0;  // per token and key
  double gram = 0;       // per token
  double weights = 0;    // to round
  double rounding = 0;   // of GPTQ's products
};

Work WorkOf(const ModelConfig& config, const Recipe& recipe);

}  // namespace nibble
