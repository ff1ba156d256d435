// SPDX-License-Identifier: Apache-2.0
// GEMM task: some pairs of panels x a block of rows (tokens, or their planes). Weights become bytes
// kChunk inputs at a time (16 KiB, L1), one chunk ahead of the products; the block's activations
// stay in L2; sums live in registers for a chunk and in `acc` between chunks. GEMV task: some whole
// panels, each read once from memory.
#include "backends/cpu/gemm/gemm_int.h"

#include <hwy/cache_control.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "backends/cpu/gemm/tile_ops.h"
#include "backends/cpu/ops.h"
#include "backends/cpu/parallel_rows.h"
#include "base/thread_pool.h"

namespace nibble::cpu {
namespace {

constexpr int64_t kChunk = 512;           // inputs; 32 outputs of bytes are 16 KiB
constexpr int64_t kMaxRows = 256;         // of a GEMM task
constexpr int64_t kBlockBytes = 3 << 19;  // activations of a GEMM task, of an L2 of 2 MiB
constexpr int64_t kMaxPairs = 8;          // pairs of panels of a GEMM task
constexpr int64_t kGemvGroups = 16;       // groups of one GEMV call, fewer of many rows
constexpr int64_t kGemvSums = 192;        // groups times rows, of kTileOutputs each: half of L1
constexpr int64_t kTileBlock = 32;        // rows of a matrix unit's call
constexpr int64_t kBlock = 96;            // and of another: its sums stay in L1
constexpr int64_t kChunkGroups = 2;       // of a chunk, at most
constexpr int64_t kFewRows = 64;          // up to which weights are prefetched

struct Product {
  Isa isa;
  const Activations& acts;
  const IntPanels& weights;
  const Kernel& kernel;
  int64_t all_rows;          // of codes
  const int32_t* code_sums;  // [groups, all_rows], or
  const float* exact_sums;   // the same as floats; the other is null
  TileOutput out;
  int64_t rows;         // of a GEMM task
  int64_t panels;       // of a task, even
  const int8_t* tiles;  // activations for a matrix unit, or null
};

// Activation code sums [groups, rows]
template <typename T>
void SumGroups(const Activations& acts, const IntPanels& w, T* sums) {
  const int64_t rows = w.sum_rows(acts.tokens);
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
}

// Of Product's sums, where activations do not come with them.
struct SumMemory {
  Buffer<int32_t> ints;
  Buffer<float> floats;
};

// Asks for the scales of groups [group, group + groups) of two panels, which the epilogue of the
// next call reads: they arrive while it multiplies.
void PrefetchScales(const IntPanels& w, int64_t panel, int64_t group, int64_t groups) {
  const int64_t first = group / w.per_weight_group;
  const int64_t last = (group + groups - 1) / w.per_weight_group;
  for (int64_t p = panel; p < panel + 2; ++p) {
    for (int64_t g = first; g <= last; ++g) {
      const int64_t at = (p * w.weight_groups() + g) * kPanel;
      if (!w.half_scales.empty()) __builtin_prefetch(w.half_scales.data() + at);
      if (!w.offsets.empty()) __builtin_prefetch(w.offsets.data() + at);
    }
  }
}

void GemvTask(const Product& p, int64_t task) {
  const IntPanels& w = p.weights;
  const int64_t rows = p.all_rows;
  const int64_t last = std::min((task + 1) * p.panels, w.panels);
  const int64_t most = std::clamp<int64_t>(kGemvSums / rows, 1, kGemvGroups);
  alignas(64) int32_t acc[std::max(kGemvSums, kMaxGemvTokens) * kTileOutputs];
  for (int64_t panel = task * p.panels; panel < last; panel += 2) {
    alignas(64) float partial[kMaxGemvTokens * kTileOutputs];
    for (int64_t g = 0; g < w.groups; g += most) {
      const int64_t groups = std::min(most, w.groups - g);
      PrefetchScales(w, panel, g, groups);
      p.kernel.gemv({.a = p.acts.codes + g * w.group_cols,
                     .a_stride = p.acts.stride,
                     .rows = rows,
                     .b = w.panel(panel) + w.Bytes(g * w.group_cols),
                     .b_stride = w.Bytes(w.padded_cols),
                     .groups = groups,
                     .k = w.group_cols,
                     .c = acc,
                     .steps = w.second_level() ? w.panel_steps(panel) : nullptr,
                     .steps_stride = w.second_level() ? w.step_groups() * kPanel : 0,
                     .step_cols = w.step_cols,
                     .words = &LatticeCode::Words()});
      ApplyScales(p.isa,
                  {.panel = panel,
                   .row = 0,
                   .rows = rows,
                   .group = g,
                   .groups = groups,
                   .acc = acc,
                   .code_sums = p.code_sums,
                   .exact_sums = p.exact_sums,
                   .code_rows = rows},
                  w, p.acts, partial, p.out);
    }
  }
}

// Inputs [first, first + inputs) of two panels, inside one group, or some groups.
struct Chunk {
  int64_t panel, first, inputs;
};

// A GEMM task walks over its panels chunk by chunk.
class GemmWalk {
 public:
  GemmWalk(const Product& p, int64_t task)
      : p_(p), w_(p.weights), tasks_((w_.panels + p.panels - 1) / p.panels) {
    row_ = task / tasks_ * p.rows;
    rows_ = std::min(p.rows, p.all_rows - row_);
    first_panel_ = task % tasks_ * p.panels;
    last_panel_ = std::min(first_panel_ + p.panels, w_.panels);
  }

