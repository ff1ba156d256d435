// SPDX-License-Identifier: Apache-2.0
// What choosing a token needs of a row of logits: few of them, so that the others need not leave a
// GPU or be looked at twice.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace nibble {

inline constexpr size_t kMaxLikely = 1024;

struct LikelyQuery {
  float cold = 0;    // 1 / temperature; 0: no sum is needed
  float window = 0;  // logits this far below the largest one, or nearer, are listed
};

struct LikelyToken {
  int32_t id;
  float logit;
  // Likelier; of equal ones the lower id.
  bool before(const LikelyToken& other) const {
    return logit != other.logit ? logit > other.logit : id < other.id;
  }
};

struct Likely {
  bool finite = true;    // all logits are
  bool complete = true;  // at most kMaxLikely are in the window; else `tokens` are any of them
  double total = 0;      // sum of exp((logit - largest) cold) over the row
  std::vector<LikelyToken> tokens;  // the likeliest first
};

// The answer for one row in the program's memory, not empty. Logits may be minus infinity.
Likely FindLikely(std::span<const float> logits, const LikelyQuery& query);

// sum of exp((row - top) cold): exp to fp32's accuracy, sums of 4096 values in fp32 lanes.
double SumExp(std::span<const float> row, float top, float cold = 1);

}  // namespace nibble
