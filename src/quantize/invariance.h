// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "backends/interface/backend.h"
#include "quantize/rotate.h"

namespace nibble {

// What is run: so many windows, of so many tokens.
inline constexpr int64_t kCheckedWindows = 2;
// What rounding alone may change. A product of K inputs loses sqrt(K) 2^-24 of its deviation in
// fp32 and 2^-17 on AMX, which keeps 16 bits of each operand; of eight ops a layer errors add up as
// independent ones do. The largest error of ten million logits is 6 deviations, and attention
// and norms may make 5 times as much of it: 30. A bug changes logits by about as much as they are.
double InvarianceLimit(const ModelConfig& config);
inline int64_t CheckedContext(const ModelConfig& config) {
  return std::min<int64_t>(config.context, 96);
}

// Folding, rotation and orders of channels must not change what the network computes. Runs a few
// short windows through the source and through the mapped fp32 network, layer by layer, and returns
// the largest change of a logit divided by the standard deviation of the logits. Throws above the
// limit.
double CheckInvariance(const Network& source, const Rotator& rotator, const FloatLayers& layers,
                       const Plan& plan, Backend& backend);

}  // namespace nibble
