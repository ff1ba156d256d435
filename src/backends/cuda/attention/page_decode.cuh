// SPDX-License-Identifier: Apache-2.0
// K or V of one page as fp16 rows in shared memory, from any format of the cache. Eight elements
// have the order 0 4 1 5 2 6 3 7, in which masks take them out of a word of nibbles; q is stored in
// the same order, and outputs are put right when they are written.
#pragma once

#include "backends/cuda/attention/attention_tile.cuh"

namespace nibble::cuda {

// Eight elements in that order.
__device__ __forceinline__ uint4 PackEight(const float (&x)[8]) {
  return {PackHalves(x[0], x[4]), PackHalves(x[1], x[5]), PackHalves(x[2], x[6]),
          PackHalves(x[3], x[7])};
}

// Eight 4-bit codes: scale * (code - zero). 1024 + code and 1024 + 16 code are fp16 numbers whose
// last bits are the code; `zero` is 1024 + zero in both halves, `zero_16` is 64 + zero, negated.
struct NibbleDecoder {
  __half2 scale, zero, minus_zero_16;

  __device__ explicit NibbleDecoder(__half2 params)
      : scale(__low2half2(params)),
        zero(__hadd2(__high2half2(params), __float2half2_rn(1024.0f))),
        minus_zero_16(__hneg2(__hadd2(__high2half2(params), __float2half2_rn(64.0f)))) {}

  __device__ __forceinline__ uint32_t Even(uint32_t word) const {
    return Bits(__hmul2(__hsub2(Halves((word & 0x000F000Fu) | 0x64006400u), zero), scale));
  }
  __device__ __forceinline__ uint32_t Odd(uint32_t word) const {
    const __half2 codes = Halves((word & 0x00F000F0u) | 0x64006400u);
    return Bits(__hmul2(__hfma2(codes, __float2half2_rn(0.0625f), minus_zero_16), scale));
  }
  __device__ __forceinline__ uint4 Decode(uint32_t word) const {
    return {Even(word), Odd(word), Even(word >> 8), Odd(word >> 8)};
  }

  static __device__ __forceinline__ __half2 Halves(uint32_t bits) {
    return *reinterpret_cast<const __half2*>(&bits);
  }
  static __device__ __forceinline__ uint32_t Bits(__half2 halves) {
    return *reinterpret_cast<const uint32_t*>(&halves);
  }
};

// Eight 8-bit codes: scale * (code - zero).
struct ByteDecoder {
  __half2 scale, zero;

  __device__ explicit ByteDecoder(__half2 params)
      : scale(__low2half2(params)),
        zero(__hadd2(__high2half2(params), __float2half2_rn(1024.0f))) {}

