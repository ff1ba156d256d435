// SPDX-License-Identifier: Apache-2.0
#include "compute/backend.h"

#include "compute/math_services.h"
#include "tensor/finite.h"

namespace nibble {

MathServices& Backend::services() {
  static MathServices none;
  return none;
}

std::vector<Likely> Backend::FindLikelyRows(const float* logits, int64_t width, float cap,
                                            std::span<const LikelyQuery> queries) {
  std::vector<Likely> all(queries.size());
  ParallelFor(all.size(), [&](size_t i) {
    const std::span row(logits + static_cast<int64_t>(i) * width, static_cast<size_t>(width));
    if (cap == 0) {
      all[i] = FindLikely(row, queries[i]);
      return;
    }
    std::vector<float> capped(row.begin(), row.end());
    for (float& logit : capped) logit = cap * std::tanh(logit / cap);
    all[i] = FindLikely(capped, queries[i]);
    all[i].finite = AllFinite(row);  // a cap hides infinities
  });
  return all;
}

}  // namespace nibble
