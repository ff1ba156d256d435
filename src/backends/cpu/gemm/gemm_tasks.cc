// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/gemm/gemm_tasks.h"

#include <hwy/cache_control.h>

#include <algorithm>

#include "backends/cpu/gemm/gemm_int.h"

namespace nibble::cpu {
namespace {

constexpr int64_t kChunk = 512;      // inputs; 32 outputs of bytes are 16 KiB
constexpr int64_t kChunkGroups = 2;  // groups of a chunk, at most
constexpr int64_t kTileBlock = 32;   // rows of a matrix unit's call
constexpr int64_t kBlock = 96;       // rows of another kernel's call: its sums stay in L1
constexpr int64_t kGemvGroups = 16;  // groups of one GEMV call, fewer with many rows
constexpr int64_t kGemvSums = 192;   // groups times rows, of kTileOutputs each: half of L1

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

LevelSteps Steps(const IntPanels& w, int64_t panel, int64_t first) {
  if (!w.second_level()) return {};
  return {w.panel_steps(panel), w.step_groups() * kPanel, w.step_cols, first};
}

}  // namespace

void GemvTask(const Product& p, int64_t task) {
  const IntPanels& w = p.weights;
  const int64_t rows = p.terms.rows;
  const int64_t last = std::min((task + 1) * p.panels, w.panels);
  const int64_t max = std::clamp<int64_t>(kGemvSums / rows, 1, kGemvGroups);
  alignas(64) int32_t acc[std::max(kGemvSums, kMaxGemvTokens) * kTileOutputs];
  for (int64_t panel = task * p.panels; panel < last; panel += 2) {
    alignas(64) float partial[kMaxGemvTokens * kTileOutputs];
    for (int64_t g = 0; g < w.groups; g += max) {
      const int64_t groups = std::min(max, w.groups - g);
      PrefetchScales(w, panel, g, groups);
      p.kernel.gemv({.a = p.acts.codes + g * w.group_cols,
                     .a_stride = p.acts.stride,
                     .rows = rows,
                     .b = w.panel(panel) + w.Bytes(g * w.group_cols),
                     .b_stride = w.Bytes(w.padded_cols),
                     .groups = groups,
                     .k = w.group_cols,
                     .c = acc,
                     .steps = Steps(w, panel, 0),
                     .words = &LatticeCode::Words()});
      ApplyScales(p.isa, {panel, 0, rows, g, groups, acc}, w, p.terms, partial, p.out);
    }
  }
}

namespace {

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
    rows_ = std::min(p.rows, p.terms.rows - row_);
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
  // True if a matrix unit's calls unpack the next chunk on the side. They take plain nibbles only;
  // steps, codewords and floats are unpacked in a call of their own.
  bool UnpacksAhead() const { return w_.bits == 4 && p_.kernel.tiles && w_.form() == Form::kCodes; }

  // The chunk behind c; without inputs at the end.
  Chunk Next(Chunk c) const {
    if (c.inputs == 0) return c;
    c.first += c.inputs;
    if (c.first == w_.groups * w_.group_cols) c = {c.panel + 2, 0, 0};
    c.inputs = c.panel < last_panel_ ? Inputs(c.first) : 0;
    return c;
  }

  // The inputs of the chunk that begins at input `first`.
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

  // Prefetches the outputs that the epilogue will add to: another core may have written them.
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
    // A kernel with levels multiplies the nibbles themselves.
    const bool levels = w_.form() == Form::kLevels && p_.kernel.form != Form::kLevels;
    if (w_.form() != Form::kCodewords && !levels) {
      const bool floats = w_.form() == Form::kFloats;
      UnpackNibbles(p_.isa, Stored(c), c.inputs, floats, bytes);
      UnpackNibbles(p_.isa, second, c.inputs, floats, second_bytes);
    } else if (w_.form() == Form::kCodewords) {
      UnpackCodewords(p_.isa, Stored(c), c.inputs, w_.bits, bytes);
      UnpackCodewords(p_.isa, second, c.inputs, w_.bits, second_bytes);
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
      ApplyScales(p_.isa, {chunk.panel, row_ + r, count, group, groups, acc}, w_, p_.terms,
                  partial_ + r * kTileOutputs, p_.out);
    }
  }

  // The operands of rows from r on, `skip` inputs into the chunk.
  GemmTile Place(const Chunk& chunk, int turn, int64_t r, int64_t skip) const {
    const int64_t stride = p_.acts.stride, k = chunk.first + skip;
    const bool tiles = p_.kernel.tiles, stored = w_.bytes();
    return {.a = tiles ? p_.tiles + (row_ + r) * stride + k * kTileTokens
                       : p_.acts.codes + (row_ + r) * stride + k,
            .a_stride = tiles ? kTileTokens * stride : stride,
            .b = (stored ? Stored(chunk) : bytes_[turn]) + skip * kPanel,
            .b_stride = stored ? w_.Bytes(w_.padded_cols) : chunk.inputs * kPanel,
            .steps = Steps(w_, chunk.panel, k)};
  }

  const Product& p_;
  const IntPanels& w_;
  const int64_t tasks_;  // along the panels
  int64_t row_, rows_, first_panel_, last_panel_;
  alignas(64) uint8_t bytes_[2][kTileOutputs * kChunk];
  alignas(64) int32_t acc_[kMaxTaskRows * kTileOutputs];
  alignas(64) float partial_[kMaxTaskRows * kTileOutputs];
};

}  // namespace

void GemmTask(const Product& product, int64_t task) {
  GemmWalk(product, task).Run();
}

}  // namespace nibble::cpu
