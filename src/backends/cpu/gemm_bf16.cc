// SPDX-License-Identifier: Apache-2.0
// fp32 products on bf16 matrix tiles. A float is cut into terms of 8 bits each, so three products
// of terms keep fp32's accuracy where the weights are bf16 themselves (three terms of x), and
// 2^-16 of each factor where they are not (two terms of each; the product of the second ones is
// below that). Tasks are (block of tokens) x (panel of 32 outputs).
#include <algorithm>
#include <bit>
#include <cstring>

#include "backends/cpu/int_kernels.h"
#include "backends/cpu/ops.h"
#include "backends/cpu/tile_ops.h"
#include "base/half.h"
#include "base/thread_pool.h"

namespace nibble::cpu {
namespace {

constexpr int64_t kStep = 32;             // inputs of a tile
constexpr int64_t kTileValues = 16 * 32;  // bf16 values of a tile
constexpr int64_t kMaxRows = 256;         // tokens of a task
constexpr int64_t kBlockBytes = 1 << 20;  // of a task's terms of x: they stay in L2

int64_t RoundUp(int64_t value, int64_t step) {
  return (value + step - 1) / step * step;
}

// The upper half of the bits; what is left over is exact in fp32.
uint16_t Cut(float& x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  x -= std::bit_cast<float>(bits & 0xFFFF0000u);
  return static_cast<uint16_t>(bits >> 16);
}

// x [count] to `terms` planes; the last one is rounded.
void SplitRow(const float* x, int64_t count, int64_t terms, int64_t plane, uint16_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    float rest = x[i];
    for (int64_t t = 0; t + 1 < terms; ++t) out[t * plane + i] = Cut(rest);
    out[(terms - 1) * plane + i] = Bf16FromF32(rest);
  }
}

bool IsBf16(const TensorView& weights) {
  if (weights.dtype == DType::kBf16) return true;
  const Matrix<float> values = ToF32(weights);
  return std::all_of(values.data.begin(), values.data.end(),
                     [](float v) { return (std::bit_cast<uint32_t>(v) & 0xFFFF) == 0; });
}

}  // namespace

PanelsBf16 PackBf16(const TensorView& weights) {
  NIBBLE_CHECK(weights.shape.size() == 2, "weights {}", ShapeText(weights.shape));
  PanelsBf16 p{.rows = weights.shape[0], .cols = weights.shape[1]};
  p.terms = IsBf16(weights) ? 1 : 2;
  p.padded_cols = RoundUp(p.cols, kStep);
  const int64_t panels = (p.rows + kPanelF32 - 1) / kPanelF32;
  p.data = MakeAlignedBytes(static_cast<size_t>(panels * p.panel_values()) * sizeof(uint16_t));
  const int64_t row_bytes = p.cols * static_cast<int64_t>(DTypeBytes(weights.dtype));
  ParallelFor(static_cast<size_t>(panels), [&](size_t i) {
    const int64_t first = static_cast<int64_t>(i) * kPanelF32;
    const int64_t count = std::min(kPanelF32, p.rows - first);
    const Matrix<float> rows =
        ToF32({weights.dtype, {count, p.cols}, weights.data + first * row_bytes});
    std::vector<uint16_t> terms(static_cast<size_t>(p.terms * p.cols));
    uint16_t* panel = p.values() + static_cast<int64_t>(i) * p.panel_values();
    for (int64_t n = 0; n < count; ++n) {
      SplitRow(rows.row(n).data(), p.cols, p.terms, p.cols, terms.data());
      for (int64_t t = 0; t < p.terms; ++t) {
        for (int64_t k = 0; k < p.cols; ++k) {
          const int64_t tile = (k / kStep * p.terms + t) * 2 + n / 16;
          panel[tile * kTileValues + k % kStep / 2 * 32 + n % 16 * 2 + k % 2] =
              terms[static_cast<size_t>(t * p.cols + k)];
        }
      }
    }
  });
  return p;
}

void GemmBf16(const float* x, int64_t tokens, const PanelsBf16& w, const float* bias, float* y,
              int64_t y_stride, bool accumulate) {
  const int64_t terms = w.terms == 1 ? 3 : 2, plane = tokens * w.padded_cols;
  thread_local Buffer<uint16_t> memory;
  uint16_t* split = memory.Grow(terms * plane);  // [terms][tokens][padded_cols]
  ParallelFor(static_cast<size_t>(tokens), [&](size_t i) {
    uint16_t* row = split + static_cast<int64_t>(i) * w.padded_cols;
    SplitRow(x + static_cast<int64_t>(i) * w.cols, w.cols, terms, plane, row);
    for (int64_t t = 0; t < terms; ++t) {
      std::fill(row + t * plane + w.cols, row + t * plane + w.padded_cols, uint16_t{0});
    }
  });
  const int64_t fit = kBlockBytes / (terms * w.padded_cols * 2) / 32 * 32;
  const int64_t rows = std::min(tokens, std::clamp<int64_t>(fit, 32, kMaxRows));
  const int64_t blocks = (tokens + rows - 1) / rows, panels = (w.rows + kPanelF32 - 1) / kPanelF32;
  ParallelFor(static_cast<size_t>(blocks * panels), [&](size_t i) {
    const int64_t first = static_cast<int64_t>(i) / panels * rows;
    const int64_t panel = static_cast<int64_t>(i) % panels, count = std::min(rows, tokens - first);
    alignas(64) float sums[kMaxRows * kPanelF32];
    amx_gemm_bf16({.a = split + first * w.padded_cols,
                   .a_stride = w.padded_cols,
                   .a_term = plane,
                   .rows = count,
                   .b = w.values() + panel * w.panel_values(),
                   .b_terms = w.terms,
                   .k = w.padded_cols,
                   .c = sums});
    const int64_t output = panel * kPanelF32;
    StoreTile(sums, count, std::min(kPanelF32, w.rows - output),
              bias == nullptr ? nullptr : bias + output, accumulate, y + first * y_stride + output,
              y_stride);
  });
}

}  // namespace nibble::cpu
