// SPDX-License-Identifier: Apache-2.0
// What drawing tokens needs of rows of logits (compute/likely.h).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <span>

#include "compute/likely.h"

namespace nibble::cuda {

inline constexpr int kLikelyParts = 32;  // blocks that share a row

// The answer for one row as kernels write it, and what they need for it.
struct LikelyRow {
  double total;
  int32_t count, finite;           // count: in the window, which may be more than fit
  LikelyToken tokens[kMaxLikely];  // in no order
  struct {
    float top, sum;
    int32_t finite;
  } parts[kLikelyParts];
};

// answers[i] = that of row i of logits [queries, width] under a cap (0: none). Enqueued on the
// stream; dependent launches.
void FindLikely(const float* logits, int64_t width, float cap, std::span<const LikelyQuery> queries,
                LikelyRow* answers, cudaStream_t stream);

}  // namespace nibble::cuda
