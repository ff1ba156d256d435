// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "backends/interface/backend.h"
#include "quantize/rotate.h"

namespace nibble {

// What is run: so many windows, of so many tokens.
inline constexpr int64_t kCheckedWindows = 2;
inline int64_t CheckedContext(const ModelConfig& config) {
  return std::min<int64_t>(config.context, 96);
}

// Folding, rotation and orders of channels must not change what the network computes. Runs a few
// short windows through the source and through the mapped fp32 network, layer by layer, and returns
// the largest change of a logit divided by the standard deviation of the logits. Throws above 1e-3.
double CheckInvariance(const Network& source, const Rotator& rotator, const FloatLayers& layers,
                       const Plan& plan, Backend& backend);

}  // namespace nibble
