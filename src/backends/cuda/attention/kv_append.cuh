// SPDX-License-Identifier: Apache-2.0
// Writes one head of one token from the registers of a warp into the cache, with the fp32
// expressions of formats/quantizer.h in the same order.
#pragma once

#include <cuda_fp16.h>

#include "backends/cuda/attention/head_rows.cuh"

namespace nibble::cuda {

// The quantizer of one group.
struct CacheGrid {
  __half scale;
  float inverse, zero, top;

  __device__ CacheGrid(const KvPart& part, float lo, float hi) {
    constexpr float kMinKvScale = 1e-5f, kMaxKvScale = 65504.0f;
    top = static_cast<float>((1 << part.bits) - 1);
    float step;
    if (part.symmetric) {
      step = __fmul_rn(fmaxf(-lo, hi), part.clip_per_step);
    } else {
      lo = __fmul_rn(lo, part.clip);
      step = __fdiv_rn(__fsub_rn(__fmul_rn(hi, part.clip), lo), top);
    }
    scale = __float2half_rn(fminf(fmaxf(step, kMinKvScale), kMaxKvScale));
    inverse = __fdiv_rn(1.0f, __half2float(scale));
    zero = part.symmetric ? static_cast<float>(1 << (part.bits - 1))
                          : fminf(fmaxf(rintf(__fsub_rn(0.0f, __fmul_rn(lo, inverse))), 0.0f), top);
  }
  __device__ __half2 Params() const { return __halves2half2(scale, __float2half_rn(zero)); }
  __device__ uint8_t Code(float x) const {
    const float code = __fadd_rn(rintf(__fmul_rn(x, inverse)), zero);
    return static_cast<uint8_t>(fminf(fmaxf(code, 0.0f), top));
  }
};

// min(x, 0) and max(x, 0) over the elements [begin, end) of a row.
__device__ __forceinline__ float2 RangeOf(const float* row, int begin, int end) {
  float2 range = {};
  for (int i = begin; i < end; ++i) range = {fminf(range.x, row[i]), fmaxf(range.y, row[i])};
  return range;
}

// RangeOf the elements of this lane and of the `lanes` lanes that share its group.
template <int kElements>
__device__ __forceinline__ float2 RangeOf(const float (&x)[kElements], int lanes) {
  float2 range = {};
#pragma unroll
  for (float v : x) range = {fminf(range.x, v), fmaxf(range.y, v)};
  for (int distance = 1; distance < lanes; distance *= 2) {
    range.x = fminf(range.x, __shfl_xor_sync(~0u, range.x, distance));
    range.y = fmaxf(range.y, __shfl_xor_sync(~0u, range.y, distance));
  }
  return range;
}

// Eight codes, a byte each, as 8 * bits bits.
__device__ __forceinline__ void PackEight(const uint8_t* codes, int bits, uint8_t* packed) {
  const uint2 bytes = *reinterpret_cast<const uint2*>(codes);
  uint64_t word = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    word |= uint64_t{bytes.x >> (8 * i) & 0xFF} << (i * bits);
    word |= uint64_t{bytes.y >> (8 * i) & 0xFF} << ((i + 4) * bits);
  }
  if (bits == 4) {
    *reinterpret_cast<uint32_t*>(packed) = static_cast<uint32_t>(word);
  } else {
    for (int i = 0; i < bits; ++i) packed[i] = static_cast<uint8_t>(word >> (8 * i));
  }
}

// Shared memory for Append.
template <int kElements>
struct AppendMemory {
  alignas(16) float row[32 * kElements];
  alignas(16) uint8_t codes[32 * kElements];
};

// Writes one token of one head into its block.
template <int kElements>
__device__ __forceinline__ void Append(const KvPart& part, int head_dim, std::byte* block, int slot,
                                       AppendMemory<kElements>& memory,
                                       const float (&x)[kElements]) {
  const int first = Lane() * kElements;
  std::byte* codes_out = block + part.codes + slot * part.row_bytes;
  if (part.bits >= 16) {
    if (first >= head_dim) return;
    if (part.bits == 32) {
      Store(x, reinterpret_cast<float*>(codes_out) + first);
    } else {
      Store(x, reinterpret_cast<__nv_bfloat16*>(codes_out) + first);
    }
    return;
  }
  auto* params_out = reinterpret_cast<__half2*>(block + part.params) + slot * part.groups;
  // Lanes of a group: all, or a power of two. In other groups each element finds its range by
  // itself.
  const int lanes = part.groups == 1 ? 32 : part.group / kElements;
  const bool regular =
      part.groups == 1 || (part.group % kElements == 0 && (lanes & (lanes - 1)) == 0);
  Neighbours<kElements, uint8_t> codes;
  if (regular) {
    const float2 range = RangeOf(x, lanes);
    const CacheGrid grid(part, range.x, range.y);
#pragma unroll
    for (int i = 0; i < kElements; ++i) codes.x[i] = grid.Code(x[i]);
    *reinterpret_cast<Neighbours<kElements, uint8_t>*>(memory.codes + first) = codes;
    if (first < head_dim && (part.groups == 1 ? first == 0 : first % part.group == 0)) {
      params_out[part.groups == 1 ? 0 : first / part.group] = grid.Params();
    }
  } else {
    Store(x, memory.row + first);
    __syncwarp();
    for (int element = Lane(); element < head_dim; element += 32) {
      const int group = element / part.group, begin = group * part.group;
      const float2 range = RangeOf(memory.row, begin, begin + part.group);
      const CacheGrid grid(part, range.x, range.y);
      memory.codes[element] = grid.Code(memory.row[element]);
      if (element == begin) params_out[group] = grid.Params();
    }
  }
  __syncwarp();
  for (int eight = Lane(); 8 * eight < head_dim; eight += 32) {
    PackEight(memory.codes + 8 * eight, part.bits,
              reinterpret_cast<uint8_t*>(codes_out) + eight * part.bits);
  }
}

}  // namespace nibble::cuda
