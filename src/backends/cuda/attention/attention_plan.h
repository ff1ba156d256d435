// SPDX-License-Identifier: Apache-2.0
// The blocks of threads of an attention call. A row is one (token, query head); a tile is up to
// tile_rows rows of a sequence that share a kv head. Its keys are cut into spans of whole pages at
// absolute positions. A block takes one span; the last to finish joins them, kJoinSpans at a time.
#pragma once

#include <type_traits>

#include "backends/cuda/attention/attention.h"

namespace nibble::cuda {

inline constexpr int kJoinSpans = 16;

struct AttentionPlan {
  int group = 1;               // query heads per kv head
  uint64_t group_inverse = 0;  // 2^32 / group, rounded up: rows below 2^32 / group divide exactly
  int tile_rows = 8;           // rows of a tile at most
  int partial_rows = 1;        // rows a tile really has at most
  int tiles = 1;               // per sequence and kv head
  int span_pages = 8;
  int spans = 1;   // of a tile at most; one: nothing to join
  int joints = 0;  // groups of kJoinSpans spans at most

  // Slots for partial results: one per span, then one per joint.
  __host__ __device__ int slots() const { return spans > 1 ? spans + joints : 0; }
};

// A kernel argument.
struct AttentionCall {
  AttentionArguments arguments;
  AttentionPlan plan;
};

// Calls visit(head_dim), with a constant, if there is a kernel for few rows of it; else returns
// false.
template <typename Visit>
bool WithHeadDim(int head_dim, const Visit& visit) {
  switch (head_dim) {
    case 64:
      return visit(std::integral_constant<int, 64>()), true;
    case 80:
      return visit(std::integral_constant<int, 80>()), true;
    case 96:
      return visit(std::integral_constant<int, 96>()), true;
    case 112:
      return visit(std::integral_constant<int, 112>()), true;
    case 128:
      return visit(std::integral_constant<int, 128>()), true;
    case 256:
      return visit(std::integral_constant<int, 256>()), true;
    case 512:
      return visit(std::integral_constant<int, 512>()), true;
  }
  return false;
}

// span_pages = 0: spans of any length.
AttentionPlan PlanOf(const AttentionArguments& arguments, int tile_rows, int span_pages);

// The kernels: for each, whether it takes a call (Fits), how it cuts the call, and its launch.
// attention_decode.cu: K and V of 4 or 8 bits with one group, up to 32 rows.
bool FitsDecode(const AttentionArguments& arguments);
AttentionPlan DecodePlan(const AttentionArguments& arguments);
void LaunchDecode(const AttentionCall& call, cudaStream_t stream);

// attention_decode_bf16.cu: K and V of 16 bits, up to 16 rows.
bool FitsDecodeBf16(const AttentionArguments& arguments);
AttentionPlan DecodeBf16Plan(const AttentionArguments& arguments);
void LaunchDecodeBf16(const AttentionCall& call, cudaStream_t stream);

// attention_prefill.cu: heads of up to kMaxTileHeadDim.
bool FitsPrefill(const AttentionArguments& arguments);
AttentionPlan PrefillPlan(const AttentionArguments& arguments);
void LaunchPrefill(const AttentionCall& call, cudaStream_t stream);

// attention_long.cu: everything.
AttentionPlan LongPlan(const AttentionArguments& arguments);
void LaunchLong(const AttentionCall& call, cudaStream_t stream);

}  // namespace nibble::cuda