  void Run() {
    Chunk chunk{first_panel_, 0, Inputs(0)};
    if (!w_.bytes()) Unpack(chunk, 0);
    if (p_.kernel.tiles) amx_begin();
    for (int turn = 0; chunk.inputs > 0; turn = 1 - turn) {
      const Chunk next = Next(chunk);
      if (rows_ <= kFewRows && !UnpacksAhead()) Prefetch(w_.bytes() ? next : Next(next));
      if (!w_.bytes() && !UnpacksAhead() && next.inputs > 0) Unpack(next, 1 - turn);
      Multiply(chunk, next, turn);
      chunk = next;
    }
    if (p_.kernel.tiles) amx_end();
    if (p_.out.stream) hwy::FlushStream();
  }

 private:
  // What is not nibbles is unpacked by itself: a matrix unit's call knows no steps, points or
  // floats.
  bool UnpacksAhead() const { return w_.bits == 4 && p_.kernel.tiles && w_.form() == Form::kCodes; }

  // No inputs: the end.
  Chunk Next(Chunk c) const {
    if (c.inputs == 0) return c;
    c.first += c.inputs;
    if (c.first == w_.groups * w_.group_cols) c = {c.panel + 2, 0, 0};
    c.inputs = c.panel < last_panel_ ? Inputs(c.first) : 0;
    return c;
  }

  // Of the chunk that begins there.
  int64_t Inputs(int64_t first) const {
    const int64_t groups = std::clamp<int64_t>(kChunk / w_.group_cols, 1, kChunkGroups);
    const int64_t group = first / w_.group_cols;
    return std::min(kChunk, std::min(group + groups, w_.groups) * w_.group_cols - first);
  }

  const uint8_t* Stored(const Chunk& c) const { return w_.panel(c.panel) + w_.Bytes(c.first); }

  // With few tokens a chunk takes longer to arrive than to multiply; with many, prefetching costs
  // more than it gains.
  void Prefetch(const Chunk& c) const {
    const int64_t stride = w_.Bytes(w_.padded_cols);
    for (int64_t i = 0; i < w_.Bytes(c.inputs); i += 64) {
      __builtin_prefetch(Stored(c) + i, 0, 2);
      __builtin_prefetch(Stored(c) + stride + i, 0, 2);
    }
  }

  // What the epilogue will add to: another core may have written it.
  void PrefetchOutputs(int64_t panel, int64_t row, int64_t rows) const {
    const int64_t step = w_.sum_rows(1);
    for (int64_t t = row / step; t < (row + rows) / step; ++t) {
      const float* y = p_.out.y + t * p_.out.stride + panel * kPanel;
      __builtin_prefetch(y, 1, 2);
      __builtin_prefetch(y + kPanel, 1, 2);
    }
  }

