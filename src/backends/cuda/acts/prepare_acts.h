// SPDX-License-Identifier: Apache-2.0
// The input of integer products in one pass over memory: source op, online Hadamard transform,
// quantization to s8 codes exactly as formats/quantizer.h defines it. Outliers that a linear reads
// in another format are a part of their own, once columns are in their order.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backends/cuda/acts/hadamard_plan.h"
#include "backends/cuda/runtime/real_type.h"
#include "formats/gate_spec.h"

namespace nibble::cuda {

enum class Source {
  kPlain,    // x
  kRmsNorm,  // x * rsqrt(mean(x^2) + eps) * weight
  kGated,    // the GLU output of x, the gate, and up
};

// Columns of the prepared rows in a format of their own.
struct PreparePart {
  int columns = 0;          // a multiple of 8
  float* values = nullptr;  // [tokens, columns]: as they are; or null
  // The same, rounded to bf16, of rows that are transformed; may be what the rows are read from.
  uint16_t* bf16 = nullptr;
  // The values as sums of two bf16, or null: [WholeTiles(tokens), PairStride(columns)], for each 32
  // columns the values rounded to bf16, then what these lack. Zeros follow the last column.
  uint16_t* pairs = nullptr;

  int bits = 4;               // 2..8, or 16: two planes of 8, symmetric, without groups
  bool symmetric = true;      // false: zero offsets are written
  bool signed_scale = false;  // symmetric only
  int group = 0;              // 0 = all columns, or a multiple of 32 that divides them
  float clip = 1;

  int8_t* codes = nullptr;        // [tokens, stride], zero from columns on; or null
  int64_t stride = 0;             // bytes: columns rounded up to 128
  float* scales = nullptr;        // [groups, ScalePitch(tokens)]
  float* zero_offsets = nullptr;  // the same, or null when symmetric
  int32_t* sums = nullptr;        // the same, sums of codes; with 16 bits [PlaneRows(tokens)]

  bool keeps_values() const { return values != nullptr || bf16 != nullptr; }
};

// All rows start at multiples of 16 bytes; width is a multiple of 8.
struct PrepareArguments {
  Source source = Source::kPlain;
  RealType type = RealType::kFloat32;
  const void* x = nullptr;      // [tokens, x_stride]
  const void* up = nullptr;     // [tokens, x_stride], kGated
  GateSpec gating;              // kGated
  const float* norm = nullptr;  // [width] weight of kRmsNorm or null
  float eps = 0;
  const float* scales = nullptr;  // [width] factors of the source op's results, or null
  int64_t tokens = 0;
  int64_t x_stride = 0;  // elements
  int64_t second = 0;    // elements from x to the latter half of the rows; 0: they follow the first
  int width = 0;
  HadamardPlan hadamard;

  const int32_t* order = nullptr;  // [width]: columns of the parts, of the transformed row; or null
  PreparePart main, tail;          // main.columns + tail.columns == width; a tail may have none
  float* transformed = nullptr;    // [tokens, width] working memory for few tokens, or null

  // The first element of a token's row, from x.
  __host__ __device__ int64_t RowAt(int64_t token) const {
    const bool in_second = second != 0 && token >= tokens / 2;
    return in_second ? second + (token - tokens / 2) * x_stride : token * x_stride;
  }
  bool in_parts() const { return order != nullptr || tail.columns > 0; }
};

// The most tokens whose rows may be spread over blocks. With more tokens, parts and groups are
// prepared from shared memory: registers would not hold enough blocks.
inline constexpr int64_t kFewTokens = 64;

// From so many tokens on, products add those of their tails in one launch (gemm_sm90_tails.h).
inline constexpr int64_t kMinTailTokens = 33;

// A code of 16 bits is 256 times a byte of the upper plane plus one of the lower. Rows of the
// planes take turns, eight tokens at a time, so that any tile of a product has a token's two sums
// close to each other. Returns the row of its upper bytes; the lower ones are 8 rows further.
__host__ __device__ constexpr int64_t PlaneRow(int64_t token) {
  return token / 8 * 16 + token % 8;
}
constexpr int64_t PlaneRows(int64_t tokens) {
  return (tokens + 7) / 8 * 16;
}
// Rows of codes have memory for whole tiles of a product, which reads them whether they exist or
// not: bulk copies that end behind a tensor make a product up to 1.6 times as slow.
inline constexpr int kTileRows = 256;
constexpr int64_t WholeTiles(int64_t rows) {
  return (rows + kTileRows - 1) / kTileRows * kTileRows;
}

// Numbers in a row of pairs.
__host__ __device__ constexpr int64_t PairStride(int64_t columns) {
  return (columns + 63) / 64 * 128;
}

// The distance between the scales of two groups, so that bulk copies can take those of some tokens:
// any four tokens begin at a multiple of 16 bytes.
__host__ __device__ constexpr int64_t ScalePitch(int64_t tokens) {
  return (tokens + 3) / 4 * 4;
}

// Shared memory beside rows, at most.
inline constexpr int64_t kScratchBytes = 2048;

// Enqueues the op. A dependent launch. A row must fit into the shared memory of a multiprocessor as
// fp32 (57000 elements on sm_90, 24000 on sm_86 and sm_89); nibble::Error is thrown if it does not,
// or if the launch is refused. A Fourier factor takes two rows.
void PrepareActs(const PrepareArguments& args, cudaStream_t stream);

}  // namespace nibble::cuda
