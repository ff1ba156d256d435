// SPDX-License-Identifier: Apache-2.0
// AWQ's scales of channels (Lin et al. 2023, section 3.2): weights that meet large inputs are
// multiplied by s before they are rounded, and what makes these inputs divides by it:
//
//   s = (mean |x|)^a / sqrt(max s * min s),  a = 0, 1 / steps, 2 / steps .. 1
//
// with the a for which |x (Q(W s) / s - W)^T|^2 is smallest, over all linears that read x. Norms
// make the inputs of q, k, v, gate and up, rows of v and up those of o and down.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "quantize/map/rotate.h"
#include "quantize/walk/input_sample.h"

namespace nibble {

struct ScaleSearch {
  const ModelConfig& config;
  const Plan& plan;  // formats of weights
  int steps;
  const Rotator& source;  // as it is
  std::span<const int32_t> ids;
  int64_t context;
};

// Scales of norms, v and up for all layers, from a pass of windows through the source in floats.
// None of norms that stand behind linears; none of v where values have norms or other layers read
// them; none of up where a gate clamps or is missing. progress(layers done) may throw.
std::vector<ChannelScales> SearchScales(Backend& backend, const ScaleSearch& search,
                                        const std::function<void(double)>& progress);

}  // namespace nibble
