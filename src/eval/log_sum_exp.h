// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

namespace nibble {

// log(sum(exp(row))) of a row of logits (not empty): exp to fp32's accuracy, sums of 4096 values in
// fp32 lanes, everything else in double. NaN if a logit is not finite.
double LogSumExp(std::span<const float> row);

}  // namespace nibble
