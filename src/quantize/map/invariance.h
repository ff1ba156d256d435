// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>

#include "compute/backend.h"
#include "quantize/map/rotate.h"

namespace nibble {

// The size of the check: so many windows, of so many tokens.
inline constexpr int64_t kCheckedWindows = 2;
inline int64_t CheckedContext(const ModelConfig& config) {
  return std::min<int64_t>(config.context, 96);
}

// The change at the token and the part of the network where change / rounding is largest.
struct Invariance {
  std::string part;     // "the embedding", "layer 3" or "the head"
  double change = 0;    // |outputs of the mapped part - outputs of the source's| / |the latter|
  double rounding = 0;  // the same of what rounding to fp32 does, as measured
  double limit() const;
};

// Compares the mapped fp32 network with the source, since folding, rotation, scales and orders of
// channels must not change what a network computes. Each layer and the head read the source's
// residual stream x on a few short windows of random ids, so that rounding of earlier layers hides
// nothing.
//
// The share of a change that is rounding depends on the layer. So each runs a second time with x
// perturbed by as much as `backend` rounds: each entry by a random share of it, whose size is the
// measured error of a product. Throws where a change is above `Invariance::limit`.
Invariance CheckInvariance(const Network& source, const Rotator& rotator, const FloatLayers& layers,
                           const Plan& plan, Backend& backend, uint64_t seed = 0);

}  // namespace nibble
