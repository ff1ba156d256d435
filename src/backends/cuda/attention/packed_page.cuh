// SPDX-License-Identifier: Apache-2.0
// A page of one kv head, or half of it, K and V of 4 or 8 bits with one {scale, zero} per token, in
// shared memory and as operands of the tensor cores. Like formats/kv_format.h, but the 16-byte
// chunks of a row of codes change places so that no way of reading them meets a bank twice.
#pragma once

#include <cuda_fp16.h>

#include "backends/cuda/attention/kv_layout.h"
#include "backends/cuda/ptx/ptx.h"

namespace nibble::cuda {

// Codes 0, 2, 4, 6 of a word as four bytes, and codes 1, 3, 5, 7 times 16.
inline constexpr uint32_t kEvenNibbles = 0x0F0F0F0F, kOddNibbles = 0xF0F0F0F0;

// Selectors of __byte_perm: the lower and the upper bytes of four 16-bit halves.
inline constexpr uint32_t kLowerBytes = 0x6420, kUpperBytes = 0x7531;

// K or V: kKeys rows of codes, then their params. In shared memory rows are whole chunks; what
// stands behind the last code is anything, multiplied by zeros of q or, of V, left out.
template <int kHeadDim, int kBits_, int kKeys_>
struct PackedPart {
  static constexpr int kBits = kBits_, kKeys = kKeys_, kRowBytes = kHeadDim * kBits / 8;
  static constexpr int kChunks = (kRowBytes + 15) / 16;  // of a row
  static constexpr int D = kChunks * 128 / kBits;        // elements of these chunks
  static constexpr int kCodes = kKeys * kChunks * 16;
  static constexpr int kBytes = kCodes + kKeys * 4;
  // Codes of these keys, and codes and params of a page, in the cache.
  static constexpr int kStoredCodes = kKeys * kRowBytes;
  static constexpr int kPageCodes = kPageKeys * kRowBytes;
  static constexpr int kPageBytes = kPageCodes + kPageKeys * 4;
  static_assert(kRowBytes % 8 == 0);

  // The offset of a chunk of a row in bytes. Eight rows at one chunk, and two rows at four chunks,
  // cover all banks; rows of an odd number of chunks do so as they are.
  static __device__ int At(int row, int chunk) {
    if constexpr (kChunks % 8 == 0) {
      chunk ^= row % 8;
    } else if constexpr (kChunks % 4 == 0) {
      chunk ^= row / 2 % 4;
    } else if constexpr (kChunks % 2 == 0) {
      chunk ^= row / 4 % 2;
    }
    return (row * kChunks + chunk) * 16;
  }

  // Starts the copy of the codes by one warp. A step, 512 bytes or as much of each of a few columns
  // of chunks, is whole periods of At.
  static __device__ __forceinline__ void CopyCodes(const std::byte* from, std::byte* to) {
    if constexpr (kRowBytes % 16 != 0) return CopyEights(from, to);
    constexpr int kAcross = kChunks % 2 == 1 ? kChunks : kChunks % 4 == 0 ? 4 : 2;
    constexpr int kColumns = kChunks / kAcross;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      const int row = lane / kAcross, chunk = lane % kAcross + column * kAcross;
      const std::byte* const codes = from + (row * kChunks + chunk) * 16;
      std::byte* const place = to + At(row, chunk);
#pragma unroll
      for (int i = 0; i < kCodes; i += 512 * kColumns) CopyAsync16(place + i, codes + i);
    }
  }

  // Of rows that are no whole chunks: eight bytes at a time.
  static __device__ __forceinline__ void CopyEights(const std::byte* from, std::byte* to) {
    constexpr int kEights = kRowBytes / 8;
#pragma unroll
    for (int i = threadIdx.x % 32; i < kKeys * kEights; i += 32) {
      const int row = i / kEights, eight = i % kEights;
      CopyAsync<8>(to + At(row, eight / 2) + eight % 2 * 8, from + i * 8);
    }
  }

  // Keys from `stored` on get scale and zero 0: what lies there may be anything, also NaN.
  static __device__ __forceinline__ void ClearParams(std::byte* part, int stored) {
    for (int key = stored + threadIdx.x % 32; key < kKeys; key += 32) {
      reinterpret_cast<uint32_t*>(part + kCodes)[key] = 0;
    }
  }

  // {scale, zero} of a key.
  static __device__ __forceinline__ float2 Params(const std::byte* part, int key) {
    return __half22float2(reinterpret_cast<const __half2*>(part + kCodes)[key]);
  }

  // Products over 32 codes each that a row takes; a lone word of nibbles takes two by itself.
  static constexpr int kSteps = kBits == 8 ? (D + 31) / 32 : (D + 63) / 64 * 2;

