// SPDX-License-Identifier: Apache-2.0
// formats/kv_format.h as plain numbers that a kernel takes as an argument, and the sequences of a
// batch as device memory holds them. Pages have the same bytes on every machine.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace nibble {
struct KvSpec;
}

namespace nibble::cuda {

inline constexpr int kPageKeys = 64;     // tokens of a page
inline constexpr int kPagesBefore = 1;   // kRecentPages
inline constexpr int kMaxHeadDim = 512;  // head_dim is a multiple of 8
// Longer heads do not fit into the registers of warps that multiply tiles.
inline constexpr int kMaxTileHeadDim = 256;

// K or V inside the block of one page and kv head.
struct KvPart {
  int bits;           // 2..8 codes, 16: bf16, 32: fp32
  int group, groups;  // elements that share a {scale, zero}; groups per row
  int row_bytes;
  int codes, params;  // byte offsets in the block
  bool symmetric;
  float clip, clip_per_step;  // clip_per_step = clip / (2^(bits-1) - 1)

  // One {scale, zero} per row: the fast kernels' case.
  __host__ __device__ bool packs() const { return (bits == 4 || bits == 8) && groups == 1; }
};

struct KvLayout {
  int kv_heads, head_dim;
  int block_bytes;  // a page is [kv_heads] blocks
  KvPart k, v;
  int64_t offset;  // bytes from a page of layer 0 to the one meant
};

// Aborts on a head_dim that is not a multiple of 8 or beyond kMaxHeadDim.
KvLayout LayoutOf(const KvSpec& spec, int64_t offset);

// The new tokens of one sequence (SequenceSlice). In device memory.
struct SequenceOnDevice {
  int64_t first_row;        // in the batch's [rows, ...] tensors
  int64_t tokens;           // new ones, may be 0
  int64_t position;         // of the first new token
  std::byte* const* pages;  // of layer 0, device memory too; covers position + tokens; pages are
                            // 64-byte aligned
};

}  // namespace nibble::cuda
