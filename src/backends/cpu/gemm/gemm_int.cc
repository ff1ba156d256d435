// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/gemm/gemm_int.h"

#include <algorithm>
#include <vector>

#include "backends/cpu/common/parallel_rows.h"
#include "backends/cpu/gemm/gemm_tasks.h"
#include "base/thread_pool.h"

namespace nibble::cpu {
namespace {

constexpr int64_t kBlockBytes = 3 << 19;  // activations of a GEMM task, of an L2 of 2 MiB
constexpr int64_t kMaxPairs = 8;          // pairs of panels of a GEMM task

// Activation code sums [groups, rows]
template <typename T>
const T* SumGroups(const Activations& acts, const IntPanels& w, Buffer<T>& memory) {
  const int64_t rows = w.sum_rows(acts.tokens);
  T* const sums = memory.Grow(rows * w.groups);
  ParallelRows(rows, w.cols, 1, [&acts, &w, rows, sums](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t g = 0; g < w.groups; ++g) {
        const int8_t* codes = acts.codes + r * acts.stride + g * w.group_cols;
        int32_t sum = 0;
        for (int64_t k = 0; k < w.group_cols; ++k) sum += codes[k];
        sums[g * rows + r] = static_cast<T>(sum);
      }
    }
  });
  return sums;
}

// [tokens, groups] to [groups, tokens]; x may be null.
const float* ByGroup(const float* x, int64_t tokens, int64_t groups, Buffer<float>& memory) {
  if (x == nullptr || tokens == 1 || groups == 1) return x;
  float* const y = memory.Grow(tokens * groups);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t g = 0; g < groups; ++g) y[g * tokens + t] = x[t * groups + g];
  }
  return y;
}

// Memory for the TokenTerms of a product.
struct GroupMemory {
  Buffer<int32_t> sums;
  Buffer<float> exact_sums, scales, zero_offsets;
};

TokenTerms Terms(const Activations& acts, const IntPanels& w, GroupMemory& memory) {
  const int64_t groups = acts.format.groups(acts.width);
  TokenTerms terms = {
      .tokens = acts.tokens,
      .rows = w.sum_rows(acts.tokens),
      .scales = ByGroup(acts.scales, acts.tokens, groups, memory.scales),
      .zero_offsets = ByGroup(acts.zero_offsets, acts.tokens, groups, memory.zero_offsets)};
  if (w.exact()) {
    terms.exact_sums = SumGroups(acts, w, memory.exact_sums);
  } else {
    terms.code_sums = w.groups == 1 ? acts.sums : SumGroups(acts, w, memory.sums);
  }
  return terms;
}

// Codes [rows, stride] as [rows / 16][stride / 64][16][64], the last rows of the last tile as they
// were.
const int8_t* Tiles(const Activations& acts, int64_t rows) {
  if (acts.tiles != nullptr) return acts.tiles;
  thread_local Buffer<int8_t> memory;
  int8_t* tiles = memory.Grow((rows + 15) / 16 * 16 * acts.stride);
  for (int64_t r = 0; r < rows; ++r) {
    StoreTileRow(acts.codes + r * acts.stride, r, acts.stride, tiles);
  }
  return tiles;
}

// Rows of a GEMM task: as many as L2 holds, in blocks of equal height, and small enough that
// every thread gets several tasks. Multiples of 32 (an AMX tile pair), except the last block.
int64_t TaskRows(int64_t rows, const IntPanels& w) {
  const int64_t max = std::clamp(kBlockBytes / w.padded_cols / 32 * 32, int64_t{32}, kMaxTaskRows);
  int64_t blocks = (rows + max - 1) / max;
  while (blocks * w.panels / 2 < 4 * Threads() && blocks * 32 < rows) blocks *= 2;
  return ((rows + blocks - 1) / blocks + 31) / 32 * 32;
}

