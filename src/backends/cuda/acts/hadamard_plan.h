// SPDX-License-Identifier: Apache-2.0
// An online transform as the kernels run it (made by device_hadamard.h).
#pragma once

#include <cstdint>

namespace nibble::cuda {

inline constexpr int kMaxDenseFactors = 4;
inline constexpr int kMaxDenseOrder = 176;

struct DenseFactor {
  int order = 1, after = 1;  // x viewed as [.., order, after]
  int k_steps = 0;           // of 16 inputs: the order padded to 1, 2, 3, 4, 7 or 11 of them
  // Signs of the +-1 matrix, 1 = negative, as operand A of mma.m16n8k16 (ptx.h): [16
  // rows][word][lane]. A word holds four steps of 16 inputs: of register j of a step, bit 15 - p is
  // the even entry and bit 31 - p the odd one, p = 4 (step % 4) + j.
  const uint32_t* signs = nullptr;
  const float* entries = nullptr;  // of any other matrix instead: [order inputs][order outputs]
};

// A transform of a whole row for prepare_sm90.cu: the row as [order, blocks, 64], order the dense
// factors and strides of the Sylvester one.
struct TileHadamard {
  int order = 0, blocks = 1;  // 1, 2, or if k_steps is 4, also 4 and 8
  int k_steps = 0;            // of 16 inputs: 4 or 11
  // In the layout of DenseFactor::signs, whole tiles of 64 rows; null: there is no such view.
  const uint32_t* signs = nullptr;
};

// A row is [outer, dense orders.., segment].
struct HadamardPlan {
  int dense_factors = 0;
  DenseFactor dense[kMaxDenseFactors] = {};  // slowest first
  int sylvester = 1;                         // order, a power of 2
  int inner = 1;
  int segment = 1;  // sylvester * inner
  float scale = 1;  // 1 / sqrt(order)
  TileHadamard tile;
};

}  // namespace nibble::cuda
