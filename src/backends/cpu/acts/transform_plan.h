// SPDX-License-Identifier: Apache-2.0
// The plan of an online transform for vector code: the axes it runs along and the entries of each
// dense factor, where entries of +-1 are sign patterns of four inputs at a time (transform.inl.h).
// Plans are made once per TransformSpec and live as long as the program.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "backends/cpu/gemm/int_kernels.h"
#include "base/cpu_features.h"
#include "transforms/hadamard.h"

namespace nibble::cpu {

// Columns a dense factor works on at once: one AVX-512 vector, two AVX2 vectors; on AMX two tiles.
inline constexpr int64_t kTile = 16;

// Entries of a column are padded with zeros to a multiple of this.
inline constexpr int64_t kEntryRows = 8;

// One factor: x viewed as [.., order, after].
struct TransformAxis {
  int64_t order = 1, after = 1;
  // Dense, +-1: [order / 4][order / 4][4 rows], kTile times the number whose bit i says that the
  // row's entry 4 b + i is -1.
  std::vector<uint8_t> patterns;
  std::vector<uint16_t> signs;             // the same on AMX: SignProduct::h instead
  std::vector<float> entries;              // dense, any: [order columns][order rows, padded]
  std::optional<TransformFactor> fourier;  // transforms/fourier.h

  bool dense() const { return !patterns.empty() || !signs.empty() || !entries.empty(); }
  int64_t columns() const { return signs.empty() ? kTile : kTileOutputs; }  // at once
};

struct TransformPlan {
  TransformSpec spec;
  bool amx = false;
  std::vector<TransformAxis> axes;
  float scale = 1;        // 1 / sqrt(order)
  int64_t row_group = 1;  // rows that together fill the tiles of every dense factor
  int64_t row_cost = 0;   // of a row, for ParallelRows
};

// Thread-safe; allocates only the first time a spec is seen.
const TransformPlan& PlanFor(const TransformSpec& spec, Isa isa);

// This thread's grow-only memory, 64-byte aligned, content undefined, valid until the next call.
// Each Use has its own, so they may nest.
enum class Scratch { kDense, kRow, kGathered };
float* ThreadScratch(Scratch use, int64_t floats);

}  // namespace nibble::cpu
