// SPDX-License-Identifier: Apache-2.0
// GEMM task: 32 outputs x a block of tokens. Weights become bytes kChunk inputs at a time (16 KiB,
// L1); the block's activations stay in L2; sums live in registers for a chunk and in `acc` between
// chunks. GEMV task: some whole panels, each read once from memory.
#include "backends/cpu/gemm_int.h"

#include <algorithm>
#include <cstring>

#include "backends/cpu/tile_ops.h"
#include "base/thread_pool.h"

namespace nibble::cpu {
namespace {

constexpr int64_t kChunk = 512;           // inputs; 32 outputs of bytes are 16 KiB
constexpr int64_t kMaxRows = 256;         // tokens of a GEMM task
constexpr int64_t kBlockBytes = 1 << 20;  // activations of a GEMM task
constexpr int64_t kGemvGroups = 16;       // groups of one GEMV call

struct Product {
  const Activations& acts;
  const IntPanels& weights;
  const Kernel& kernel;
  const int32_t* code_sums;  // [tokens, groups]
  float* y;
  int64_t y_stride;
  bool accumulate;
  int64_t rows;    // of a GEMM task
  int64_t panels;  // of a GEMV task
};

// Activation code sums per group; the prepared ones where the groups are the same.
const int32_t* CodeSums(const Activations& acts, const IntPanels& w) {
  if (w.per_act_group == 1) return acts.sums;
  thread_local std::vector<int32_t> sums;
  const auto size = static_cast<size_t>(acts.tokens * w.groups);
  if (sums.size() < size) sums.resize(size);
  for (int64_t t = 0; t < acts.tokens; ++t) {
    for (int64_t g = 0; g < w.groups; ++g) {
      const int8_t* codes = acts.codes + t * acts.stride + g * w.group_cols;
      int32_t sum = 0;
      for (int64_t k = 0; k < w.group_cols; ++k) sum += codes[k];
      sums[static_cast<size_t>(t * w.groups + g)] = sum;
    }
  }
  return sums.data();
}

// out (+)= y + bias for two panels
void Store(const Product& p, int64_t panel, int64_t row, int64_t rows, const float* y) {
  const int64_t first = panel * kPanel;
  const int64_t count = std::min(kTileOutputs, p.weights.rows - first);
  const float* bias = p.weights.bias.empty() ? nullptr : p.weights.bias.data() + first;
  for (int64_t r = 0; r < rows; ++r, y += kTileOutputs) {
    float* out = p.y + (row + r) * p.y_stride + first;
    for (int64_t j = 0; j < count; ++j) {
      const float value = bias != nullptr ? y[j] + bias[j] : y[j];
      out[j] = p.accumulate ? out[j] + value : value;
    }
  }
}

void GemvTask(const Product& p, int64_t task) {
  const IntPanels& w = p.weights;
  const int64_t rows = p.acts.tokens;
  const int64_t last = std::min((task + 1) * p.panels, w.panels);
  alignas(64) int32_t acc[kGemvGroups * kMaxGemvTokens * kTileOutputs];
  for (int64_t panel = task * p.panels; panel < last; panel += 2) {
    alignas(64) float y[kMaxGemvTokens * kTileOutputs] = {};
    for (int64_t g = 0; g < w.groups; g += kGemvGroups) {
      const int64_t groups = std::min(kGemvGroups, w.groups - g);
      p.kernel.gemv({.a = p.acts.codes + g * w.group_cols,
                     .a_stride = p.acts.stride,
                     .rows = rows,
                     .b = w.panel(panel) + w.Bytes(g * w.group_cols),
                     .b_stride = w.Bytes(w.padded_cols),
                     .groups = groups,
                     .k = w.group_cols,
                     .c = acc});
      ApplyScales(
          {.panel = panel, .row = 0, .rows = rows, .group = g, .groups = groups, .acc = acc}, w,
          p.acts, p.code_sums, y);
    }
    Store(p, panel, 0, rows, y);
  }
}

// With few tokens a chunk takes longer to arrive than to multiply; the next one is asked for before
// this one is multiplied.
void Prefetch(const IntPanels& w, int64_t panel, int64_t k, int64_t inputs) {
  const int64_t bytes = w.Bytes(std::min(inputs, w.padded_cols - k));
  for (int64_t i = 0; i < bytes; i += 64) {
    __builtin_prefetch(w.panel(panel) + w.Bytes(k) + i, 0, 2);
    __builtin_prefetch(w.panel(panel + 1) + w.Bytes(k) + i, 0, 2);
  }
}

// acc[rows, 32] = sums of one group
void GroupSums(const Product& p, int64_t panel, int64_t row, int64_t rows, int64_t group,
               int32_t* acc) {
  const IntPanels& w = p.weights;
  alignas(64) uint8_t bytes[kTileOutputs * kChunk];
  const int64_t first = group * w.group_cols, last = first + w.group_cols;
  for (int64_t k = first; k < last; k += kChunk) {
    const int64_t inputs = std::min(kChunk, last - k);
    const uint8_t* b = w.panel(panel) + w.Bytes(k);
    int64_t b_stride = w.Bytes(w.padded_cols);
    if (w.bits == 4) {
      UnpackNibbles(b, inputs, bytes);
      UnpackNibbles(b + b_stride, inputs, bytes + inputs * kPanel);
      b = bytes;
      b_stride = inputs * kPanel;
    }
    Prefetch(w, panel, k + inputs, inputs);
    p.kernel.gemm({.a = p.acts.codes + row * p.acts.stride + k,
                   .a_stride = p.acts.stride,
                   .rows = rows,
                   .b = b,
                   .b_stride = b_stride,
                   .k = inputs,
                   .c = acc,
                   .accumulate = k > first});
  }
}

void GemmTask(const Product& p, int64_t task) {
  const IntPanels& w = p.weights;
  const int64_t pairs = w.panels / 2;
  const int64_t row = task / pairs * p.rows, rows = std::min(p.rows, p.acts.tokens - row);
  const int64_t panel = task % pairs * 2;
  alignas(64) int32_t acc[kMaxRows * kTileOutputs];
  alignas(64) float y[kMaxRows * kTileOutputs];
  if (w.groups > 1) std::memset(y, 0, static_cast<size_t>(rows * kTileOutputs) * sizeof(float));
  for (int64_t g = 0; g < w.groups; ++g) {
    GroupSums(p, panel, row, rows, g, acc);
    ApplyScales({.panel = panel, .row = row, .rows = rows, .group = g, .groups = 1, .acc = acc}, w,
                p.acts, p.code_sums, y);
  }
  Store(p, panel, row, rows, y);
}

// Tokens of a GEMM task: as many as L2 holds, in blocks of equal height, and small enough that
// every thread gets several tasks. Multiples of 32 (an AMX tile pair), except the last block.
int64_t TaskRows(int64_t tokens, const IntPanels& w) {
  const int64_t most = std::clamp(kBlockBytes / w.padded_cols / 32 * 32, int64_t{32}, kMaxRows);
  int64_t blocks = (tokens + most - 1) / most;
  while (blocks * w.panels / 2 < 4 * Threads() && blocks * 32 < tokens) blocks *= 2;
  return ((tokens + blocks - 1) / blocks + 31) / 32 * 32;
}

}  // namespace

void GemmInt(const Activations& acts, const IntPanels& weights, const Kernel& kernel, float* y,
             int64_t y_stride, bool accumulate) {
  NIBBLE_CHECK(acts.spec->width == weights.cols && acts.spec->activation == weights.activation &&
                   acts.stride >= weights.padded_cols && kernel.Runs(weights, acts.tokens),
               "width {} and {}, kernel {}", acts.spec->width, weights.cols, kernel.name);
  Product p{.acts = acts,
            .weights = weights,
            .kernel = kernel,
            .code_sums = CodeSums(acts, weights),
            .y = y,
            .y_stride = y_stride,
            .accumulate = accumulate,
            .rows = 0,
            .panels = 0};
  // The tasks capture one pointer: std::function then allocates nothing.
  if (kernel.gemv != nullptr) {
    p.panels = std::max<int64_t>(1, weights.panels / (16 * Threads())) * 2;
    const int64_t tasks = (weights.panels + p.panels - 1) / p.panels;
    ParallelFor(static_cast<size_t>(tasks),
                [&p](size_t i) { GemvTask(p, static_cast<int64_t>(i)); });
  } else {
    p.rows = TaskRows(acts.tokens, weights);
    const int64_t blocks = (acts.tokens + p.rows - 1) / p.rows;
    ParallelFor(static_cast<size_t>(blocks * weights.panels / 2),
                [&p](size_t i) { GemmTask(p, static_cast<int64_t>(i)); });
  }
}

}  // namespace nibble::cpu
