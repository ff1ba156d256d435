// SPDX-License-Identifier: Apache-2.0
// The rows that the kernels of RopeAppend work on.
#pragma once

#include "backends/cuda/attention/head_rows.cuh"

namespace nibble::cuda {

// The number of the sequence that owns a row of the batch, found by a whole warp; -1 if none does.
__device__ __forceinline__ int FindSequence(const RopeAppendArguments& a, int row) {
  for (int first = 0; first < a.sequences; first += 32) {
    bool mine = false;
    if (first + Lane() < a.sequences) {
      const SequenceOnDevice& s = a.batch[first + Lane()];
      mine = row >= s.first_row && row < s.first_row + s.tokens;
    }
    const uint32_t found = __ballot_sync(~0u, mine);
    if (found != 0) return first + __ffs(found) - 1;
  }
  return -1;
}

// The pages that a token is written to, of this layer.
struct TokenPages {
  int position, slot;        // slot: in the page
  std::byte *page, *recent;  // recent: null where there is no such form

  __device__ TokenPages(const RopeAppendArguments& a, int number, int row) {
    const SequenceOnDevice sequence = a.batch[number];
    position = static_cast<int>(sequence.position + row - sequence.first_row);
    slot = position % kPageKeys;
    page = sequence.pages[position / kPageKeys] + a.kv.offset;
    recent = nullptr;
    if (a.recent_batch == nullptr) return;
    recent = a.recent_batch[number].pages[position / kPageKeys] + a.recent.offset;
  }
};

// Head `h` of all heads of a token: those of q, then k, then v.
template <typename Real>
__device__ __forceinline__ Real* HeadOf(const RopeAppendArguments& a, int64_t token, int h) {
  const auto at = [](const void* p, int64_t element) {
    return const_cast<Real*>(static_cast<const Real*>(p)) + element;
  };
  if (h < a.heads) return at(a.q, token * a.q_stride + h * a.kv.head_dim);
  h -= a.heads;
  if (h < a.kv.kv_heads) return at(a.k, token * a.k_stride + h * a.kv.head_dim);
  return at(a.v, token * a.v_stride + (h - a.kv.kv_heads) * a.kv.head_dim);
}

// rope_append_packed.cu. Returns false, having done nothing, for cases that it does not take.
bool RopeAppendPacked(const RopeAppendArguments& arguments, cudaStream_t stream);

}  // namespace nibble::cuda
