// SPDX-License-Identifier: Apache-2.0
// Attention over the packed paged cache on a GPU: out = softmax(scale q K^T) V for every new token
// and query head, over the cached keys at positions up to the token's own (and inside the window).
// A row is a new token and one of the query heads that share a kv head.
//
//   attention_decode       caches of 4 and 8 bits with one scale per token and head, head_dim 64,
//                          80, 96, 112, 128, 256 and 512, up to 32 rows
//   attention_decode_bf16  caches of 16 bits, head_dim 64 to 256, up to 16 rows
//   attention_prefill      all other heads of up to 256
//   attention_long         longer heads
//
// Long prompts run on cuDNN where it is there (attention_fused.h).
//
// Keys are cut into spans at fixed absolute positions and joined in ascending order, so a row's
// bits depend on the kernel that runs (docs/numerics.md), but not on batch or grid. A cache with a
// recent form takes two calls (CacheForm). Where q * scale and an unquantized cache are fp16,
// values beyond 65504 are lost.
#pragma once

#include "backends/cuda/attention/kv_layout.h"
#include "backends/cuda/runtime/real_type.h"

namespace nibble::cuda {

// The pages that a call reads of a cache with a recent form (formats/kv_format.h).
enum class CacheForm { kOnly, kNarrow, kRecent };

// The results over a cache's narrow pages, to which those over its recent pages are added: for each
// row values, not yet divided, and {max, sum} (attention_tile.cuh).
struct Remainder {
  float* values = nullptr;  // [rows, heads, head_dim], 16-byte aligned
  float2* ends = nullptr;   // [rows, heads]
};

// Pointers are device memory.
struct AttentionArguments {
  const __nv_bfloat16* q = nullptr;  // [rows, heads * head_dim], after RopeAppend; aligned to 16
  __nv_bfloat16* out = nullptr;      // as q
  int heads = 0;                     // a multiple of kv.kv_heads
  float scale = 0;                   // 1 / sqrt(head_dim)
  int sliding_window = 0;
  float softcap = 0;                        // 0: none
  const float* sinks = nullptr;             // [heads] or null
  KvLayout kv = {};                         // of the form that the call reads
  const SequenceOnDevice* batch = nullptr;  // [sequences], with the pages of that form
  int sequences = 0;
  // kNarrow writes `remainder` in place of `out`; kRecent goes on from it, where there is one.
  CacheForm form = CacheForm::kOnly;
  Remainder remainder = {};
  // Bounds over the batch; larger ones are right, only slower (a captured graph needs some slack).
  int max_tokens = 1;       // new tokens of a sequence
  int64_t max_context = 0;  // position + tokens
  // Memory as large as AttentionNeeds says, for this call alone while it runs. Counters are zero at
  // the first call and left zero by every call, so calls of any shape may share them.
  uint32_t* counters = nullptr;
  float* partials = nullptr;  // 16-byte aligned

  // The most rows of a sequence that share a kv head.
  __host__ __device__ int rows() const { return max_tokens * (heads / kv.kv_heads); }
};

struct AttentionNeeds {
  int64_t counters = 0, partials = 0;  // elements
};
AttentionNeeds NeedsOf(const AttentionArguments& arguments);

// Enqueues attention. Keys of pages that end at or before a sequence's `position`, the batch and
// the page tables are read before the kernel in front has ended: that kernel must not write them.
// Throws nibble::Error if a launch is refused.
void Attention(const AttentionArguments& arguments, cudaStream_t stream);

}  // namespace nibble::cuda