  // Operands A of these products for the 16 keys from `key` on: elements as they lie or, with 4
  // bits, for each two words of a lane's quarter of a row the even elements, then 16 times the odd
  // ones.
  static __device__ __forceinline__ void LoadKeys(const std::byte* part, int key,
                                                  uint32_t (&a)[kSteps][4]) {
    const int lane = threadIdx.x % 32;
    if constexpr (kBits == 8) {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const bool whole = 2 * i + 1 < kChunks;
        LoadMatrices(part + At(key + lane % 16, 2 * i + (whole ? lane / 16 : 0)), a[i]);
        if (!whole) a[i][2] = a[i][3] = 0;
      }
    } else {
      uint32_t low[kSteps] = {}, high[kSteps] = {};
      LoadQuarter(part, key + lane / 4, low);
      LoadQuarter(part, key + 8 + lane / 4, high);
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const int word = i / 2 * 2;
        const uint32_t mask = i % 2 == 0 ? kEvenNibbles : kOddNibbles;
        a[i][0] = low[word] & mask, a[i][1] = high[word] & mask;
        a[i][2] = low[word + 1] & mask, a[i][3] = high[word + 1] & mask;
      }
    }
  }
  // Operand B of step i for the elements `row` in shared memory, a byte each.
  static __device__ __forceinline__ void LoadQuery(const uint32_t* row, int i, uint32_t (&b)[2]) {
    const int t = threadIdx.x % 4;
    if constexpr (kBits == 8) {
      b[0] = row[8 * i + t], b[1] = row[8 * i + 4 + t];
    } else {
      const uint32_t* const w = row + t * (D / 16) + i / 2 * 4;
      const uint32_t parity = i % 2 == 0 ? kLowerBytes : kUpperBytes;
      b[0] = __byte_perm(w[0], w[1], parity), b[1] = __byte_perm(w[2], w[3], parity);
    }
  }

  // Operands A of products over the 32 keys of V from `key` on: rows g and g + 8 are the same
  // places in `chunk` and in the next one, bytes 2 g for `first`, 2 g + 1 for `second`. Of a lone
  // last chunk, bytes 2 g + 1 are row g + 8 of `first`.
  //
  // Byte i of registers 0 and 1 is key 2 t, 2 t + 1, 2 t + 8 or 2 t + 9; registers 2 and 3 are 16
  // keys further.
  static __device__ __forceinline__ void LoadValues(const std::byte* part, int key, int chunk,
                                                    uint32_t (&first)[4], uint32_t (&second)[4]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4; i += 2, key += 16) {
      uint32_t r[4];
      if (chunk + 1 < kChunks) {
        LoadTransposed(part + At(key + lane / 16 * 8 + lane % 8, chunk + lane / 8 % 2), r);
        first[i] = __byte_perm(r[0], r[2], kLowerBytes),
        first[i + 1] = __byte_perm(r[1], r[3], kLowerBytes);
        second[i] = __byte_perm(r[0], r[2], kUpperBytes),
        second[i + 1] = __byte_perm(r[1], r[3], kUpperBytes);
      } else {
        LoadTransposed(part + At(key + lane % 16, chunk), r);
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

 private:
  // Elements t * D / 4 and on of a row of nibbles, eight to a word.
  static __device__ __forceinline__ void LoadQuarter(const std::byte* part, int row, uint32_t* w) {
    constexpr int kWords = D / 32;
    const int t = threadIdx.x % 4;
    if constexpr (D == 64) {
      const auto v = *reinterpret_cast<const uint2*>(part + At(row, t / 2) + t % 2 * 8);
      w[0] = v.x, w[1] = v.y;
    } else if constexpr (D % 128 == 0) {
#pragma unroll
      for (int i = 0; i < kWords / 4; ++i) {
        const auto v = *reinterpret_cast<const uint4*>(part + At(row, t * (kWords / 4) + i));
        w[4 * i] = v.x, w[4 * i + 1] = v.y, w[4 * i + 2] = v.z, w[4 * i + 3] = v.w;
      }
    } else {
      const auto* words = reinterpret_cast<const uint32_t*>(part + At(row, 0)) + t * kWords;
#pragma unroll
      for (int i = 0; i < kWords; ++i) w[i] = words[i];
    }
  }
};

template <int kHeadDim_, int kKeyBits, int kValueBits>
struct PackedPage {
  static constexpr int kHeadDim = kHeadDim_;
  // A warp takes a page, or half of one if a page has more bytes than this. The results take the
  // place of K, and half a page of 4-bit keys has no room for them.
  static constexpr int kMaxBytes = 18 << 10;
  static constexpr bool kHalf =
      kKeyBits == 8 && kPageKeys * (kHeadDim * (kKeyBits + kValueBits) / 8 + 8) > kMaxBytes;
  static constexpr int kKeys = kHalf ? kPageKeys / 2 : kPageKeys;
  static constexpr int kOfPage = kPageKeys / kKeys;
  using K = PackedPart<kHeadDim, kKeyBits, kKeys>;
  using V = PackedPart<kHeadDim, kValueBits, kKeys>;
  static constexpr int D = K::D > V::D ? K::D : V::D;  // of q and of results
  static constexpr int kBytes = K::kBytes + V::kBytes;

  // Starts the copy of piece `piece` of a block by one warp.
  static __device__ __forceinline__ void Copy(const std::byte* block, int piece, std::byte* to) {
    constexpr int kLanes = kKeys * 4 / 16;  // lanes that copy params
    const std::byte* const values = block + K::kPageBytes;
    K::CopyCodes(block + piece * K::kStoredCodes, to);
    V::CopyCodes(values + piece * V::kStoredCodes, to + K::kBytes);
    const int lane = threadIdx.x % 32, from = piece * kKeys * 4 + lane % kLanes * 16;
    if (lane < kLanes) {
      CopyAsync16(to + K::kCodes + lane * 16, block + K::kPageCodes + from);
    } else if (lane < 2 * kLanes) {
      CopyAsync16(to + K::kBytes + V::kCodes + lane % kLanes * 16, values + V::kPageCodes + from);
    }
  }
  static __device__ __forceinline__ void ClearParams(std::byte* page, int stored) {
    K::ClearParams(page, stored);
    V::ClearParams(page + K::kBytes, stored);
    __syncwarp();
  }
};

}  // namespace nibble::cuda
