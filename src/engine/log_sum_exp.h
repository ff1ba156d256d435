// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

namespace nibble {

inline constexpr int64_t kLogitRows = 128;  // rows of logits held at once

// log(sum(exp(row))) of a row of logits (not empty): exp to fp32's accuracy, sums of 4096 values in
// fp32 lanes, everything else in double. NaN if a logit is not finite.
double LogSumExp(std::span<const float> row);

// KL(p || q) in nats of the softmaxes of two rows of logits, all in double: near 0 it is the
// difference of almost equal logarithms.
double Divergence(std::span<const float> p, std::span<const float> q);

}  // namespace nibble
