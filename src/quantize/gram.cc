// SPDX-License-Identifier: Apache-2.0
#include "quantize/gram.h"

#include <cblas.h>

#include <algorithm>
#include <vector>

#include "base/thread_pool.h"

namespace nibble {

void Gram::Add(const float* left, const float* right, int64_t tokens) {
  constexpr int64_t kTile = 128;  // many tasks even for narrow inputs
  const int64_t width = sum_.cols, tiles = (width + kTile - 1) / kTile;
  const bool symmetric = left == right;
  ParallelFor(static_cast<size_t>(tiles * tiles), [&](size_t task) {
    const int64_t i = static_cast<int64_t>(task) / tiles * kTile;
    const int64_t j = static_cast<int64_t>(task) % tiles * kTile;
    if (symmetric && j < i) return;
    const int64_t m = std::min(kTile, width - i), n = std::min(kTile, width - j);
    thread_local std::vector<float> product(kTile * kTile);
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, static_cast<int>(m), static_cast<int>(n),
                static_cast<int>(tokens), 1, left + i, static_cast<int>(width), right + j,
                static_cast<int>(width), 0, product.data(), kTile);
    for (int64_t r = 0; r < m; ++r) {
      for (int64_t c = 0; c < n; ++c) {
        const double value = product[static_cast<size_t>(r * kTile + c)];
        sum_.row(i + r)[static_cast<size_t>(j + c)] += value;
        if (symmetric && i != j) sum_.row(j + c)[static_cast<size_t>(i + r)] += value;
      }
    }
  });
}

}  // namespace nibble
