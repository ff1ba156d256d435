// SPDX-License-Identifier: Apache-2.0
// The sum over tokens of outer products on bf16 matrix tiles. `right` lies in memory as the matrix
// unit wants its second operand; the first one is the same turned by dwords (two tokens each).
#include <algorithm>
#include <cstring>

#include "backends/cpu/gemm/gram.h"
#include "backends/cpu/gemm/int_kernels.h"
#include "base/aligned.h"
#include "base/thread_pool.h"

namespace nibble::cpu {
namespace {

constexpr int64_t kTerms = 2;
constexpr int64_t kStep = 32;             // tokens of a tile
constexpr int64_t kTileValues = 16 * 32;  // bf16 values of a tile
constexpr int64_t kRows = 128;            // columns of `left` of a task

struct Operands {
  int64_t tokens, width, steps, panels;  // panels of 32 columns
  uint16_t* a;                           // [panels * 2][steps][kTerms] tiles
  uint16_t* b;                           // [panels][steps][kTerms][2 tiles]

  int64_t values() const { return panels * 2 * steps * kTerms * kTileValues; }  // of either
};

// 32 tokens x 16 columns from column `first` on, to either operand or to both.
void PackBlock(const Operands& o, const float* x, int64_t step, int64_t first, bool a, bool b) {
  alignas(64) uint16_t terms[kTerms][kTileValues];
  amx_cut_terms(x + step * kStep * o.width + first, o.width, o.tokens - step * kStep,
                std::max<int64_t>(0, o.width - first), terms[0], terms[1]);
  for (int64_t term = 0; term < kTerms; ++term) {
    if (b) {
      const int64_t tile = ((first / 32 * o.steps + step) * kTerms + term) * 2 + first % 32 / 16;
      std::memcpy(o.b + tile * kTileValues, terms[term], sizeof(terms[term]));
    }
    if (!a) continue;
    uint16_t* tile = o.a + ((first / 16 * o.steps + step) * kTerms + term) * kTileValues;
    for (int64_t column = 0; column < 16; ++column) {
      for (int64_t pair = 0; pair < 16; ++pair) {
        std::memcpy(tile + column * 32 + 2 * pair, terms[term] + (pair * 16 + column) * 2, 4);
      }
    }
  }
}

void Pack(const Operands& o, const float* left, const float* right) {
  ParallelFor(static_cast<size_t>(o.steps), [&](size_t i) {
    const auto step = static_cast<int64_t>(i);
    for (int64_t first = 0; first < o.panels * kTileOutputs; first += 16) {
      PackBlock(o, left, step, first, true, left == right);
      if (left != right) PackBlock(o, right, step, first, false, true);
    }
  });
}

// Rows [first, first + kRows) of one panel of 32 columns.
void AddProduct(const Operands& o, int64_t first, int64_t panel, double* sum) {
  alignas(64) float sums[kRows * kTileOutputs];
  const int64_t rows = std::min(kRows, o.width - first), column = panel * kTileOutputs;
  const int64_t columns = std::min(kTileOutputs, o.width - column);
  amx_gemm_bf16({.a = o.a + first / 16 * o.steps * kTerms * kTileValues,
                 .a_terms = kTerms,
                 .rows = rows,
                 .b = o.b + panel * o.steps * kTerms * 2 * kTileValues,
                 .b_terms = kTerms,
                 .k = o.steps * kStep,
                 .c = sums});
  for (int64_t r = 0; r < rows; ++r) {
    double* row = sum + (first + r) * o.width + column;
    for (int64_t c = 0; c < columns; ++c) row[c] += sums[r * kTileOutputs + c];
  }
}

}  // namespace

void AddGramBf16(const float* left, const float* right, int64_t tokens, int64_t width,
                 double* sum) {
  Operands o{.tokens = tokens, .width = width};
  o.steps = (tokens + kStep - 1) / kStep;
  o.panels = (width + kTileOutputs - 1) / kTileOutputs;
  thread_local Buffer<uint16_t> a, b;
  o.a = a.Grow(o.values());
  o.b = b.Grow(o.values());
  Pack(o, left, right);
  const int64_t blocks = (width + kRows - 1) / kRows;
  ParallelFor(static_cast<size_t>(blocks * o.panels), [&](size_t i) {
    const int64_t first = static_cast<int64_t>(i) / o.panels * kRows;
    const int64_t panel = static_cast<int64_t>(i) % o.panels;
    if (left == right && panel * kTileOutputs >= first + kRows) return;  // above the diagonal
    AddProduct(o, first, panel, sum);
  });
}

}  // namespace nibble::cpu
