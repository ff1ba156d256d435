// SPDX-License-Identifier: Apache-2.0
// Rows over the thread pool, in pieces big enough to be worth handing out; less work than one piece
// runs on the calling thread. Allocates nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "base/thread_pool.h"

namespace nibble::cpu {

// Calls f(begin, end) for pieces of [0, rows) whose length is a multiple of `unit` (but the last).
// `row_cost` is the time of a row in units of 0.1 ns, roughly.
template <typename F>
void ParallelRows(int64_t rows, int64_t row_cost, int64_t unit, const F& f) {
  constexpr int64_t kPieceCost = 100000;  // 10 us: waking a thread costs about as much
  const int64_t units = std::max<int64_t>(1, kPieceCost / std::max<int64_t>(1, row_cost * unit));
  const int64_t piece = units * unit;
  const auto task = [&](size_t i) {
    const int64_t begin = static_cast<int64_t>(i) * piece;
    f(begin, std::min(begin + piece, rows));
  };
  ParallelFor(static_cast<size_t>((rows + piece - 1) / piece), std::ref(task));
}

}  // namespace nibble::cpu
