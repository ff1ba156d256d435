// SPDX-License-Identifier: Apache-2.0
// Sums over tokens of outer products for machines with bf16 dot products but no matrix unit.
#include <algorithm>

#include "backends/cpu/gemm/gram.h"
#include "backends/cpu/gemm/int_kernels.h"
#include "base/aligned.h"
#include "base/thread_pool.h"

namespace nibble::cpu {
namespace {

constexpr int64_t kColumns = GramTile::kColumns;

// Panels of x; beyond its width there are zeros for a whole tile.
struct Pairs {
  int64_t pairs, width;
  uint32_t* panels;

  Pairs(const float* x, int64_t tokens, int64_t columns, Buffer<uint32_t>& memory)
      : pairs((tokens + 1) / 2), width(columns) {
    const int64_t count = (width + kColumns - 1) / kColumns * (kColumns / kPanel);
    panels = memory.Grow(count * pairs * kPanel);
    ParallelFor(static_cast<size_t>(count), [&](size_t i) {
      const int64_t first = static_cast<int64_t>(i) * kPanel;
      avx512_pack_pairs(x + std::min(first, width), width, tokens,
                        std::max<int64_t>(0, width - first), Panel(first));
    });
  }
  uint32_t* Panel(int64_t column) const { return panels + column * pairs; }
};

}  // namespace

void AddGramPairs(const float* left, const float* right, int64_t tokens, int64_t width,
                  double* sum) {
  thread_local Buffer<uint32_t> left_memory, right_memory;
  const Pairs a(left, tokens, width, left_memory);
  const Pairs b = left == right ? a : Pairs(right, tokens, width, right_memory);
  ParallelFor(static_cast<size_t>((width + kColumns - 1) / kColumns), [&](size_t task) {
    const int64_t first = static_cast<int64_t>(task) * kColumns;
    const int64_t columns = std::min(kColumns, width - first);
    alignas(64) float tile[kPanel * kColumns];
    // A symmetric sum is needed from the diagonal on down.
    for (int64_t row = left == right ? first : 0; row < width; row += kPanel) {
      avx512_gram_bf16(
          {.left = a.Panel(row), .right = b.Panel(first), .pairs = a.pairs, .c = tile});
      for (int64_t r = 0; r < std::min(kPanel, width - row); ++r) {
        double* const out = sum + (row + r) * width + first;
        for (int64_t c = 0; c < columns; ++c) out[c] += tile[r * kColumns + c];
      }
    }
  });
}

}  // namespace nibble::cpu
