// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

namespace nibble {

inline constexpr int64_t kLogitRows = 128;  // rows of logits held at once

// log(sum(exp(row))) of a row of logits (not empty): exp to fp32's accuracy, sums of 4096 values in
// fp32 lanes, everything else in double. NaN if a logit is not finite.
double LogSumExp(std::span<const float> row);

}  // namespace nibble
