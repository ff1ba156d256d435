// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/acts/device_hadamard.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <vector>

#include "base/error.h"

namespace nibble::cuda {
namespace {

constexpr std::array kSteps = {1, 2, 3, 4, 7, 11};
constexpr std::array kTileSteps = {4, 11};

struct Dense {
  int order;
  std::vector<int8_t> h;            // [order, order], +-1, or empty:
  std::vector<float> entries = {};  // DenseFactor::entries
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

// The dense factors, neighbours merged where the kernels can take it and gain by it: tensor cores
// want multiples of 8 columns side by side (hadamard.cuh).
std::vector<Dense> DenseFactors(const TransformSpec& spec) {
  std::vector<Dense> factors;
  int64_t after = spec.order() * spec.inner;
  for (const TransformFactor& factor : spec.factors) {
    after /= factor.order;
    if (factor.kind == FactorKind::kSylvester) continue;
    if (factor.order > kMaxDenseOrder) Fail("no CUDA kernel for a {}", TransformText(spec));
    if (!factor.hadamard()) {
      TransformFactor turned = factor;
      turned.transposed = !factor.transposed;
      const std::span<const double> columns = FactorMatrix(turned);
      factors.push_back({.order = static_cast<int>(factor.order),
                         .h = {},
                         .entries = {columns.begin(), columns.end()}});
      continue;
    }
    const std::span<const int8_t> h = HadamardMatrix(factor);
    Dense dense = {.order = static_cast<int>(factor.order), .h = {h.begin(), h.end()}};
    const bool behind_signs = !factors.empty() && factors.back().entries.empty();
    if (behind_signs && after % 8 == 0 && factors.back().order * dense.order <= kMaxDenseOrder) {
      factors.back() = Merged(factors.back(), dense);
    } else {
      factors.push_back(std::move(dense));
    }
  }
  if (factors.size() > kMaxDenseFactors) Fail("no CUDA kernel for a {}", TransformText(spec));
  return factors;
}

Dense SylvesterMatrix(int order) {
  Dense matrix = {.order = 1, .h = {1}};
  while (matrix.order < order) matrix = Merged(matrix, {.order = 2, .h = {1, 1, 1, -1}});
  return matrix;
}

// DenseFactor::signs, of `tiles` times 16 rows.
std::vector<uint32_t> SignWords(const Dense& factor, int k_steps, int tiles) {
  const int order = factor.order, words = (k_steps + 3) / 4;
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

// The dense matrix of a TileHadamard and the rest of it, or no blocks.
struct TileView {
  Dense dense;
  int blocks = 0;
};

TileView ViewAsTiles(const TransformSpec& spec, const std::vector<Dense>& factors, int sylvester) {
  if (spec.outer != 1 || spec.inner != 1 || factors.size() > 1) return {};
  const Dense one = {.order = 1, .h = {1}};
  const Dense& dense = factors.empty() ? one : factors[0];
  if (dense.h.empty()) return {};
  int strides = 1;  // of the Sylvester factor that go into the dense matrix
  while (dense.order * strides * 2 <= 16 * kTileSteps[0] && sylvester >= strides * 2 * 64) {
    strides *= 2;
  }
  const int blocks = sylvester / strides / 64, order = dense.order * strides;
  const int max = order > 16 * kTileSteps[0] ? 2 : 8;
  if (blocks < 1 || blocks > max || order > 16 * kTileSteps[1]) return {};
  return {.dense = Merged(dense, SylvesterMatrix(strides)), .blocks = blocks};
}

}  // namespace

void DeviceHadamard::Free::operator()(uint32_t* p) const {
  cudaFree(p);
}

DeviceHadamard::DeviceHadamard(const TransformSpec& spec) {
  if (spec.identity()) return;
  plan_.scale = static_cast<float>(spec.scale());
  plan_.inner = static_cast<int>(spec.inner);
  for (const TransformFactor& factor : spec.factors) {
    if (factor.kind == FactorKind::kSylvester) plan_.sylvester = static_cast<int>(factor.order);
  }
  plan_.segment = plan_.sylvester * plan_.inner;
  std::vector<uint32_t> signs;
  std::vector<size_t> offsets;
  const auto add = [&](const Dense& dense, int k_steps, int tiles) {
    offsets.push_back(signs.size());
    const std::vector<uint32_t> words = SignWords(dense, k_steps, tiles);
    signs.insert(signs.end(), words.begin(), words.end());
  };
  int after = static_cast<int>(spec.order() * spec.inner);
  const std::vector<Dense> factors = DenseFactors(spec);
  for (const Dense& dense : factors) {
    after /= dense.order;
    if (dense.h.empty()) {
      offsets.push_back(signs.size());
      for (const float entry : dense.entries) signs.push_back(std::bit_cast<uint32_t>(entry));
      plan_.dense[plan_.dense_factors++] = {.order = dense.order, .after = after, .k_steps = 1};
      continue;
    }
    const auto smaller =
        std::ranges::count_if(kSteps, [&](int steps) { return 16 * steps < dense.order; });
    const int k_steps = kSteps[static_cast<size_t>(smaller)];
    plan_.dense[plan_.dense_factors++] = {
        .order = dense.order, .after = after, .k_steps = k_steps, .signs = nullptr};
    add(dense, k_steps, (dense.order + 15) / 16);
  }
  const TileView view = ViewAsTiles(spec, factors, plan_.sylvester);
  if (view.blocks > 0) {
    const int k_steps = kTileSteps[view.dense.order > 16 * kTileSteps[0] ? 1 : 0];
    plan_.tile = {.order = view.dense.order, .blocks = view.blocks, .k_steps = k_steps};
    add(view.dense, k_steps, (k_steps + 3) / 4 * 4);
  }
  if (signs.empty()) return;
  void* memory = nullptr;
  if (cudaMalloc(&memory, signs.size() * sizeof(uint32_t)) != cudaSuccess ||
      cudaMemcpy(memory, signs.data(), signs.size() * sizeof(uint32_t), cudaMemcpyHostToDevice) !=
          cudaSuccess) {
    Fail("no device memory for the signs of {}", TransformText(spec));
  }
  signs_.reset(static_cast<uint32_t*>(memory));
  for (int i = 0; i < plan_.dense_factors; ++i) {
    const uint32_t* const words = signs_.get() + offsets[i];
    if (factors[i].h.empty()) plan_.dense[i].entries = reinterpret_cast<const float*>(words);
    if (!factors[i].h.empty()) plan_.dense[i].signs = words;
  }
  if (view.blocks > 0) plan_.tile.signs = signs_.get() + offsets.back();
}

}  // namespace nibble::cuda
