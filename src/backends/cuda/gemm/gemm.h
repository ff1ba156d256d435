// SPDX-License-Identifier: Apache-2.0
// The product of a packed linear, as all kernels take it. On integers it is the arithmetic law of
// docs/numerics.md, bit for bit with one group per row:
//
//   y[t, n] (+)= (a_t s_n) [float(D - pi_n Q_t) + z_t float(P_n - cols pi_n)] + bias_n
//
// D = sum over k of x[t, k] w[n, k], exact in int32; every other operation rounds once, in this
// order. cols is at most 65793, so that no integer overflows (a loader checks it). With kFloats
// each output is one chain of fp32 fused multiply-adds over ascending k; for kHalves see
// gemm_halves.h.
//
// A token of 16 bits has a sum D for its upper and one for its lower plane; 256 times the upper
// plane's float(D - pi_n Q_t) is added to the lower plane's.
//
// With groups, sums end every `piece` inputs: the sum of a piece is exact; times its scales it is
// added in fp32, fused and in an order of the kernel. Scales of whole rows are applied last.
#pragma once

#include <cstdint>
#include <span>

#include "backends/cuda/acts/prepare_acts.h"
#include "backends/cuda/runtime/cuda_error.h"
#include "backends/cuda/runtime/real_type.h"
#include "formats/lattice_words.h"

namespace nibble::cuda {

// The layout of weights in memory.
enum class WeightKind {
  // Blocks of weight_order.h, for one scale a row on either side: codes of 4 or 8 bits, or codes of
  // 4 bits with the steps that make 8 of them (packed_linear.h, LevelStep).
  kNibbles,
  kBytes,
  kLevels,
  // Such blocks where a side has groups, which `piece` divides; nibbles may be floats.
  kNibbleGroups,
  kByteGroups,
  // Blocks of codewords of a lattice (lattice_codes.h), 2 to 4 bits a weight.
  kCodewords2,
  kCodewords3,
  kCodewords4,
  // Such blocks of 2:4 sparse codes: two of every four with their places, for one scale a row.
  kSparseNibbles,
  kSparseBytes,
  kPlain,   // codes as bytes [rows, stride], zero from cols on, and any groups
  kFloats,  // [rows, cols] of a WeightType
  kHalves,  // as kFloats, for inputs of 16 bits
};

constexpr bool OfFloats(WeightKind kind) {
  return kind == WeightKind::kFloats || kind == WeightKind::kHalves;
}
// The bits of a codeword's code for each of its weights, or 0; and back.
__host__ __device__ constexpr int CodewordBits(WeightKind kind) {
  const bool codewords = kind >= WeightKind::kCodewords2 && kind <= WeightKind::kCodewords4;
  return codewords ? 2 + static_cast<int>(kind) - static_cast<int>(WeightKind::kCodewords2) : 0;
}
constexpr WeightKind CodewordKind(int bits) {
  return static_cast<WeightKind>(static_cast<int>(WeightKind::kCodewords2) + bits - 2);
}
// Calls visit<kind> for a kind of codewords.
template <typename Visit>
auto WithCodewordKind(WeightKind kind, const Visit& visit) {
  switch (kind) {
    case WeightKind::kCodewords2:
      return visit.template operator()<WeightKind::kCodewords2>();
    case WeightKind::kCodewords3:
      return visit.template operator()<WeightKind::kCodewords3>();
    default:
      NIBBLE_CUDA_CHECK(kind == WeightKind::kCodewords4);
      return visit.template operator()<WeightKind::kCodewords4>();
  }
}
__host__ __device__ constexpr bool IsSparse(WeightKind kind) {
  return kind == WeightKind::kSparseNibbles || kind == WeightKind::kSparseBytes;
}
__host__ __device__ constexpr int CodeBits(WeightKind kind) {
  if (CodewordBits(kind) != 0) return CodewordBits(kind);
  const bool bytes = kind == WeightKind::kBytes || kind == WeightKind::kByteGroups;
  return bytes || kind == WeightKind::kSparseBytes ? 8 : 4;
}
// The bytes of a block's codes, and of these with the places of sparse ones behind them.
__host__ __device__ constexpr int StoredCodeBytes(WeightKind kind) {
  return 64 * (IsSparse(kind) ? 64 : 128) * CodeBits(kind) / 8;
}
__host__ __device__ constexpr int CodeBytes(WeightKind kind) {
  return StoredCodeBytes(kind) + (IsSparse(kind) ? 64 * 128 / 8 : 0);
}
__host__ __device__ constexpr bool HasGroups(WeightKind kind) {
  return kind == WeightKind::kNibbleGroups || kind == WeightKind::kByteGroups;
}
// Nibbles are multiplied as 16 times their codes, codewords of 2 bits as 8 times theirs.
__host__ __device__ constexpr int SumFactor(WeightKind kind) {
  if (kind == WeightKind::kNibbles || kind == WeightKind::kSparseNibbles) return 16;
  return kind == WeightKind::kCodewords2 ? 8 : 1;
}

// The data behind the codes of a block: for each of its 64 outputs as many steps (kLevels) or
// scales as it has pieces, and their zeros; or nothing.
struct BlockScales {
  int pieces = 0;  // 1, 2 or 4
  bool zeros = false;
  bool floats = false;  // nibbles are floats (tensor/e2m1.h)

