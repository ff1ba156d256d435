// SPDX-License-Identifier: Apache-2.0
// The gradient of a linear's weights, from what Backprop keeps of its inputs.
#pragma once

#include "quantize/walk/backprop.h"

namespace nibble {

class WeightGradients {
 public:
  // backprop keeps inputs and runs `tokens` tokens; all have to stay.
  WeightGradients(const DenseMath& math, const ModelConfig& config, const Backprop& backprop,
                  int64_t tokens)
      : math_(math),
        config_(config),
        backprop_(backprop),
        tokens_(tokens),
        product_(math.allocator()) {}

  // Returns the gradient [N, K] of the weights behind the online transform, in front of that of
  // outputs, given that of the outputs [tokens, N], as Backprop::Visit has them of layer `index`.
  Matrix<float> Of(const Plan& plan, int64_t index, Role role, const float* y_gradients);

 private:
  const DenseMath& math_;
  const ModelConfig& config_;
  const Backprop& backprop_;
  int64_t tokens_;
  Buffer<float> product_;
};

}  // namespace nibble
