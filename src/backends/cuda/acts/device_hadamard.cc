// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/acts/device_hadamard.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <bit>
#include <complex>
#include <numbers>
#include <optional>
#include <span>
#include <vector>

#include "backends/cuda/acts/fourier.cuh"
#include "backends/cuda/acts/prepare_acts.h"
#include "backends/cuda/runtime/launch.h"
#include "base/error.h"
#include "transforms/fourier.h"

namespace nibble::cuda {
namespace {

constexpr std::array kSteps = {1, 2, 3, 4, 7, 11};

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
// want multiples of 8 columns side by side (hadamard.cuh). With `bits` of 32, all have entries.
std::vector<Dense> DenseFactors(const TransformSpec& spec, int bits) {
  std::vector<Dense> factors;
  int64_t after = spec.order() * spec.inner;
  for (const TransformFactor& factor : spec.factors) {
    after /= factor.order;
    if (factor.kind == FactorKind::kSylvester || factor.kind == FactorKind::kFourier) continue;
    if (factor.order > kMaxDenseOrder) Fail("no CUDA kernel for a {}", TransformText(spec));
    if (!factor.hadamard() || bits == 32) {
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

// The plan but for its tables, which lie one behind the other: roots, phases.
FourierPlan PlanOfFourier(const TransformSpec& spec, std::vector<uint32_t>& tables) {
  const auto is_fourier = [](const TransformFactor& f) { return f.kind == FactorKind::kFourier; };
  if (std::ranges::none_of(spec.factors, is_fourier)) return {};
  const int64_t bytes = 2 * spec.width() * int64_t{sizeof(float)} + kScratchBytes;
  if (spec.factors.size() > 1 || spec.outer > 1 || spec.inner > 1 ||
      bytes > Device::Current().shared_bytes) {
    Fail("this GPU has no kernel for a {}; use --device cpu", TransformText(spec));
  }
  const auto points = static_cast<int>(spec.width() / 2);
  FourierPlan plan = FourierStages(points);
  plan.inverse = spec.factors[0].transposed;
  const auto add = [&](std::complex<double> z) {
    tables.push_back(std::bit_cast<uint32_t>(static_cast<float>(z.real())));
    tables.push_back(std::bit_cast<uint32_t>(static_cast<float>(z.imag())));
  };
  for (int j = 0; j < points; ++j) add(std::polar(1.0, -2 * std::numbers::pi * j / points));
  std::ranges::for_each(FourierPhases(spec.width()), add);
  return plan;
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

// ---- Tiles (TileHadamard) ----

// Shapes that prepare_sm90.cu has, the cheapest first.
struct TileShape {
  int k_steps, blocks, columns;
};
constexpr TileShape kTileShapes[] = {{4, 1, 64},  {4, 2, 64},  {4, 4, 64},  {4, 8, 64},
                                     {11, 1, 64}, {11, 2, 64}, {9, 1, 48},  {4, 1, 160},
                                     {9, 1, 96},  {9, 2, 96},  {10, 1, 160}};

struct TileView {
  TileHadamard tile;  // its pointers are null; order 0: there is no such view
  Dense order, columns;
};

// Axes of a row are dense factors, then the strides of the Sylvester one: `fine` for H_order, then
// blocks, then those of H_columns, at least 8 or, behind its dense factor, all.
struct Split {
  std::vector<Dense> dense;
  int sylvester;

  // H_columns with the first or the last dense factor, or with none: `own` = -1.
  std::optional<TileView> View(const TileShape& shape, int own) const {
    const int last = static_cast<int>(dense.size()) - 1;
    const int strides = own < 0 ? 64 : std::min(sylvester, 8);
    int rest = 1;  // orders of H_order's dense factors
    for (int i = 0; i <= last; ++i) rest *= i == own ? 1 : dense[static_cast<size_t>(i)].order;
    const int columns = (own < 0 ? 1 : dense[static_cast<size_t>(own)].order) * strides;
    const int fine = sylvester / strides / shape.blocks, order = rest * fine;
    const bool whole = strides * shape.blocks * fine == sylvester && order <= 16 * shape.k_steps;
    const bool close = strides >= 8 || own == last;                // eight columns are neighbours
    const bool pays = own < 0 || 2 * order >= 16 * shape.k_steps;  // padding is not most of it
    if (columns != shape.columns || !whole || !close || !pays) return std::nullopt;

    const bool in_front = own >= 0 && own < last;
    TileView view = {.tile = {.order = order,
                              .blocks = shape.blocks,
                              .columns = columns,
                              .k_steps = shape.k_steps,
                              .fine_log2 = std::countr_zero(static_cast<unsigned>(fine)),
                              .row_stride = sylvester * (in_front ? 1 : columns / strides),
                              .fine_stride = shape.blocks * strides,
                              .block_stride = strides,
                              .eight_stride = strides != 8 ? 8 : sylvester * (in_front ? rest : 1)},
                     .order = SylvesterMatrix(1),
                     .columns = SylvesterMatrix(1)};
    for (int i = 0; i <= last; ++i) {
      Dense& of = i == own ? view.columns : view.order;
      of = Merged(of, dense[static_cast<size_t>(i)]);
    }
    view.order = Merged(view.order, SylvesterMatrix(fine));
    view.columns = Merged(view.columns, SylvesterMatrix(strides));
    return view;
  }
};

TileView ViewAsTiles(const TransformSpec& spec) {
  if (spec.outer != 1 || spec.inner != 1) return {};
  Split split = {.dense = {}, .sylvester = 1};
  for (const TransformFactor& factor : spec.factors) {
    if (!factor.hadamard()) return {};
    if (factor.kind == FactorKind::kSylvester) {
      split.sylvester = static_cast<int>(factor.order);
    } else {
      const std::span<const int8_t> h = HadamardMatrix(factor);
      split.dense.push_back({.order = static_cast<int>(factor.order), .h = {h.begin(), h.end()}});
    }
  }
  const int last = static_cast<int>(split.dense.size()) - 1;
  for (const TileShape& shape : kTileShapes) {
    for (const int own : {-1, last, 0}) {
      const auto view = own <= last ? split.View(shape, own) : std::nullopt;
      if (view) return *view;
    }
  }
  return {};
}

// TileHadamard::matrix: words of two fp16.
std::vector<uint32_t> ColumnWords(const Dense& columns) {
  const int padded = PaddedColumns(columns.order), width = OperandWidth(columns.order);
  const int g = padded == 64 ? 8 : 4;
  std::vector<uint32_t> words(static_cast<size_t>(padded * padded / 2));
  for (int k = 0; k < columns.order; ++k) {
    for (int to = 0; to < padded; ++to) {
      const int j = to / 8, q = to % 8 / 2, e = to % 2;
      const int output = 8 * g * (j / g) + 2 * g * q + 2 * (j % g) + e;
      if (output >= columns.order) continue;
      const bool plus = columns.h[static_cast<size_t>(output * columns.order + k)] > 0;
      const auto place = static_cast<int>(OperandPlace(width, k, to % width / 8));
      const int at = (to / width * padded + k) * width + place + to % 8;
      words[static_cast<size_t>(at / 2)] |= (plus ? 0x3C00U : 0xBC00U) << (16 * e);
    }
  }
  return words;
}

}  // namespace

void DeviceHadamard::Free::operator()(uint32_t* p) const {
  cudaFree(p);
}

DeviceHadamard::DeviceHadamard(const TransformSpec& spec, int bits) {
  if (spec.identity()) return;
  plan_.halves = bits == 16;
  plan_.scale = static_cast<float>(spec.scale());
  plan_.inner = static_cast<int>(spec.inner);
  for (const TransformFactor& factor : spec.factors) {
    if (factor.kind == FactorKind::kSylvester) plan_.sylvester = static_cast<int>(factor.order);
  }
  plan_.segment = plan_.sylvester * plan_.inner;
  std::vector<uint32_t> signs;
  std::vector<size_t> offsets;
  const auto add = [&](const std::vector<uint32_t>& words) {
    signs.resize((signs.size() + 3) / 4 * 4);  // 16 bytes
    offsets.push_back(signs.size());
    signs.insert(signs.end(), words.begin(), words.end());
  };
  plan_.fourier = PlanOfFourier(spec, signs);
  int after = static_cast<int>(spec.order() * spec.inner);
  const std::vector<Dense> factors = DenseFactors(spec, bits);
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
    add(SignWords(dense, k_steps, (dense.order + 15) / 16));
  }
  const TileView view = bits == 32 ? TileView() : ViewAsTiles(spec);
  if (view.tile.order > 0) {
    plan_.tile = view.tile;
    add(SignWords(view.order, view.tile.k_steps, (view.tile.k_steps + 3) / 4 * 4));
    add(ColumnWords(view.columns));
  }
  if (signs.empty()) return;
  void* memory = nullptr;
  if (cudaMalloc(&memory, signs.size() * sizeof(uint32_t)) != cudaSuccess ||
      cudaMemcpy(memory, signs.data(), signs.size() * sizeof(uint32_t), cudaMemcpyHostToDevice) !=
          cudaSuccess) {
    Fail("no device memory for the signs of {}", TransformText(spec));
  }
  signs_.reset(static_cast<uint32_t*>(memory));
  if (plan_.fourier.points > 0) {
    plan_.fourier.roots = reinterpret_cast<const float2*>(signs_.get());
    plan_.fourier.phases = plan_.fourier.roots + plan_.fourier.points;
  }
  for (int i = 0; i < plan_.dense_factors; ++i) {
    const uint32_t* const words = signs_.get() + offsets[i];
    if (factors[i].h.empty()) plan_.dense[i].entries = reinterpret_cast<const float*>(words);
    if (!factors[i].h.empty()) plan_.dense[i].signs = words;
  }
  if (view.tile.order == 0) return;
  plan_.tile.signs = signs_.get() + offsets[offsets.size() - 2];
  plan_.tile.matrix = reinterpret_cast<const uint4*>(signs_.get() + offsets.back());
}

}  // namespace nibble::cuda