  void Unpack(const Chunk& c, int turn) {
    const uint8_t* const second = Stored(c) + w_.Bytes(w_.padded_cols);
    uint8_t* const bytes = bytes_[turn];
    uint8_t* const second_bytes = bytes + c.inputs * kPanel;
    if (w_.form() == Form::kCodes || w_.form() == Form::kFloats) {
      const bool floats = w_.form() == Form::kFloats;
      UnpackNibbles(p_.isa, Stored(c), c.inputs, floats, bytes);
      UnpackNibbles(p_.isa, second, c.inputs, floats, second_bytes);
    } else if (w_.form() == Form::kPoints) {
      UnpackPoints(p_.isa, Stored(c), c.inputs, w_.bits, bytes);
      UnpackPoints(p_.isa, second, c.inputs, w_.bits, second_bytes);
    } else {
      UnpackLevels(p_.isa, Stored(c), c.first, c.inputs, w_.panel_steps(c.panel), w_.step_cols,
                   bytes);
      UnpackLevels(p_.isa, second, c.first, c.inputs, w_.panel_steps(c.panel + 1), w_.step_cols,
                   second_bytes);
    }
  }

  // A matrix unit's share of unpacking `next` in one of its calls for a chunk.
  UnpackAhead Ahead(const Chunk& next, int turn, int64_t call, int64_t calls) {
    if (!UnpacksAhead() || next.inputs == 0) return {};
    const int64_t lines = next.inputs / 8;
    const int64_t first = lines * call / calls, last = lines * (call + 1) / calls;
    return {.nibbles = Stored(next) + first * 64,
            .nibble_stride = w_.Bytes(w_.padded_cols),
            .bytes = bytes_[1 - turn] + first * 128,
            .byte_stride = next.inputs * kPanel,
            .lines = last - first};
  }

  void Multiply(const Chunk& chunk, const Chunk& next, int turn) {
    const int64_t group = chunk.first / w_.group_cols;
    const int64_t groups = std::max<int64_t>(chunk.inputs / w_.group_cols, 1);
    const bool starts = chunk.first == group * w_.group_cols;
    const bool ends = chunk.first + chunk.inputs == (group + groups) * w_.group_cols;
    const int64_t block = p_.kernel.tiles ? kTileBlock : kBlock;
    const int64_t blocks = (rows_ + block - 1) / block;
    for (int64_t i = 0; i < blocks; ++i) {
      const int64_t r = i * block, count = std::min(block, rows_ - r);
      // Sums that end here need not stay.
      int32_t* const acc = acc_ + (starts && ends ? 0 : r * kTileOutputs);
      if (chunk.first == 0 && p_.out.accumulate) PrefetchOutputs(chunk.panel, row_ + r, count);
      for (int64_t g = 0; g < groups; ++g) {
        GemmTile tile = Place(chunk, turn, r, g * w_.group_cols);
        tile.rows = count;
        tile.k = std::min(chunk.inputs, w_.group_cols);
        tile.c = acc + g * count * kTileOutputs;
        tile.accumulate = !starts;
        tile.ahead = Ahead(next, turn, i * groups + g, blocks * groups);
        p_.kernel.gemm(tile);
      }
      if (!ends) continue;
      ApplyScales(p_.isa,
                  {.panel = chunk.panel,
                   .row = row_ + r,
                   .rows = count,
                   .group = group,
                   .groups = groups,
                   .acc = acc,
                   .code_sums = p_.code_sums,
                   .exact_sums = p_.exact_sums,
                   .code_rows = p_.all_rows},
                  w_, p_.acts, partial_ + r * kTileOutputs, p_.out);
    }
  }

  // What rows from r on multiply behind `skip` inputs of the chunk.
  GemmTile Place(const Chunk& chunk, int turn, int64_t r, int64_t skip) const {
    const int64_t stride = p_.acts.stride, k = chunk.first + skip;
    const bool tiles = p_.kernel.tiles, stored = w_.bytes();
    return {.a = tiles ? p_.tiles + (row_ + r) * stride + k * kTileTokens
                       : p_.acts.codes + (row_ + r) * stride + k,
            .a_stride = tiles ? kTileTokens * stride : stride,
            .b = (stored ? Stored(chunk) : bytes_[turn]) + skip * kPanel,
            .b_stride = stored ? w_.Bytes(w_.padded_cols) : chunk.inputs * kPanel};
  }

