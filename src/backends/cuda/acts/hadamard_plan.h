// SPDX-License-Identifier: Apache-2.0
// An online transform as the kernels run it (made by device_hadamard.h).
#pragma once

#include <cuda_runtime.h>

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

// A transform of a whole row for prepare_sm90.cu, H_order (x) H_blocks (x) H_columns, each with
// axes of the row that need not be neighbours: `columns` has a dense factor, if two are needed, and
// strides of the Sylvester one, `blocks` and `order` have the others.
struct TileHadamard {
  int order = 0, blocks = 1, columns = 0;  // columns: 48, 64, 96 or 160
  int k_steps = 0;                         // of 16 inputs of H_order, its padding included
  // Elements of the row between neighbours: `fine` rows lie close, the next so many further away.
  int fine_log2 = 0, row_stride = 0, fine_stride = 0, block_stride = 0, eight_stride = 0;
  // H_order in the layout of DenseFactor::signs, whole tiles of 64 rows; null: there is no such
  // view.
  const uint32_t* signs = nullptr;
  // H_columns, padded with zeros to PaddedColumns, as fp16 operand B of a product
  // (wgmma_half.h). So that a thread's results are neighbours, its column 8 j + 2 q + e has outputs
  // 8 g (j / g) + 2 g q + 2 (j % g) + e, g = 8 with 64 columns, else 4.
  const uint4* matrix = nullptr;

  // The place in the row of columns 8 eight .. 8 eight + 7.
  __host__ __device__ int At(int row, int block, int eight) const {
    const int coarse = row >> fine_log2;
    return coarse * row_stride + (row - (coarse << fine_log2)) * fine_stride +
           block * block_stride + eight * eight_stride;
  }
};

// A Fourier factor that is a whole row (fourier.cuh). The most stages are those of 3^9 points.
inline constexpr int kMaxFourierStages = 9;
struct FourierPlan {
  int points = 0;  // complex numbers of the row; 0: there is no such factor
  bool inverse = false;
  int stages = 0;
  int radices[kMaxFourierStages] = {};
  const float2* roots = nullptr;   // [points] e^(-2 pi i j / points)
  const float2* phases = nullptr;  // [points]
};

// The columns of products: 64, 96 or 160.
__host__ __device__ constexpr int PaddedColumns(int columns) {
  return columns <= 64 ? 64 : columns <= 96 ? 96 : 160;
}

// Operand B of a product (wgmma_half.h): the columns of its rows, and the place of values
// 8 i .. 8 i + 7 in row r.
__host__ __device__ constexpr int OperandWidth(int columns) {
  return columns <= 64 ? 64 : 32;
}
__host__ __device__ constexpr unsigned OperandPlace(unsigned width, unsigned r, unsigned i) {
  return (i ^ (r / (64 / width) % (width / 8))) * 8;
}

// A row is [outer, dense orders.., segment].
struct HadamardPlan {
  int dense_factors = 0;
  DenseFactor dense[kMaxDenseFactors] = {};  // slowest first
  int sylvester = 1;                         // order, a power of 2
  int inner = 1;
  int segment = 1;  // sylvester * inner
  float scale = 1;  // 1 / sqrt(order)
  // InputSpec::transform_bits is 16: kernels that keep a row in fp32 round it in front of the
  // transform and behind it, or behind what a block does of it.
  bool halves = false;
  TileHadamard tile;
  FourierPlan fourier;  // alone: no other factors beside it
};

}  // namespace nibble::cuda