  // SumFactor; nibbles that need more than to be moved are multiplied as they are.
  __host__ __device__ constexpr int factor(WeightKind kind) const {
    if (kind == WeightKind::kNibbleGroups) return zeros || floats ? 1 : 16;
    return SumFactor(kind);
  }
  __host__ __device__ constexpr int zero_bytes() const {
    return zeros ? 64 * (pieces < 2 ? 2 : pieces) : 0;
  }
  __host__ __device__ constexpr int bytes() const { return 128 * pieces + zero_bytes(); }
  bool operator==(const BlockScales&) const = default;
};

// The terms that a product takes from its linear; see GemmArguments.
struct LinearTerms {
  const uint8_t* w;
  const float *scales, *zeros, *sums, *bias;
  const uint8_t* up_w;
  const float* up_scales;
  const uint8_t* tail_w = nullptr;
  const float* tail_scales = nullptr;
};

inline constexpr size_t kMaxJoined = 3;

// The columns of an input behind those of a product, in another format, and how products that add
// theirs in one launch read them (gemm_sm90_tails.cu).
struct TailTerms {
  // Rows of chunks of 128 bytes, [WholeTiles(tokens), stride]: codes of 8 bits or, with 16 bits,
  // pairs (prepare_acts.h); null: there is no tail.
  const int8_t* x = nullptr;
  int64_t stride = 0;
  const float* x_scales = nullptr;            // [tokens], for codes
  WeightType w_type = WeightType::kBfloat16;  // with 16 bits
  int64_t cols = 0;

  bool operator==(const TailTerms&) const = default;
};

// The terms that differ between products of the same input; see GemmArguments.
struct ProductTerms {
  LinearTerms linear;
  void* y;
  int64_t y_stride, rows;
};

// In a mixture of experts the rows of x and y lie one behind the other, expert by expert, and each
// group of them is multiplied by its expert's weights (experts/routes.h makes the groups).
struct ExpertGroup {
  int32_t expert, first, rows;
};
struct ExpertGroups {
  const LinearTerms* linears = nullptr;  // [experts], or null: a product of all rows
  const ExpertGroup* groups = nullptr;   // [*count]
  const int32_t* count = nullptr;
  // The row of x that each row reads, or null: its own (for gemm_decode_experts alone).
  const int32_t* row_tokens = nullptr;
  int max = 0;       // *count is at most this
  int max_rows = 0;  // of a group
};

// Device pointers, aligned to 16 bytes; null where "or null" says so.
struct GemmArguments {
  const int8_t* x = nullptr;              // [WholeTiles(x_rows()), stride] codes, zero from cols on
  const float* values = nullptr;          // with floats, instead of x: [tokens, cols]
  const float* x_scales = nullptr;        // [groups, x_pitch] a
  const float* x_zero_offsets = nullptr;  // [groups, x_pitch] z, or null: symmetric activations
  // Q, sums of codes: [groups, x_pitch], with planes [x_rows()]; for w_zeros and kLevels.
  const int32_t* x_sums = nullptr;
  int64_t x_pitch = 0;         // with several groups: a multiple of 4, >= tokens
  int64_t tokens = 0;          // >= 1
  int a_bits = 8;              // 2..8, of the codes, or 16: two planes (prepare_acts.h)
  int64_t stride = 0;          // bytes between rows of x: a multiple of 128, >= cols
  const uint8_t* w = nullptr;  // as w_kind says
  WeightKind w_kind = WeightKind::kNibbles;
  WeightType w_type = WeightType::kFloat32;  // for floats
  int64_t x_group = 0, w_group = 0;     // inputs, 0 = cols; kPlain: one is a multiple of the other
  int piece = 128;                      // with groups: 32, 64 or 128 inputs
  BlockScales w_block;                  // for kLevels and with groups
  const LatticeWords* words = nullptr;  // of codewords
  const float* w_scales = nullptr;      // [rows, groups] s; null where they are in the blocks
  const float* w_zeros = nullptr;       // the same, pi, whole numbers; or null: symmetric weights
  // [rows] P, sums of codes; needed with x_zero_offsets, except for kPlain. Where the weights have
  // groups and x has none: sums of the weights, scales included.
  const float* w_sums = nullptr;
  const float* bias = nullptr;  // [rows] or null
  // Weights of up in the form of w and w_scales, or null. With them y is the GLU output of the gate
  // W x and of up x, where both products and the result are rounded to bf16 (gemm_sm90 alone).
  const uint8_t* up_w = nullptr;
  const float* up_scales = nullptr;
  GateSpec gating;
  int64_t rows = 0, cols = 0;     // N and K of the weights, any
  void* y = nullptr;              // [tokens, y_stride]; fastest when rows of it are aligned to 16
  int64_t y_stride = 0;           // elements, >= rows
  bool accumulate = false;        // y += ..., kFloat32 only
  const float* addend = nullptr;  // [tokens, y_stride] added to y, or null; Kernel::takes_addend
  RealType y_type = RealType::kFloat32;
  TailTerms tail;
  // Weights of the tail: codes as kBytes, or [rows, tail.cols] of tail.w_type; scales of codes
  // [rows].
  const uint8_t* tail_w = nullptr;
  const float* tail_scales = nullptr;
  // In a mixture, terms of w and up_w are those of the first expert; all others have the same form.
  ExpertGroups experts;

