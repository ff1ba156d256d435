// SPDX-License-Identifier: Apache-2.0
// A Hadamard matrix takes outliers away, and it spreads over all channels what groups, or rows with
// few large channels, had in few: it may do harm. Whether it does is measured, input by input.
#pragma once

#include <functional>
#include <span>

#include "compute/backend.h"
#include "quantize/map/rotate.h"

namespace nibble {

// Windows that are looked at: the last one compares what the others have rounded.
inline constexpr int64_t kTransformWindows = 4;

// Takes out of `plan`, which `rotator` follows, each online transform (and the scales of the norm
// in front) without which the products of rounded inputs with rounded weights are closer to those
// of floats. Layers and inputs go to plan.provenance. `ids`: windows of `context` tokens.
// progress(layers done) may throw.
void ChooseTransforms(Backend& backend, const ModelConfig& config, const Recipe& recipe,
                      Rotator& rotator, std::span<const int32_t> ids, int64_t context, Plan& plan,
                      const std::function<void(double)>& progress);

}  // namespace nibble
