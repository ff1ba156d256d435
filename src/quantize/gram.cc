// SPDX-License-Identifier: Apache-2.0
#include "quantize/gram.h"

#include <cblas.h>

#include <algorithm>

#include "backends/interface/math_services.h"
#include "base/thread_pool.h"

namespace nibble {
namespace {

// out [width, width] = left^T right, tile by tile.
void BlasGram(const float* left, const float* right, int64_t tokens, int64_t width, float* out) {
  constexpr int64_t kTile = 128;  // many tasks even for narrow inputs
  const int64_t tiles = (width + kTile - 1) / kTile;
  const bool symmetric = left == right;
  ParallelFor(static_cast<size_t>(tiles * tiles), [&](size_t task) {
    const int64_t i = static_cast<int64_t>(task) / tiles * kTile;
    const int64_t j = static_cast<int64_t>(task) % tiles * kTile;
    if (symmetric && j < i) return;
    const int64_t m = std::min(kTile, width - i), n = std::min(kTile, width - j);
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, static_cast<int>(m), static_cast<int>(n),
                static_cast<int>(tokens), 1, left + i, static_cast<int>(width), right + j,
                static_cast<int>(width), 0, out + i * width + j, static_cast<int>(width));
    for (int64_t r = i; symmetric && i != j && r < i + m; ++r) {
      for (int64_t c = j; c < j + n; ++c) out[c * width + r] = out[r * width + c];
    }
  });
}

}  // namespace

void Gram::Add(const float* left, const float* right, int64_t tokens) {
  const int64_t width = sum_.cols;
  product_.resize(static_cast<size_t>(width * width));
  if (!backend_.services().Gram(left, right, tokens, width, product_.data())) {
    const int64_t count = tokens * width;
    const float* host_left = backend_.Read(left, count);
    if (left == right || host_left == left) {  // one input, or both in the program's memory
      BlasGram(host_left, left == right ? host_left : right, tokens, width, product_.data());
    } else {
      const std::vector<float> copy(host_left, host_left + count);
      BlasGram(copy.data(), backend_.Read(right, count), tokens, width, product_.data());
    }
  }
  ParallelFor(static_cast<size_t>(width), [&](size_t row) {
    double* sum = sum_.row(static_cast<int64_t>(row)).data();
    const float* product = product_.data() + static_cast<int64_t>(row) * width;
    for (int64_t c = 0; c < width; ++c) sum[c] += product[c];
  });
}

}  // namespace nibble
