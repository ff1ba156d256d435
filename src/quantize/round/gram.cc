// SPDX-License-Identifier: Apache-2.0
#include "quantize/round/gram.h"

#include <cblas.h>

#include <algorithm>

#include "base/thread_pool.h"

namespace nibble {
namespace {

constexpr int64_t kTile = 128;  // many tasks even for narrow inputs

// Rows and columns of `sum` from (i, j) on, at most kTile of each.
void AddTile(const float* left, const float* right, int64_t tokens, int64_t i, int64_t j,
             Matrix<double>* sum) {
  const int64_t width = sum->cols;
  const int64_t m = std::min(kTile, width - i), n = std::min(kTile, width - j);
  std::vector<float> product(static_cast<size_t>(m * n));
  if (left == right && i == j) {
    cblas_ssyrk(CblasRowMajor, CblasLower, CblasTrans, static_cast<int>(m),
                static_cast<int>(tokens), 1, left + i, static_cast<int>(width), 0, product.data(),
                static_cast<int>(n));
  } else {
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, static_cast<int>(m), static_cast<int>(n),
                static_cast<int>(tokens), 1, left + i, static_cast<int>(width), right + j,
                static_cast<int>(width), 0, product.data(), static_cast<int>(n));
  }
  for (int64_t r = 0; r < m; ++r) {
    double* row = sum->row(i + r).data() + j;
    for (int64_t c = 0; c < n; ++c) row[c] += product[static_cast<size_t>(r * n + c)];
  }
}

}  // namespace

void AddGram(MathServices& services, const float* left, const float* right, int64_t tokens,
             Matrix<double>* sum) {
  const int64_t width = sum->cols;
  if (services.AddGram(left, right, tokens, width, sum->data.data())) return;
  const int64_t tiles = (width + kTile - 1) / kTile;
  ParallelFor(static_cast<size_t>(tiles * tiles), [&](size_t task) {
    const int64_t i = static_cast<int64_t>(task) / tiles, j = static_cast<int64_t>(task) % tiles;
    if (left == right && j > i) return;
    AddTile(left, right, tokens, i * kTile, j * kTile, sum);
  });
}

}  // namespace nibble