  const Product& p_;
  const IntPanels& w_;
  const int64_t tasks_;  // along the panels
  int64_t row_, rows_, first_panel_, last_panel_;
  alignas(64) uint8_t bytes_[2][kTileOutputs * kChunk];
  alignas(64) int32_t acc_[kMaxRows * kTileOutputs];
  alignas(64) float partial_[kMaxRows * kTileOutputs];
};

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
  const int64_t most = std::clamp(kBlockBytes / w.padded_cols / 32 * 32, int64_t{32}, kMaxRows);
  int64_t blocks = (rows + most - 1) / most;
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
                    const Kernel& kernel, const TileOutput& out, SumMemory& memory) {
  NIBBLE_CHECK(acts.width == weights.cols && acts.format == weights.activation &&
                   acts.stride >= weights.padded_cols && kernel.Runs(weights, acts.tokens),
               "width {} and {}, kernel {}", acts.width, weights.cols, kernel.name);
  const int64_t rows = weights.sum_rows(acts.tokens);
  const int32_t* sums = weights.groups == 1 ? acts.sums : nullptr;
  const float* exact_sums = nullptr;
  if (weights.exact()) {
    SumGroups(acts, weights, memory.floats.Grow(rows * weights.groups));
    exact_sums = memory.floats.data();
  } else if (weights.groups > 1) {
    SumGroups(acts, weights, memory.ints.Grow(rows * weights.groups));
    sums = memory.ints.data();
  }
  return {.isa = isa,
          .acts = acts,
          .weights = weights,
          .kernel = kernel,
          .all_rows = rows,
          .code_sums = sums,
          .exact_sums = exact_sums,
          .out = out,
          .rows = 0,
          .panels = 0,
          .tiles = kernel.tiles ? Tiles(acts, rows) : nullptr};
}

// Of GEMV tasks over so many panels.
int64_t TaskPanels(int64_t panels) {
  return std::max<int64_t>(1, panels / (16 * Threads())) * 2;
}

}  // namespace

void GemmInt(Isa isa, const Activations& acts, const IntPanels& weights, const Kernel& kernel,
             float* y, int64_t y_stride, bool accumulate) {
  thread_local SumMemory sums;
  Product p = MakeProduct(isa, acts, weights, kernel, {y, y_stride, accumulate}, sums);
  // The tasks capture one pointer: std::function then allocates nothing.
  if (kernel.gemv != nullptr) {
    p.panels = TaskPanels(weights.panels);
    const int64_t tasks = (weights.panels + p.panels - 1) / p.panels;
    ParallelFor(static_cast<size_t>(tasks),
                [&p](size_t i) { GemvTask(p, static_cast<int64_t>(i)); });
  } else {
    p.out.stream = Streams(p);
    p.rows = TaskRows(p.all_rows, weights);
    const int64_t blocks = (p.all_rows + p.rows - 1) / p.rows, pairs = weights.panels / 2;
    // Few rows: a task is a stream of weights, which should not start anew too often.
    const int64_t most = p.rows <= kFewRows ? 4 * kMaxPairs : kMaxPairs;
    p.panels = 2 * std::clamp<int64_t>(blocks * pairs / (4 * Threads()), 1, most);
    const int64_t tasks = blocks * ((weights.panels + p.panels - 1) / p.panels);
    ParallelFor(static_cast<size_t>(tasks),
                [&p](size_t i) { GemmWalk(p, static_cast<int64_t>(i)).Run(); });
  }
}

void GemvAll(Isa isa, std::span<const GemvProduct> all) {
  std::vector<SumMemory> sums(all.size());
  std::vector<Product> products;
  products.reserve(all.size());
  std::vector<int64_t> ends;  // of each product's tasks
  int64_t panels = 0, tasks = 0;
  for (const GemvProduct& one : all) panels += one.weights->panels;
  for (const GemvProduct& one : all) {
    NIBBLE_CHECK(one.kernel->gemv != nullptr);
    products.push_back(MakeProduct(isa, one.acts, *one.weights, *one.kernel,
                                   {one.y, one.weights->rows, false}, sums[products.size()]));
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
