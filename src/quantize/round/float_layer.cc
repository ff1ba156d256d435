// SPDX-License-Identifier: Apache-2.0
#include "quantize/round/float_layer.h"

#include <algorithm>

namespace nibble {

EmbeddingRows RowsOf(const Matrix<float>& table, double scale) {
  return {[&table, factor = static_cast<float>(scale)](std::span<const int32_t> ids) {
    Matrix<float> rows(static_cast<int64_t>(ids.size()), table.cols);
    for (size_t t = 0; t < ids.size(); ++t) {
      std::ranges::transform(table.row(ids[t]), rows.row(static_cast<int64_t>(t)).begin(),
                             [&](float value) { return factor * value; });
    }
    return rows;
  }};
}

}  // namespace nibble
