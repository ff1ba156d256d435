// SPDX-License-Identifier: Apache-2.0
// The differences between the products of gemm_plain.cu. A product has elements (a float, or four
// codes), units (16 bytes of a row of w and the inputs they meet) and groups of inputs, whose sum
// of products D, and for codes Q and P, the sums of x and w, make a term of the output.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backends/cuda/gemm/gemm_plain.h"

namespace nibble::cuda {

template <typename W>
struct FloatProduct {
  using Element = float;
  static constexpr int kInputs = 1;                               // of an element
  static constexpr int kUnitInputs = 16 / sizeof(W);              // of a unit
  static constexpr int kUnitBytes = kUnitInputs * sizeof(float);  // of x

  const GemmArguments& g;

  __host__ __device__ int64_t group() const { return g.cols; }
  __host__ __device__ const char* x_row(int64_t t) const {
    return reinterpret_cast<const char*>(g.values + t * g.cols);
  }
  __host__ __device__ const char* w_row(int64_t n) const {
    return reinterpret_cast<const char*>(g.w) + n * g.cols * int64_t{sizeof(W)};
  }
  // True if units lie at multiples of 16 bytes.
  bool has_units() const {
    return (reinterpret_cast<uintptr_t>(x_row(0)) | reinterpret_cast<uintptr_t>(w_row(0)) |
            g.cols * sizeof(float) | g.cols * sizeof(W)) %
               16 ==
           0;
  }

  __device__ bool has_whole_elements() const { return true; }
  // The element of input k of a row; 0 from `end` on, and no branch in front of the load.
  template <bool>
  static __device__ float XElement(const char* row, int64_t k, int64_t end) {
    const float value = reinterpret_cast<const float*>(row)[min(k, end - 1)];
    return k < end ? value : 0.0f;
  }
  template <bool>
  static __device__ float WElement(const char* row, int64_t k, int64_t end) {
    const W value = reinterpret_cast<const W*>(row)[min(k, end - 1)];
    return k < end ? static_cast<float>(value) : 0.0f;
  }
  static __device__ void Multiply(float x, float w, float& d) { d = fmaf(x, w, d); }
  static __device__ void Count(float, float&) {}
  static __device__ void MultiplyUnit(const uint4* x, const uint4& w, float& d, float&, float&) {
    const auto* inputs = reinterpret_cast<const float*>(x);
    const auto* values = reinterpret_cast<const W*>(&w);
#pragma unroll
    for (int i = 0; i < kUnitInputs; ++i) Multiply(inputs[i], static_cast<float>(values[i]), d);
  }
  __device__ float Term(float d, float, float, int64_t, int64_t, int64_t) const {
    return d;
  }
};

// kCorrected: there are zeros or zero offsets, so sums of codes are needed too.
template <bool kCorrected>
struct GroupedProduct {
  using Element = int32_t;
  static constexpr int kInputs = 4, kUnitInputs = 16, kUnitBytes = 16;

  const GemmArguments& g;

  __host__ __device__ int64_t x_group() const { return g.x_group == 0 ? g.cols : g.x_group; }
  __host__ __device__ int64_t w_group() const { return g.w_group == 0 ? g.cols : g.w_group; }
  __host__ __device__ int64_t group() const {
    return x_group() < w_group() ? x_group() : w_group();
  }
  __host__ __device__ const char* x_row(int64_t t) const {
    return reinterpret_cast<const char*>(g.x + t * g.stride);
  }
  __host__ __device__ const char* w_row(int64_t n) const {
    return reinterpret_cast<const char*>(g.w + n * g.stride);
  }
  bool has_units() const {
    const int64_t group_bytes = group() == g.cols ? 0 : group();
    return (reinterpret_cast<uintptr_t>(g.x) | reinterpret_cast<uintptr_t>(g.w) | g.stride |
            group_bytes) %
               16 ==
           0;
  }

  // True if no four codes of an element belong to two groups and all lie at multiples of 4 bytes.
  __device__ bool has_whole_elements() const {
    return (reinterpret_cast<uintptr_t>(g.x) | reinterpret_cast<uintptr_t>(g.w) | g.stride |
            group()) %
               4 ==
           0;
  }
  // Codes k to k + 3, zeros from `end` on.
  template <bool kWhole>
  static __device__ int32_t XElement(const char* row, int64_t k, int64_t end) {
    if constexpr (kWhole) {
      const int32_t codes = *reinterpret_cast<const int32_t*>(row + min(k, end - 4));
      return k < end ? codes : 0;
    }
    uint32_t codes = 0;
    for (int i = 0; i < 4 && k + i < end; ++i) {
      codes |= uint32_t{static_cast<uint8_t>(row[k + i])} << (8 * i);
    }
    return static_cast<int32_t>(codes);
  }
  template <bool kWhole>
  static __device__ int32_t WElement(const char* row, int64_t k, int64_t end) {
    return XElement<kWhole>(row, k, end);
  }
  static __device__ void Multiply(int32_t x, int32_t w, int32_t& d) { d = __dp4a(x, w, d); }
  static __device__ void Count(int32_t codes, int32_t& sum) {
    if constexpr (kCorrected) sum = __dp4a(codes, 0x01010101, sum);
  }
  static __device__ void MultiplyUnit(const uint4* x, const uint4& w, int32_t& d, int32_t& q,
                                      int32_t& p) {
    const auto* inputs = reinterpret_cast<const int32_t*>(x);
    const auto* codes = reinterpret_cast<const int32_t*>(&w);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      Multiply(inputs[i], codes[i], d), Count(inputs[i], q), Count(codes[i], p);
  }
  // a s [D - pi Q + z (P - L pi)], each operation rounded once.
  __device__ float Term(int32_t d, int32_t q, int32_t p, int64_t t, int64_t n,
                        int64_t first_input) const {
    const int64_t x_at = first_input / x_group() * g.x_pitch + t;
    const int64_t w_at = n * (g.cols / w_group()) + first_input / w_group();
    float term;
    if constexpr (kCorrected) {
      const int32_t zero = g.w_zeros == nullptr ? 0 : static_cast<int32_t>(g.w_zeros[w_at]);
      term = __int2float_rn(d - zero * q);
      if (g.x_zero_offsets != nullptr) {
        const int32_t centred = p - static_cast<int32_t>(group()) * zero;
        term = __fadd_rn(term, __fmul_rn(g.x_zero_offsets[x_at], __int2float_rn(centred)));
      }
    } else {
      term = __int2float_rn(d);
    }
    return __fmul_rn(__fmul_rn(g.x_scales[x_at], g.w_scales[w_at]), term);
  }
};

}  // namespace nibble::cuda
