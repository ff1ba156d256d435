// SPDX-License-Identifier: Apache-2.0
// The integer product of a packed linear, as prefill and decode kernels take it: the arithmetic law
// of docs/numerics.md for one group per row, bit for bit.
//
//   y[t, n] (+)= (a_t s_n) [float(D - pi_n Q_t) + zeta_t float(P_n - cols pi_n)] + bias_n
//
// D = sum over k of x[t, k] w[n, k], exact in int32; every other operation rounds once, in this
// order. cols is at most 65793, so that no integer overflows (a loader checks it).
#pragma once

#include <cstdint>
#include <span>

#include "backends/cuda/real_type.h"

namespace nibble::cuda {

// What blocks of weight_order.h hold: codes of 4 or 8 bits, or codes of 4 bits with the steps that
// make 8 of them (packed_linear.h, LevelStep).
enum class WeightKind { kNibbles, kBytes, kLevels };

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
  const float* x_scales = nullptr;  // [tokens] a
  const float* x_zetas = nullptr;   // [tokens] zeta, or null: symmetric activations
  const int32_t* x_sums = nullptr;  // [tokens] Q, sums of the codes; needed by w_zeros
  int64_t tokens = 0;               // >= 1
  int x_bits = 8;                   // 2..8, of the codes
  int64_t stride = 0;               // bytes between rows of x: a multiple of 128, >= cols
  const uint8_t* w = nullptr;       // in the order of weight_order.h
  WeightKind w_kind = WeightKind::kNibbles;
  const float* w_scales = nullptr;   // [rows] s
  const float* w_zeros = nullptr;    // [rows] pi, whole numbers; or null: symmetric weights
  const float* w_sums = nullptr;     // [rows] P, sums of the codes; needed by x_zetas
  const float* bias = nullptr;       // [rows] or null
  const uint8_t* up_w = nullptr;     // or null; as w: y = silu(W x) * (up x) instead, each product
  const float* up_scales = nullptr;  // and the result rounded to bf16 (gemm_sm90 alone)
  int64_t rows = 0, cols = 0;        // N and K of the weights, any
  void* y = nullptr;        // [tokens, y_stride]; fastest when rows of it are aligned to 16
  int64_t y_stride = 0;     // elements, >= rows
  bool accumulate = false;  // y += ..., kFloat32 only
  RealType y_type = RealType::kFloat32;
};

inline constexpr size_t kMaxJoined = 3;

// Whether one launch can do both products: they differ only in their weights and outputs, and have
// the same terms of the law.
bool CanJoin(const GemmArguments& a, const GemmArguments& b);

// These abort on arguments that break the rules above.
void CheckArguments(const GemmArguments& arguments);
void CheckJoined(std::span<const GemmArguments> products);  // 1 to kMaxJoined

}  // namespace nibble::cuda
