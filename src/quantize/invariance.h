// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/interface/backend.h"
#include "quantize/rotate.h"

namespace nibble {

// Folding, rotation and orders of channels must not change what the network computes. Runs a few
// short windows through the source and through the mapped fp32 network, layer by layer, and returns
// the largest change of a logit divided by the standard deviation of the logits. Throws above 1e-3.
double CheckInvariance(const Network& source, const Rotator& rotator, const FloatLayers& layers,
                       const Plan& plan, Backend& backend);

}  // namespace nibble
