// SPDX-License-Identifier: Apache-2.0
// Tasks are (block of kBlockRows tokens) x (group of panels). K runs in blocks of kBlockK: rows of
// x are copied together (the caller's may lie a power of two apart and evict each other), then
// every panel's slice meets every register tile while in cache. Sums stay in `sums` between K
// blocks, bit-exactly (gemm_tile.inl.h).
#include "backends/cpu/gemm/gemm_f32.h"

#include <algorithm>
#include <cstring>

#include "backends/cpu/common/dispatch.h"
#include "backends/cpu/common/workspace.h"
#include "backends/cpu/gemm/tile_ops.h"
#include "base/thread_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/gemm/gemm_f32.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

#include "backends/cpu/gemm/gemm_tile.inl.h"

#ifndef NIBBLE_BACKENDS_CPU_GEMM_F32_TYPES_
#define NIBBLE_BACKENDS_CPU_GEMM_F32_TYPES_
namespace nibble::cpu {
namespace {

constexpr int64_t kBlockRows = 96;  // x block 200 KiB + a panel's slice 64 KiB: within L2
constexpr int64_t kBlockK = 512;
constexpr int64_t kStrideX = kBlockK + 16;  // an odd number of cache lines
constexpr int64_t kMaxGroup = 16;           // panels

struct GemmWorkspace {
  alignas(64) float x[kBlockRows * kStrideX];
  alignas(64) float sums[kMaxGroup * kBlockRows * kPanelF32];  // [panel][row][32]
};

struct GemmCall {
  Isa isa;
  const float* x;
  int64_t tokens;
  const PanelsF32& weights;
  const float* bias;
  float* y;
  int64_t y_stride;
  bool accumulate;
  int64_t group;  // panels of a task
};

}  // namespace
}  // namespace nibble::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace nibble::cpu {
namespace HWY_NAMESPACE {
namespace {

void GemmTask(const GemmCall& call, int64_t row_block, int64_t panel_group, GemmWorkspace& work) {
  const int64_t depth = call.weights.cols;
  const int64_t first_row = row_block * kBlockRows;
  const int64_t rows = std::min(kBlockRows, call.tokens - first_row);
  const int64_t panels = (call.weights.rows + kPanelF32 - 1) / kPanelF32;
  const int64_t first_panel = panel_group * call.group;
  const int64_t last_panel = std::min(panels, first_panel + call.group);
  const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  for (int64_t k = 0; k < depth; k += kBlockK) {
    const int64_t block = std::min(kBlockK, depth - k);
    for (int64_t r = 0; r < rows; ++r) {
      std::memcpy(work.x + r * kStrideX, call.x + (first_row + r) * depth + k,
                  static_cast<size_t>(block) * sizeof(float));
    }
    for (int64_t panel = first_panel; panel < last_panel; ++panel) {
      float* sums = work.sums + (panel - first_panel) * kBlockRows * kPanelF32;
      for (int64_t tile = 0; tile < tiles; ++tile) {  // heights that differ by at most one row
        const int64_t begin = rows * tile / tiles, end = rows * (tile + 1) / tiles;
        MultiplyTile<kStrideX>(end - begin,
                               {.a = work.x + begin * kStrideX,
                                .b = call.weights.data.data() + (panel * depth + k) * kPanelF32,
                                .b_stride = kPanelF32,
                                .depth = block,
                                .c = sums + begin * kPanelF32,
                                .c_stride = kPanelF32,
                                .cols = kPanelF32,
                                .resume = k > 0});
      }
      if (k + block < depth) continue;
      const int64_t output = panel * kPanelF32;
      StoreTile(call.isa, sums, rows, std::min(kPanelF32, call.weights.rows - output),
                call.bias == nullptr ? nullptr : call.bias + output, call.accumulate,
                call.y + first_row * call.y_stride + output, call.y_stride);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace nibble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::cpu {
HWY_EXPORT(GemmTask);

PanelsF32 PackF32(const Tensor& weights) {
  NIBBLE_CHECK(weights.shape.size() == 2, "weights {}", ShapeText(weights.shape));
  PanelsF32 packed{.rows = weights.shape[0], .cols = weights.shape[1], .data = {}};
  const int64_t cols = packed.cols;
  const int64_t panels = (packed.rows + kPanelF32 - 1) / kPanelF32;
  packed.data.resize(static_cast<size_t>(panels * cols * kPanelF32));
  ParallelFor(static_cast<size_t>(panels), [&](size_t p) {
    const int64_t first = static_cast<int64_t>(p) * kPanelF32;
    const int64_t count = std::min(kPanelF32, packed.rows - first);
    const Matrix<float> rows = ToF32(weights.Rows(first, count));
    float* panel = packed.data.data() + first * cols;
    for (int64_t k = 0; k < cols; ++k) {
      for (int64_t n = 0; n < count; ++n) panel[k * kPanelF32 + n] = rows.data[n * cols + k];
    }
  });
  return packed;
}

PanelsF32 PackF32(const Matrix<float>& weights) {
  return PackF32(Tensor{.dtype = DType::kF32,
                        .shape = {weights.rows, weights.cols},
                        .data = reinterpret_cast<const std::byte*>(weights.data.data())});
}

void GemmF32(Isa isa, const float* x, int64_t tokens, const PanelsF32& weights, const float* bias,
             float* y, int64_t y_stride, bool accumulate) {
  const int64_t row_blocks = (tokens + kBlockRows - 1) / kBlockRows;
  const int64_t panels = (weights.rows + kPanelF32 - 1) / kPanelF32;
  // About eight tasks a thread where there is work for them, else large groups that reuse x.
  const int64_t group =
      std::clamp<int64_t>(row_blocks * panels / (8 * Threads()), 1, std::min(kMaxGroup, panels));
  const int64_t groups = (panels + group - 1) / group;
  const GemmCall call{.isa = isa,
                      .x = x,
                      .tokens = tokens,
                      .weights = weights,
                      .bias = bias,
                      .y = y,
                      .y_stride = y_stride,
                      .accumulate = accumulate,
                      .group = group};
  ParallelFor(static_cast<size_t>(row_blocks * groups), [&](size_t i) {
    static thread_local const auto work = MakeWorkspace<GemmWorkspace>();
    const auto task = static_cast<int64_t>(i);
    NIBBLE_DISPATCH(isa, GemmTask)(call, task / groups, task % groups, work[0]);
  });
}

}  // namespace nibble::cpu
#endif  // HWY_ONCE
