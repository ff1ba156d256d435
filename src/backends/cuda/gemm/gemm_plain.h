// SPDX-License-Identifier: Apache-2.0
// Every product that the tensor-core kernels do not take, on ordinary cores: fp32 inputs, and codes
// with groups. Right first; with a few tokens they are limited by reading the weights once.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backends/cuda/real_type.h"

namespace nibble::cuda {

enum class WeightType { kFloat32, kBfloat16, kFloat16 };

// y[t, n] (+)= sum over k of x[t, k] w[n, k] + bias_n. Each output is one chain of fp32 fused
// multiply-adds over ascending k, for any number of tokens. Device pointers; "or null" says so.
struct FloatGemmArguments {
  const float* x = nullptr;  // [tokens, x_stride]
  int64_t tokens = 0;        // >= 1
  int64_t x_stride = 0;      // elements
  const void* w = nullptr;   // [rows, cols]
  WeightType w_type = WeightType::kFloat32;
  int64_t rows = 0, cols = 0;
  const float* bias = nullptr;  // [rows] or null
  void* y = nullptr;            // [tokens, y_stride]
  int64_t y_stride = 0;
  bool accumulate = false;  // kFloat32 only
  RealType y_type = RealType::kFloat32;
};

// Enqueues the product, fastest where rows of x and w are aligned to 16 bytes. A dependent launch.
// Throws nibble::Error if it is refused.
void GemmFloat(const FloatGemmArguments& arguments, cudaStream_t stream);

// The arithmetic law of docs/numerics.md with groups, bit for bit: the smaller of the two groups is
// summed in integers, groups are added in ascending order. Needs no code sums.
struct GroupedGemmArguments {
  const int8_t* x = nullptr;         // [tokens, x_stride] codes, zeros from cols on
  const float* x_scales = nullptr;   // [tokens, cols / x_group] a
  const float* x_zetas = nullptr;    // the same, or null: symmetric activations
  int64_t tokens = 0;                // >= 1
  int64_t x_stride = 0;              // bytes
  const int8_t* w = nullptr;         // [rows, w_stride] codes, zeros from cols on
  const float* w_scales = nullptr;   // [rows, cols / w_group] s
  const float* w_zeros = nullptr;    // the same, whole numbers; or null: symmetric weights
  int64_t w_stride = 0;              // bytes
  int64_t x_group = 0, w_group = 0;  // inputs, 0 = cols; one is a multiple of the other
  int64_t rows = 0, cols = 0;
  const float* bias = nullptr;  // [rows] or null
  void* y = nullptr;            // [tokens, y_stride]
  int64_t y_stride = 0;
  bool accumulate = false;  // kFloat32 only
  RealType y_type = RealType::kFloat32;
};

// As GemmFloat; fastest with strides and groups of whole 16 bytes.
void GemmGrouped(const GroupedGemmArguments& arguments, cudaStream_t stream);

}  // namespace nibble::cuda
