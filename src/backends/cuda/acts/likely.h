// SPDX-License-Identifier: Apache-2.0
// What drawing tokens needs of rows of logits (compute/likely.h).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <span>

#include "compute/likely.h"

namespace nibble::cuda {

inline constexpr int kLikelyParts = 128;  // blocks that share a row

// What a block knows of its part of a row.
struct LikelyPart {
  float top, sum;  // -infinity and 0 where it has no columns
  int32_t finite;
};

// The answer for one row as the kernels write it.
struct LikelyRow {
  float total;
  int32_t count, finite;           // count: in the window, which may be more than fit
  LikelyToken tokens[kMaxLikely];  // in no order
};

// answers[i] = that of row i of logits [queries, width] under a cap (0: none). `parts` is working
// memory, [queries, kLikelyParts]. Enqueued on the stream; dependent launches.
void FindLikely(const float* logits, int64_t width, float cap, std::span<const LikelyQuery> queries,
                LikelyPart* parts, LikelyRow* answers, cudaStream_t stream);

}  // namespace nibble::cuda