  // Codes i and i + 4.
  __device__ __forceinline__ uint32_t Two(uint32_t low, uint32_t high, int i) const {
    const uint32_t codes = __byte_perm(low, high, 0x0400u + 0x0101u * i);
    const __half2 halves = NibbleDecoder::Halves((codes & 0x00FF00FFu) | 0x64006400u);
    return NibbleDecoder::Bits(__hmul2(__hsub2(halves, zero), scale));
  }
  __device__ __forceinline__ uint4 Decode(uint32_t low, uint32_t high) const {
    return {Two(low, high, 0), Two(low, high, 1), Two(low, high, 2), Two(low, high, 3)};
  }
};

// Rows of D codes, 16 bytes at a time.
template <int D, int kBits>
__device__ __forceinline__ void DecodeCodeRows(const KvPart& part, const std::byte* block,
                                               int stored, __half* rows, int stride) {
  constexpr int kChunks = D * kBits / 128;
#pragma unroll 2
  for (int i = threadIdx.x; i < stored * kChunks; i += blockDim.x) {
    const int row = i / kChunks, chunk = i % kChunks;
    const auto words = *reinterpret_cast<const uint4*>(block + part.codes + 16 * i);
    const __half2 params = reinterpret_cast<const __half2*>(block + part.params)[row];
    auto* to = reinterpret_cast<uint4*>(rows + row * stride + 128 / kBits * chunk);
    if constexpr (kBits == 4) {
      const NibbleDecoder decoder(params);
      to[0] = decoder.Decode(words.x), to[1] = decoder.Decode(words.y);
      to[2] = decoder.Decode(words.z), to[3] = decoder.Decode(words.w);
    } else {
      const ByteDecoder decoder(params);
      to[0] = decoder.Decode(words.x, words.y), to[1] = decoder.Decode(words.z, words.w);
    }
  }
}

// Rows of D elements of bf16, eight at a time.
template <int D>
__device__ __forceinline__ void DecodeBf16Rows(const std::byte* codes, int stored, __half* rows,
                                               int stride) {
#pragma unroll 4
  for (int i = threadIdx.x; i < stored * (D / 8); i += blockDim.x) {
    float x[8];
    UnpackBf16(reinterpret_cast<const uint4*>(codes)[i], x);
    *reinterpret_cast<uint4*>(rows + i / (D / 8) * stride + i % (D / 8) * 8) = PackEight(x);
  }
}

// Elements [d, d + 8) of a row of any width: eight codes are `bits` whole bytes.
__device__ __forceinline__ void DecodeEight(const KvPart& part, const std::byte* block, int row,
                                            int d, float (&x)[8]) {
  const std::byte* codes = block + part.codes + row * part.row_bytes;
  if (part.bits == 16) return UnpackBf16(reinterpret_cast<const uint4*>(codes)[d / 8], x);
  if (part.bits == 32) {
    const auto* values = reinterpret_cast<const float4*>(codes) + d / 4;
    const float4 low = values[0], high = values[1];
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
    x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
    return;
  }
  const auto address = reinterpret_cast<uintptr_t>(codes + d / 8 * part.bits);
  const auto* words = reinterpret_cast<const uint32_t*>(address & ~uintptr_t{3});
  const int shift = address % 4 * 8;  // params follow the codes: a word too many does no harm
  const uint32_t low = __funnelshift_r(words[0], words[1], shift);
  const uint32_t high = __funnelshift_r(words[1], words[2], shift);
  const uint32_t fours[2] = {low, __funnelshift_rc(low, high, 4 * part.bits)};
  const auto* params = reinterpret_cast<const __half2*>(block + part.params) + row * part.groups;
  const uint32_t mask = (1u << part.bits) - 1;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float2 p = __half22float2(params[part.groups == 1 ? 0 : (d + i) / part.group]);
    x[i] = p.x * (static_cast<float>(fours[i / 4] >> (i % 4 * part.bits) & mask) - p.y);
  }
}

// A whole block of threads calls this. Not inlined, because the fast path needs the registers for
// its sums.
inline __device__ __noinline__ void DecodeAnyRows(const KvPart& part, int head_dim,
                                                  const std::byte* block, int stored, __half* rows,
                                                  int stride) {
  const int eights = head_dim / 8;
  for (int i = threadIdx.x; i < stored * eights; i += blockDim.x) {
    const int row = i / eights, d = i % eights * 8;
    float x[8];
    DecodeEight(part, block, row, d, x);
    *reinterpret_cast<uint4*>(rows + row * stride + d) = PackEight(x);
  }
}

// A whole block of threads decodes rows of head_dim <= D elements. `block` may lie in shared or
// global memory; rows from `stored` on become zeros.
template <int D>
__device__ __forceinline__ void DecodeRows(const KvPart& part, int head_dim, const std::byte* block,
                                           int stored, __half* rows, int stride) {
  const int eights = head_dim / 8;
  for (int i = stored * eights + threadIdx.x; i < kPageKeys * eights; i += blockDim.x) {
    *reinterpret_cast<uint4*>(rows + i / eights * stride + i % eights * 8) = {};
  }
  if (part.packs() && head_dim == D) {
    part.bits == 4 ? DecodeCodeRows<D, 4>(part, block, stored, rows, stride)
                   : DecodeCodeRows<D, 8>(part, block, stored, rows, stride);
  } else if (part.bits == 16 && head_dim == D) {
    DecodeBf16Rows<D>(block + part.codes, stored, rows, stride);
  } else {
    DecodeAnyRows(part, head_dim, block, stored, rows, stride);
  }
}

}  // namespace nibble::cuda