  int joins = 0;  // products that run in the same launch (gemm_sm90 alone)
  ProductTerms joined[kMaxJoined - 1] = {};

  __host__ __device__ LinearTerms terms() const {
    return {w, w_scales, w_zeros, w_sums, bias, up_w, up_scales, tail_w, tail_scales};
  }
  __host__ __device__ ProductTerms product(int i) const {
    static_assert(kMaxJoined == 3);  // constant indices, so that no copy is made of the array
    if (i == 1) return joined[0];
    return i == 2 ? joined[1] : ProductTerms{terms(), y, y_stride, rows};
  }
  __host__ __device__ bool planes() const { return a_bits == 16; }
  // Sums that a product has for an output: one for a token, or one for each of its planes.
  __host__ __device__ int columns() const {
    return static_cast<int>(planes() ? 2 * tokens : tokens);
  }
  int64_t x_rows() const { return planes() ? PlaneRows(tokens) : tokens; }
  __host__ __device__ constexpr int block_bytes() const {
    return CodeBytes(w_kind) + w_block.bytes();
  }
};

// True if one launch can do both products: they differ only in their weights and outputs, and have
// the same terms of the law.
bool CanJoin(const GemmArguments& a, const GemmArguments& b);

// Returns the first product with the others joined to it; CanJoin must be true of them.
GemmArguments Join(std::span<const GemmArguments> products);

// These abort on arguments that break the rules above.
void CheckArguments(const GemmArguments& arguments);
void CheckJoined(std::span<const GemmArguments> products);  // 1 to kMaxJoined

// Calls visit<kind, fine> for weights with scales of rows or of two levels.
template <typename Visit>
auto WithRowKind(const GemmArguments& g, const Visit& visit) {
  switch (g.w_kind) {
    case WeightKind::kNibbles:
      return visit.template operator()<WeightKind::kNibbles, false>();
    case WeightKind::kBytes:
      return visit.template operator()<WeightKind::kBytes, false>();
    default:
      NIBBLE_CUDA_CHECK(g.w_kind == WeightKind::kLevels);
      return g.w_block.pieces == 1 ? visit.template operator()<WeightKind::kLevels, false>()
                                   : visit.template operator()<WeightKind::kLevels, true>();
  }
}

// Calls visit<kind> for sparse weights.
template <typename Visit>
auto WithSparseKind(WeightKind kind, const Visit& visit) {
  if (kind == WeightKind::kSparseNibbles) {
    return visit.template operator()<WeightKind::kSparseNibbles>();
  }
  NIBBLE_CUDA_CHECK(kind == WeightKind::kSparseBytes);
  return visit.template operator()<WeightKind::kSparseBytes>();
}

}  // namespace nibble::cuda
