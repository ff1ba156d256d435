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

struct Invariance {
  double change = 0;    // largest change of a logit, over the standard deviation of the logits
  double rounding = 0;  // the same of what rounding to fp32 does, as measured
  double limit() const;
};

// Folding, rotation, scales and orders of channels must not change what the network computes. Runs
// a few short windows through the source and through the mapped fp32 network, layer by layer.
//
// How much of a change is rounding depends on the network. So both run a second time, on the first
// window, with x perturbed behind each layer by as much as `backend` rounds: each entry by a random
// share of it, whose size is the measured error of a product. Throws where the change is above
// `Invariance::limit`.
Invariance CheckInvariance(const Network& source, const Rotator& rotator, const FloatLayers& layers,
                           const Plan& plan, Backend& backend, uint64_t seed = 0);

}  // namespace nibble
