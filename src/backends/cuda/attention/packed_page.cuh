// SPDX-License-Identifier: Apache-2.0
// One page of one kv head, 4-bit K and V with one {scale, zero} per token, in shared memory and as
// operands of the tensor cores. Like formats/kv_format.h, but the 16-byte chunks of a row of codes
// change places so that neither way of reading it meets a bank twice.
#pragma once

#include <cuda_fp16.h>

#include "backends/cuda/attention/kv_layout.h"
#include "backends/cuda/ptx/ptx.h"

namespace nibble::cuda {

// Codes 0, 2, 4, 6 of a word as four bytes, and codes 1, 3, 5, 7 times 16.
inline constexpr uint32_t kEvenNibbles = 0x0F0F0F0F, kOddNibbles = 0xF0F0F0F0;

// Selectors of __byte_perm: the lower and the upper bytes of four 16-bit halves.
inline constexpr uint32_t kLowerBytes = 0x6420, kUpperBytes = 0x7531;

template <int D>
struct PackedPage {
  static constexpr int kChunks = D / 32;  // of a row
  static constexpr int kCodes = kPageKeys * D / 2;
  static constexpr int kPart = kCodes + kPageKeys * 4;  // codes, then params
  static constexpr int kBytes = 2 * kPart;              // K, then V
  static constexpr int kWords = D / 32;                 // of a key that a lane holds

  // Where a chunk of a row lies, in bytes. Eight rows at one chunk, and two rows at four chunks,
  // cover all banks.
  static __device__ int At(int row, int chunk) {
    if constexpr (D == 64) chunk ^= row / 4 % 2;
    if constexpr (D == 128) chunk ^= row / 2 % 4;
    if constexpr (D == 256) chunk ^= row % 8;
    return (row * kChunks + chunk) * 16;
  }

  // Starts the copy of a block by one warp. A step of 512 bytes, or 1024 of a half row each, is
  // whole periods of At.
  static __device__ __forceinline__ void Copy(const std::byte* block, std::byte* page) {
    constexpr int kHalves = D == 256 ? 2 : 1, kAcross = kChunks / kHalves;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int row = lane / kAcross, chunk = lane % kAcross + half * kAcross;
      const std::byte* from = block + (row * kChunks + chunk) * 16;
      std::byte* to = page + At(row, chunk);
#pragma unroll
      for (int i = 0; i < kCodes; i += 512 * kHalves) {
        CopyAsync16(to + i, from + i);
        CopyAsync16(to + kPart + i, from + kPart + i);
      }
    }
    const int params = lane / 16 * kPart + kCodes + lane % 16 * 16;
    CopyAsync16(page + params, block + params);
  }

  // Keys from `stored` on get scale and zero 0: what lies there may be anything, also NaN.
  static __device__ __forceinline__ void ClearParams(std::byte* page, int stored) {
    for (int key = stored + threadIdx.x % 32; key < kPageKeys; key += 32) {
      reinterpret_cast<uint32_t*>(page + kCodes)[key] = 0;
      reinterpret_cast<uint32_t*>(page + kPart + kCodes)[key] = 0;
    }
    __syncwarp();
  }

  // {scale, zero} of a key.
  static __device__ __forceinline__ float2 Params(const std::byte* part, int key) {
    return __half22float2(reinterpret_cast<const __half2*>(part + kCodes)[key]);
  }

  // A quarter of a row: elements t * D / 4 and on, eight to a word.
  static __device__ __forceinline__ void LoadKey(const std::byte* page, int row, uint32_t* w) {
    const int t = threadIdx.x % 4;
    if constexpr (D == 64) {
      const auto v = *reinterpret_cast<const uint2*>(page + At(row, t / 2) + t % 2 * 8);
      w[0] = v.x, w[1] = v.y;
    } else if constexpr (D % 128 == 0) {
#pragma unroll
      for (int i = 0; i < kWords / 4; ++i) {
        const auto v = *reinterpret_cast<const uint4*>(page + At(row, t * (kWords / 4) + i));
        w[4 * i] = v.x, w[4 * i + 1] = v.y, w[4 * i + 2] = v.z, w[4 * i + 3] = v.w;
      }
    } else {
      const auto* words = reinterpret_cast<const uint32_t*>(page + At(row, 0)) + t * kWords;
#pragma unroll
      for (int i = 0; i < kWords; ++i) w[i] = words[i];
    }
  }

  // Operands A of products over 32 keys of V: row g and row g + 8 are the same places in `chunk`
  // and in the next one. Each code byte of `first` is element 4 g (low nibble) and 4 g + 1 of a
  // chunk, of `second` 4 g + 2 and 4 g + 3. Byte i of registers 0 and 1 is key 2 t, 2 t + 1, 2 t +
  // 8 or 2 t + 9; registers 2 and 3 are 16 keys further. The last chunk of an odd number stands
  // alone: elements 4 g + 2 and 4 g + 3 are row g + 8 of `first`.
  static __device__ __forceinline__ void LoadValues(const std::byte* values, int key, int chunk,
                                                    uint32_t (&first)[4], uint32_t (&second)[4]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4; i += 2, key += 16) {
      uint32_t r[4];
      if (chunk + 1 < kChunks) {
        LoadTransposed(values + At(key + lane / 16 * 8 + lane % 8, chunk + lane / 8 % 2), r);
        first[i] = __byte_perm(r[0], r[2], kLowerBytes),
        first[i + 1] = __byte_perm(r[1], r[3], kLowerBytes);
        second[i] = __byte_perm(r[0], r[2], kUpperBytes),
        second[i + 1] = __byte_perm(r[1], r[3], kUpperBytes);
      } else {
        LoadTransposed(values + At(key + lane % 16, chunk), r);
        first[i] = __byte_perm(r[0], r[1], kLowerBytes),
        first[i + 1] = __byte_perm(r[0], r[1], kUpperBytes);
      }
    }
  }

  // The zeros of the same keys as in registers 0 and 1, as bytes.
  static __device__ __forceinline__ uint32_t LoadZeros(const std::byte* part, int key) {
    const auto* params =
        reinterpret_cast<const uint2*>(part + kCodes) + (key / 2 + threadIdx.x % 4);
    const auto bits = [](uint2 pair) {  // 1024 + zero has the zero in its low bits
      const uint32_t halves = __byte_perm(pair.x, pair.y, 0x7632);
      const __half2 sum =
          __hadd2(*reinterpret_cast<const __half2*>(&halves), __float2half2_rn(1024.0f));
      return *reinterpret_cast<const uint32_t*>(&sum);
    };
    return __byte_perm(bits(params[0]), bits(params[4]), kLowerBytes);
  }
};

}  // namespace nibble::cuda
