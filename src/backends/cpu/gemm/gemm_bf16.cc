// SPDX-License-Identifier: Apache-2.0
// fp32 products on bf16 matrix tiles. Three terms of x keep fp32's accuracy, and so do three of the
// weights where they are no bf16 themselves. Tasks are (block of tokens) x (panel of 32 outputs).
#include <algorithm>
#include <bit>
#include <cstring>

#include "backends/cpu/gemm/gemm_f32.h"
#include "backends/cpu/gemm/int_kernels.h"
#include "backends/cpu/gemm/tile_ops.h"
#include "base/thread_pool.h"

namespace nibble::cpu {
namespace {

constexpr int64_t kTerms = 3;                  // of a float
constexpr int64_t kStep = 32, kTileRows = 16;  // inputs and rows of a tile
constexpr int64_t kTileValues = kTileRows * kStep;
constexpr int64_t kMaxRows = 256;         // tokens of a task
constexpr int64_t kBlockBytes = 1 << 20;  // of a task's terms of x: they stay in L2

int64_t RoundUp(int64_t value, int64_t step) {
  return (value + step - 1) / step * step;
}

// A tile [outputs, 16 pairs of inputs] as the matrix unit's second operand.
void TurnTile(const uint16_t* tile, int64_t outputs, uint16_t* turned) {
  for (int64_t n = 0; n < outputs; ++n) {
    for (int64_t pair = 0; pair < kStep / 2; ++pair) {
      std::memcpy(turned + (pair * kTileRows + n) * 2, tile + n * kStep + pair * 2, 4);
    }
  }
}

bool IsBf16(const Tensor& weights) {
  if (weights.dtype == DType::kBf16) return true;
  const Matrix<float> values = ToF32(weights);
  return std::all_of(values.data.begin(), values.data.end(),
                     [](float v) { return (std::bit_cast<uint32_t>(v) & 0xFFFF) == 0; });
}

}  // namespace

PanelsBf16 PackBf16(const Tensor& weights) {
  NIBBLE_CHECK(weights.shape.size() == 2, "weights {}", ShapeText(weights.shape));
  PanelsBf16 p{.rows = weights.shape[0], .cols = weights.shape[1]};
  p.terms = IsBf16(weights) ? 1 : kTerms;
  p.padded_cols = RoundUp(p.cols, kStep);
  const int64_t panels = (p.rows + kPanelF32 - 1) / kPanelF32;
  p.data = MakeAlignedBytes(static_cast<size_t>(panels * p.panel_values()) * sizeof(uint16_t));
  ParallelFor(static_cast<size_t>(panels), [&](size_t i) {
    const int64_t first = static_cast<int64_t>(i) * kPanelF32;
    const int64_t count = std::min(kPanelF32, p.rows - first);
    const Matrix<float> rows = ToF32(weights.Rows(first, count));
    Buffer<uint16_t> split;
    const int64_t tiles = p.padded_cols / kStep * p.terms;
    uint16_t* panel = p.values() + static_cast<int64_t>(i) * p.panel_values();
    for (int64_t n = 0; n < count; n += kTileRows, panel += kTileValues) {
      const int64_t outputs = std::min(kTileRows, count - n);
      const uint16_t* tile = split.Grow(tiles * kTileValues);
      amx_split_rows(rows.row(n).data(), outputs, p.cols, p.terms, split.data());
      for (int64_t j = 0; j < tiles; ++j, tile += kTileValues) {
        TurnTile(tile, outputs, panel + 2 * j * kTileValues);
      }
    }
  });
  return p;
}

void GemmBf16(const float* x, int64_t tokens, const PanelsBf16& w, const float* bias, float* y,
              int64_t y_stride, bool accumulate) {
  const int64_t block = kTileRows * w.padded_cols * kTerms;
  const int64_t row_blocks = (tokens + kTileRows - 1) / kTileRows;
  thread_local Buffer<uint16_t> memory;
  uint16_t* split = memory.Grow(row_blocks * block);  // tiles as in Bf16Tile
  ParallelFor(static_cast<size_t>(row_blocks), [&](size_t i) {
    const int64_t row = static_cast<int64_t>(i) * kTileRows;
    amx_split_rows(x + row * w.cols, std::min(kTileRows, tokens - row), w.cols, kTerms,
                   split + static_cast<int64_t>(i) * block);
  });
  const int64_t fit = kBlockBytes / (kTerms * w.padded_cols * 2) / 32 * 32;
  const int64_t rows = std::min(tokens, std::clamp<int64_t>(fit, 32, kMaxRows));
  const int64_t blocks = (tokens + rows - 1) / rows, panels = (w.rows + kPanelF32 - 1) / kPanelF32;
  ParallelFor(static_cast<size_t>(blocks * panels), [&](size_t i) {
    const int64_t first = static_cast<int64_t>(i) / panels * rows;
    const int64_t panel = static_cast<int64_t>(i) % panels, count = std::min(rows, tokens - first);
    alignas(64) float sums[kMaxRows * kPanelF32];
    amx_gemm_bf16({.a = split + first / kTileRows * block,
                   .a_terms = kTerms,
                   .rows = count,
                   .b = w.values() + panel * w.panel_values(),
                   .b_terms = w.terms,
                   .k = w.padded_cols,
                   .c = sums});
    const int64_t output = panel * kPanelF32;
    StoreTile(Isa::kAmx, sums, count, std::min(kPanelF32, w.rows - output),
              bias == nullptr ? nullptr : bias + output, accumulate, y + first * y_stride + output,
              y_stride);
  });
}

}  // namespace nibble::cpu
