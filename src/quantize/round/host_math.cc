// SPDX-License-Identifier: Apache-2.0
#include "quantize/round/host_math.h"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/thread_pool.h"

namespace nibble {
namespace {

void PeakGradient(std::span<float> values) {
  float max = 1e-30f;
  for (const float v : values) max = std::max(max, v * v);
  float sum = 1e-20f;  // of (v^2 / most)^5: 1 at least, but in a row of zeros
  for (const float v : values) {
    const float q = v * v / max, q2 = q * q;
    sum += q2 * q2 * q;
  }
  const float factor = 2 * std::pow(sum, 0.2f) / sum;
  for (float& v : values) {
    const float q = v * v / max, q2 = q * q;
    v *= factor * q2 * q2;
  }
}

}  // namespace

void HostMath::ForEach(size_t count, const std::function<void(size_t)>& task) const {
  ParallelFor(count, task);
}

void HostMath::Store(const float* values, std::span<float> target) const {
  std::copy_n(values, target.size(), target.begin());
}

void HostMath::Multiply(const DenseProduct& p) const {
  // BLAS arranges b anew for each task. How rows are cut does not depend on the number of threads.
  constexpr int64_t kRows = 256;
  const bool a_turned = p.transposed == DenseProduct::Transposed::kA;
  const bool b_turned = p.transposed == DenseProduct::Transposed::kB;
  ParallelFor(static_cast<size_t>((p.rows + kRows - 1) / kRows), [&](size_t task) {
    const int64_t first = static_cast<int64_t>(task) * kRows;
    cblas_sgemm(CblasRowMajor, a_turned ? CblasTrans : CblasNoTrans,
                b_turned ? CblasTrans : CblasNoTrans,
                static_cast<int>(std::min(kRows, p.rows - first)), static_cast<int>(p.cols),
                static_cast<int>(p.inner), p.factor, p.a + first * (a_turned ? 1 : p.inner),
                static_cast<int>(a_turned ? p.rows : p.inner), p.b,
                static_cast<int>(b_turned ? p.inner : p.cols), p.accumulate ? 1 : 0,
                p.out + first * p.cols, static_cast<int>(p.cols));
  });
}

void HostMath::PeakGradients(int64_t count, int64_t group, float* values) const {
  for (int64_t i = 0; i < count; i += group) PeakGradient({values + i, static_cast<size_t>(group)});
}

void HostMath::Skew(const float* a, int64_t n, float* out) const {
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) out[i * n + j] = a[i * n + j] - a[j * n + i];
  }
}

void HostMath::Combine(float keep, float factor, const float* a, int64_t count, float* out) const {
  constexpr int64_t kTask = 1 << 16;
  ParallelFor(static_cast<size_t>((count + kTask - 1) / kTask), [&](size_t task) {
    const int64_t first = static_cast<int64_t>(task) * kTask;
    for (int64_t i = first; i < std::min(first + kTask, count); ++i) {
      out[i] = (keep == 0 ? 0 : keep * out[i]) + factor * a[i];
    }
  });
}

double HostMath::Length(const float* a, int64_t count) const {
  return std::sqrt(std::inner_product(a, a + count, a, 0.0));
}

}  // namespace nibble