// Results that no cache holds until they are read need not pass through it.
bool Streams(const Product& p) {
  constexpr int64_t kLarge = 1 << 20;  // floats: two L2s
  return !p.out.accumulate && p.acts.tokens * p.weights.rows >= kLarge && p.out.stride % 16 == 0 &&
         reinterpret_cast<uintptr_t>(p.out.y) % 64 == 0;
}

Product MakeProduct(Isa isa, const Activations& acts, const IntPanels& weights,
                    const Kernel& kernel, const TileOutput& out, GroupMemory& memory) {
  NIBBLE_CHECK(acts.width == weights.cols && acts.format == weights.activations &&
                   acts.stride >= weights.padded_cols && kernel.Runs(weights, acts.tokens),
               "width {} and {}, kernel {}", acts.width, weights.cols, kernel.name);
  const TokenTerms terms = Terms(acts, weights, memory);
  return {.isa = isa,
          .acts = acts,
          .terms = terms,
          .weights = weights,
          .kernel = kernel,
          .out = out,
          .rows = 0,
          .panels = 0,
          .tiles = kernel.tiles ? Tiles(acts, terms.rows) : nullptr};
}

// Panels of one GEMV task where there are `panels` in all.
int64_t TaskPanels(int64_t panels) {
  return std::max<int64_t>(1, panels / (16 * Threads())) * 2;
}

}  // namespace

void GemmInt(Isa isa, const Activations& acts, const IntPanels& weights, const Kernel& kernel,
             float* y, int64_t y_stride, bool accumulate) {
  thread_local GroupMemory memory;
  Product p = MakeProduct(isa, acts, weights, kernel, {y, y_stride, accumulate}, memory);
  // The tasks capture one pointer: std::function then allocates nothing.
  if (kernel.gemv != nullptr) {
    p.panels = TaskPanels(weights.panels);
    const int64_t tasks = (weights.panels + p.panels - 1) / p.panels;
    ParallelFor(static_cast<size_t>(tasks),
                [&p](size_t i) { GemvTask(p, static_cast<int64_t>(i)); });
  } else {
    p.out.stream = Streams(p);
    p.rows = TaskRows(p.terms.rows, weights);
    const int64_t blocks = (p.terms.rows + p.rows - 1) / p.rows, pairs = weights.panels / 2;
    // Few rows: a task is a stream of weights, which should not start anew too often.
    const int64_t max = p.rows <= kFewRows ? 4 * kMaxPairs : kMaxPairs;
    p.panels = 2 * std::clamp<int64_t>(blocks * pairs / (4 * Threads()), 1, max);
    const int64_t tasks = blocks * ((weights.panels + p.panels - 1) / p.panels);
    ParallelFor(static_cast<size_t>(tasks),
                [&p](size_t i) { GemmTask(p, static_cast<int64_t>(i)); });
  }
}

void GemvAll(Isa isa, std::span<const GemvProduct> all) {
  std::vector<GroupMemory> memory(all.size());
  std::vector<Product> products;
  products.reserve(all.size());
  std::vector<int64_t> ends;  // of each product's tasks
  int64_t panels = 0, tasks = 0;
  for (const GemvProduct& one : all) panels += one.weights->panels;
  for (const GemvProduct& one : all) {
    NIBBLE_CHECK(one.kernel->gemv != nullptr);
    products.push_back(MakeProduct(isa, one.acts, *one.weights, *one.kernel,
                                   {one.y, one.weights->rows, false}, memory[products.size()]));
    products.back().panels = TaskPanels(panels);
    tasks += (one.weights->panels + products.back().panels - 1) / products.back().panels;
    ends.push_back(tasks);
  }
  ParallelFor(static_cast<size_t>(tasks), [&](size_t i) {
    const auto task = static_cast<int64_t>(i);
    const auto at = std::ranges::upper_bound(ends, task) - ends.begin();
    GemvTask(products[static_cast<size_t>(at)],
             at == 0 ? task : task - ends[static_cast<size_t>(at) - 1]);
  });
}

}  // namespace nibble::cpu
