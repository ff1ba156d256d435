// SPDX-License-Identifier: Apache-2.0
// The product of a packed linear, as all kernels take it. Of integers: the arithmetic law of
// docs/numerics.md, bit for bit, here for one group per row.
//
//   y[t, n] (+)= (a_t s_n) [float(D - pi_n Q_t) + zeta_t float(P_n - cols pi_n)] + bias_n
//
// D = sum over k of x[t, k] w[n, k], exact in int32; every other operation rounds once, in this
// order. cols is at most 65793, so that no integer overflows (a loader checks it). Of floats
// (kFloats) each output is one chain of fp32 fused multiply-adds over ascending k.
#pragma once

#include <cstdint>
#include <span>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/real_type.h"

namespace nibble::cuda {

// How weights lie in memory.
enum class WeightKind {
  // Blocks of weight_order.h, for one scale a row on either side: codes of 4 or 8 bits, or codes of
  // 4 bits with the steps that make 8 of them (packed_linear.h, LevelStep).
  kNibbles,
  kBytes,
  kLevels,
  kGroups,  // codes as bytes [rows, stride], zero from cols on
  kFloats,  // [rows, cols] of a WeightType
};
enum class WeightType { kFloat32, kBfloat16, kFloat16 };

inline constexpr int kStepBytes = 128;  // of a block, behind its codes
constexpr int CodeBits(WeightKind kind) {
  return kind == WeightKind::kBytes ? 8 : 4;
}
constexpr int WeightBlockBytes(WeightKind kind) {
  return 64 * 128 * CodeBits(kind) / 8 + (kind == WeightKind::kLevels ? kStepBytes : 0);
}
// Nibbles are multiplied as 16 times their codes.
constexpr int SumFactor(WeightKind kind) {
  return kind == WeightKind::kNibbles ? 16 : 1;
}

// Device pointers, aligned to 16 bytes; null where "or null" says so.
struct GemmArguments {
  const int8_t* x = nullptr;        // [tokens, stride] codes, zero from cols on
  const float* values = nullptr;    // kFloats instead: [tokens, cols]
  const float* x_scales = nullptr;  // [tokens, groups] a
  const float* x_zetas = nullptr;   // [tokens, groups] zeta, or null: symmetric activations
  const int32_t* x_sums = nullptr;  // [tokens, groups] Q, sums of codes; needed by w_zeros
  int64_t tokens = 0;               // >= 1
  int x_bits = 8;                   // 2..8, of the codes
  int64_t stride = 0;               // bytes between rows of x: a multiple of 128, >= cols
  const uint8_t* w = nullptr;       // as w_kind says
  WeightKind w_kind = WeightKind::kNibbles;
  WeightType w_type = WeightType::kFloat32;  // kFloats
  int64_t x_group = 0, w_group = 0;  // kGroups: inputs, 0 = cols; one is a multiple of the other
  const float* w_scales = nullptr;   // [rows, groups] s
  const float* w_zeros = nullptr;    // the same, pi, whole numbers; or null: symmetric weights
  const float* w_sums = nullptr;     // [rows] P, sums of codes; needed by x_zetas, not of kGroups
  const float* bias = nullptr;       // [rows] or null
  const uint8_t* up_w = nullptr;     // or null; as w: y = silu(W x) * (up x) instead, each product
  const float* up_scales = nullptr;  // and the result rounded to bf16 (gemm_sm90 alone)
  int64_t rows = 0, cols = 0;        // N and K of the weights, any
  void* y = nullptr;        // [tokens, y_stride]; fastest when rows of it are aligned to 16
  int64_t y_stride = 0;     // elements, >= rows
  bool accumulate = false;  // y += ..., kFloat32 only
  RealType y_type = RealType::kFloat32;
};

// work.operator()<kind>() for a kind of blocks.
template <typename Work>
void WithBlocks(WeightKind kind, Work&& work) {
  if (kind == WeightKind::kNibbles) return work.template operator()<WeightKind::kNibbles>();
  if (kind == WeightKind::kBytes) return work.template operator()<WeightKind::kBytes>();
  NIBBLE_CUDA_CHECK(kind == WeightKind::kLevels);
  work.template operator()<WeightKind::kLevels>();
}

inline constexpr size_t kMaxJoined = 3;

// Whether one launch can do both products: they differ only in their weights and outputs, and have
// the same terms of the law.
bool CanJoin(const GemmArguments& a, const GemmArguments& b);

// These abort on arguments that break the rules above.
void CheckArguments(const GemmArguments& arguments);
void CheckJoined(std::span<const GemmArguments> products);  // 1 to kMaxJoined

}  // namespace nibble::cuda
