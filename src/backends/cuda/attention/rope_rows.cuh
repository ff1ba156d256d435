// SPDX-License-Identifier: Apache-2.0
// Which rows the kernels of RopeAppend work on.
#pragma once

#include "backends/cuda/attention/head_rows.cuh"

namespace nibble::cuda {

// The sequence that owns a row of the batch, found by a whole warp; false if none does.
__device__ __forceinline__ bool FindSequence(const RopeAppendArguments& a, int row,
                                             SequenceOnDevice& sequence) {
  for (int first = 0; first < a.sequences; first += 32) {
    bool mine = false;
    if (first + Lane() < a.sequences) {
      const SequenceOnDevice& s = a.batch[first + Lane()];
      mine = row >= s.first_row && row < s.first_row + s.tokens;
    }
    const uint32_t found = __ballot_sync(~0u, mine);
    if (found == 0) continue;
    sequence = a.batch[first + __ffs(found) - 1];
    return true;
  }
  return false;
}

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

// rope_append_packed.cu. False, and nothing done, for other cases than its own.
bool RopeAppendPacked(const RopeAppendArguments& arguments, cudaStream_t stream);

}  // namespace nibble::cuda
