// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/device_hadamard.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <vector>

#include "base/error.h"

namespace nibble::cuda {
namespace {

constexpr std::array kSteps = {1, 2, 3, 4, 7, 11};

struct Dense {
  int order;
  std::vector<int8_t> h;  // [order, order]
};

// The Kronecker product: one factor instead of two passes over a row.
Dense Merged(const Dense& a, const Dense& b) {
  Dense merged = {.order = a.order * b.order, .h = {}};
  for (int row = 0; row < merged.order; ++row) {
    for (int k = 0; k < merged.order; ++k) {
      const int outer = row / b.order * a.order + k / b.order;
      const int inner = row % b.order * b.order + k % b.order;
      merged.h.push_back(
          static_cast<int8_t>(a.h[static_cast<size_t>(outer)] * b.h[static_cast<size_t>(inner)]));
    }
  }
  return merged;
}

// The dense factors, neighbours merged where the kernels can take it.
std::vector<Dense> DenseFactors(const TransformSpec& spec) {
  std::vector<Dense> factors;
  for (const HadamardFactor& factor : spec.factors) {
    if (factor.kind == HadamardKind::kSylvester) continue;
    if (factor.order > kMaxDenseOrder) Fail("no CUDA kernel for a {}", TransformText(spec));
    const std::span<const int8_t> h = HadamardMatrix(factor);
    Dense dense = {.order = static_cast<int>(factor.order), .h = {h.begin(), h.end()}};
    if (!factors.empty() && factors.back().order * dense.order <= kMaxDenseOrder) {
      factors.back() = Merged(factors.back(), dense);
    } else {
      factors.push_back(std::move(dense));
    }
  }
  if (factors.size() > kMaxDenseFactors) Fail("no CUDA kernel for a {}", TransformText(spec));
  return factors;
}

// DenseFactor::signs.
std::vector<uint32_t> SignWords(const Dense& factor, int k_steps) {
  const int order = factor.order, tiles = (order + 15) / 16, words = (k_steps + 3) / 4;
  std::vector<uint32_t> signs(static_cast<size_t>(tiles * words * 32));
  for (int row = 0; row < order; ++row) {
    for (int k = 0; k < order; ++k) {
      if (factor.h[static_cast<size_t>(row * order + k)] > 0) continue;
      const int lane = row % 8 * 4 + k % 8 / 2, step = k / 16;
      const int j = row % 16 / 8 + 2 * (k % 16 / 8), position = step % 4 * 4 + j;
      const int word = (row / 16 * words + step / 4) * 32 + lane;
      signs[static_cast<size_t>(word)] |= uint32_t{1} << (15 - position + 16 * (k % 2));
    }
  }
  return signs;
}

}  // namespace

void DeviceHadamard::Free::operator()(uint32_t* p) const {
  cudaFree(p);
}

DeviceHadamard::DeviceHadamard(const TransformSpec& spec) {
  if (spec.identity()) return;
  plan_.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec.order())));
  plan_.inner = static_cast<int>(spec.inner);
  for (const HadamardFactor& factor : spec.factors) {
    if (factor.kind == HadamardKind::kSylvester) plan_.sylvester = static_cast<int>(factor.order);
  }
  plan_.segment = plan_.sylvester * plan_.inner;
  std::vector<uint32_t> signs;
  std::vector<size_t> offsets;
  int after = static_cast<int>(spec.order() * spec.inner);
  for (const Dense& dense : DenseFactors(spec)) {
    after /= dense.order;
    const auto smaller =
        std::ranges::count_if(kSteps, [&](int steps) { return 16 * steps < dense.order; });
    const int k_steps = kSteps[static_cast<size_t>(smaller)];
    plan_.dense[plan_.dense_factors++] = {
        .order = dense.order, .after = after, .k_steps = k_steps, .signs = nullptr};
    offsets.push_back(signs.size());
    const std::vector<uint32_t> words = SignWords(dense, k_steps);
    signs.insert(signs.end(), words.begin(), words.end());
  }
  if (signs.empty()) return;
  void* memory = nullptr;
  if (cudaMalloc(&memory, signs.size() * sizeof(uint32_t)) != cudaSuccess ||
      cudaMemcpy(memory, signs.data(), signs.size() * sizeof(uint32_t), cudaMemcpyHostToDevice) !=
          cudaSuccess) {
    Fail("no device memory for the signs of {}", TransformText(spec));
  }
  signs_.reset(static_cast<uint32_t*>(memory));
  for (int i = 0; i < plan_.dense_factors; ++i) plan_.dense[i].signs = signs_.get() + offsets[i];
}

}  // namespace nibble::cuda
