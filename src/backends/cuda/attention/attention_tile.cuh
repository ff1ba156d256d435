// SPDX-License-Identifier: Apache-2.0
// Device code that the attention kernels share: where a block's rows and keys are, and how the
// results of several spans are joined.
//
// A partial result of a row is (max, sum, values): values[d] = sum_j w_j v_j[d] and sum = sum_j w_j
// with w_j = 2^(score_j - max), whatever max is. kNoKeys is the max of a row without keys.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backends/cuda/attention/attention_plan.h"
#include "backends/cuda/ptx/ptx.h"

namespace nibble::cuda {

inline constexpr float kNoKeys = -1e30f;
inline constexpr float kLog2E = 1.4426950408889634f;  // weights are powers of two

// cap * tanh(score / cap), where there is a cap.
__device__ __forceinline__ float Capped(float score, float cap) {
  if (cap == 0) return score;
  const float e = Exp2(fminf(fmaxf(score * (2 * kLog2E / cap), -100.0f), 100.0f));
  return cap * (e - 1) * Reciprocal(e + 1);
}

struct KeyRange {
  int first, last;  // [first, last)
};

// Rows [first, first + rows) of a sequence's [tokens, group] rows of one kv head, one span of keys.
struct Tile {
  SequenceOnDevice sequence;
  int kv_head, unit;  // unit: index of (sequence, tile, kv head) among all
  int first, rows;
  int group, window;
  float cap;  // of scores times kLog2E; 0: none
  uint64_t group_inverse;
  int first_span, spans, span;  // spans the tile has; this block's, from 0
  KeyRange pages;               // numbers of this block's pages (PageAt)
  KeyRange common;              // keys that all rows see
  CacheForm form;
  int sinks, skipped;  // pages read at the beginning, and pages left out behind them

  __device__ int token_of(int row) const {  // division by group
    return static_cast<int>((static_cast<uint64_t>(first + row) * group_inverse) >> 32);
  }
  __device__ int position(int row) const {
    return static_cast<int>(sequence.position) + token_of(row);
  }
  // Keys that a row sees.
  __device__ KeyRange Visible(int row) const {
    const int last = position(row) + 1;
    return {window == 0 ? 0 : max(0, last - window), last};
  }
  // True if a row reads a page in this form.
  __device__ bool Reads(int row, int page) const {
    if (form == CacheForm::kOnly) return true;
    const bool recent = page == 0 || page + kPagesBefore >= position(row) / kPageKeys;
    return recent == (form == CacheForm::kRecent);
  }
  // Keys of a page, in this form, that a row sees.
  __device__ KeyRange Visible(int row, int page) const {
    return Reads(row, page) ? Visible(row) : KeyRange{0, 0};
  }
  // The page with this number in `pages`.
  __device__ int PageAt(int number) const { return number < sinks ? number : number + skipped; }
  __device__ int64_t token(int row) const { return sequence.first_row + token_of(row); }
  __device__ int head(int row) const {
    return kv_head * group + first + row - token_of(row) * group;
  }
  __device__ const std::byte* Block(int page, const KvLayout& kv) const {
    return sequence.pages[page] + kv.offset + int64_t{kv_head} * kv.block_bytes;
  }
  // True if every key of a page was cached before the new tokens.
  __device__ bool Settled(int page) const { return (page + 1) * kPageKeys <= sequence.position; }
  // The position behind the last key that exists.
  __device__ int End() const { return static_cast<int>(sequence.position + sequence.tokens); }
  // Keys of a page that exist at all.
  __device__ int Stored(int page) const { return min(kPageKeys, End() - page * kPageKeys); }
};

// The grid is (kv heads, spans, sequences * tiles), the last tiles first: with a causal mask they
// have the most keys. A tile with rows = 0 or without pages has nothing to do.
__device__ __forceinline__ Tile TileOf(const AttentionCall& call) {
  const AttentionPlan& plan = call.plan;
  const int z = gridDim.z - 1 - blockIdx.z, sequences = call.arguments.sequences;
  const int number = z / sequences, s = z % sequences;
  Tile tile;
  tile.sequence = call.arguments.batch[s];
  tile.kv_head = blockIdx.x;
  tile.unit = (s * plan.tiles + number) * call.arguments.kv.kv_heads + tile.kv_head;
  tile.group = plan.group;
  tile.group_inverse = plan.group_inverse;
  tile.window = call.arguments.sliding_window;
  tile.cap = call.arguments.softcap * kLog2E;
  tile.first = number * plan.tile_rows;
  const int rows = static_cast<int>(tile.sequence.tokens) * plan.group - tile.first;
  tile.rows = max(0, min(plan.tile_rows, rows));
  tile.form = call.arguments.form;
  tile.sinks = tile.skipped = 0;
  int first_page = tile.Visible(0).first / kPageKeys;
  int last_page = tile.position(tile.rows - 1) / kPageKeys + 1;
  if (tile.form == CacheForm::kNarrow) {
    first_page = max(first_page, 1);
    last_page = max(first_page, last_page - 1 - kPagesBefore);
  } else if (tile.form == CacheForm::kRecent) {
    tile.sinks = first_page == 0 ? 1 : 0;
    const int begin = max(first_page, max(1, tile.position(0) / kPageKeys - kPagesBefore));
    tile.skipped = begin - tile.sinks;
    last_page -= tile.skipped, first_page = 0;
  }
  tile.first_span = first_page / plan.span_pages;
  tile.spans = max((last_page - 1) / plan.span_pages + 1 - tile.first_span, 1);
  tile.span = blockIdx.y;
  const int begin = (tile.first_span + tile.span) * plan.span_pages;
  tile.pages = {max(first_page, begin), min(last_page, begin + plan.span_pages)};
  tile.common = {tile.Visible(tile.rows - 1).first, tile.Visible(0).last};
  return tile;
}

// The place of element d of a row in q and in the result.
__device__ __forceinline__ int64_t PlaceOf(const AttentionArguments& a, const Tile& tile, int row,
                                           int d) {
  return (tile.token(row) * a.heads + tile.head(row)) * a.kv.head_dim + d;
}

// Eight elements of q.
__device__ __forceinline__ void LoadQuery(const AttentionArguments& a, const Tile& tile, int row,
                                          int d, float (&x)[8]) {
  UnpackBf16(*reinterpret_cast<const uint4*>(a.q + PlaceOf(a, tile, row, d)), x);
}

__device__ __forceinline__ uint32_t PackHalves(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Adds the narrow pages' results for four elements to those of the recent pages.
__device__ __forceinline__ void AddRemainder(const Remainder& from, int64_t place, int64_t row,
                                             float4& v, float2& end) {
  const float4 values = *reinterpret_cast<const float4*>(from.values + place);
  const float2 rest = from.ends[row];
  const float max = fmaxf(rest.x, end.x), theirs = Exp2(rest.x - max), ours = Exp2(end.x - max);
  v = {theirs * values.x + ours * v.x, theirs * values.y + ours * v.y,
       theirs * values.z + ours * v.z, theirs * values.w + ours * v.w};
  end = {max, theirs * rest.y + ours * end.y};
}

// Four elements of a row of the result; `end` is {max, sum} of its weights. A sink is a last key.
__device__ __forceinline__ void StoreOutput(const AttentionArguments& a, const Tile& tile, int row,
                                            int d, float4 v, float2 end) {
  if (a.form != CacheForm::kOnly && a.remainder.values != nullptr) {
    const int64_t place = PlaceOf(a, tile, row, d), at = place / a.kv.head_dim;
    if (a.form == CacheForm::kNarrow) {
      *reinterpret_cast<float4*>(a.remainder.values + place) = v;
      if (d == 0) a.remainder.ends[at] = end;
      return;
    }
    AddRemainder(a.remainder, place, at, v, end);
  }
  if (a.sinks != nullptr) end.y += Exp2(a.sinks[tile.head(row)] * kLog2E - end.x);
  const float f = __fdividef(1.0f, end.y);
  *reinterpret_cast<uint2*>(a.out + PlaceOf(a, tile, row, d)) = {PackBf16(v.x * f, v.y * f),
                                                                 PackBf16(v.z * f, v.w * f)};
}

// Partial results, one part behind the other.
struct Parts {
  float* values;                            // [parts][rows][head_dim]
  float2* ends;                             // [parts][rows] {max, sum}
  int row_stride, part_stride, end_stride;  // elements; end_stride from part to part
};

// The slots of one tile in global memory.
struct TileParts {
  Parts parts;
  uint32_t* arrived;  // [1 + joints], of the tile and of each joint

  __device__ TileParts(const AttentionCall& call, const Tile& tile) {
    const AttentionPlan& plan = call.plan;
    const int rows = plan.partial_rows, head_dim = call.arguments.kv.head_dim;
    const int64_t units = int64_t{call.arguments.sequences} * plan.tiles * gridDim.x;
    const int64_t first = int64_t{tile.unit} * plan.slots() * rows;
    float* values = call.arguments.partials;
    auto* ends = reinterpret_cast<float2*>(values + units * plan.slots() * rows * head_dim);
    parts = {values + first * head_dim, ends + first, head_dim, rows * head_dim, rows};
    arrived = call.arguments.counters + int64_t{tile.unit} * (1 + plan.joints);
  }
  __device__ Parts From(int slot) const {
    Parts p = parts;
    p.values += int64_t{slot} * p.part_stride;
    p.ends += int64_t{slot} * p.end_stride;
    return p;
  }
};

__device__ __forceinline__ void StorePart(const Parts& part, int row, int d, float4 v, float2 end) {
  *reinterpret_cast<float4*>(part.values + row * part.row_stride + d) = v;
  if (d == 0) part.ends[row] = end;
}

// Joins `count` parts in ascending order; every thread takes four elements of a row at a time and
// hands them to store(row, d, values, {max, sum}). Parts in global memory (kGlobal) come from other
// blocks: L1 must not answer for them.
template <bool kGlobal, typename Store>
__device__ __forceinline__ void JoinParts(const Parts& parts, int count, int rows, int head_dim,
                                          const Store& store) {
  const auto load = [](const auto* p) { return kGlobal ? __ldcg(p) : *p; };
  const int quads = head_dim / 4;
  for (int i = threadIdx.x; i < rows * quads; i += blockDim.x) {
    const int row = i / quads, d = i % quads * 4;
    const float2* ends = parts.ends + row;
    const float* from = parts.values + row * parts.row_stride + d;
    float max = kNoKeys;
    for (int p = 0; p < count; ++p) max = fmaxf(max, load(ends + p * parts.end_stride).x);
    float4 values = {};
    float sum = 0;
#pragma unroll 4
    for (int p = 0; p < count; ++p) {
      const float2 end = load(ends + p * parts.end_stride);
      const auto v = load(reinterpret_cast<const float4*>(from + int64_t{p} * parts.part_stride));
      const float factor = Exp2(end.x - max);
      values.x += factor * v.x, values.y += factor * v.y;
      values.z += factor * v.z, values.w += factor * v.w;
      sum += factor * end.y;
    }
    store(row, d, values, float2{max, sum});
  }
}

// True if the calling block is the last of `count` to arrive; it then sees what the others wrote.
__device__ __forceinline__ bool LastToArrive(uint32_t* counter, int count) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    last = AddReleaseAcquire(counter, 1) == static_cast<uint32_t>(count - 1);
    if (last) *counter = 0;
  }
  __syncthreads();
  return last;
}

// After the block has stored slot tile.span: the last block of a joint joins its spans, the last
// joint writes the result. Joints begin at absolute spans.
__device__ __forceinline__ void JoinSpans(const AttentionCall& call, const Tile& tile,
                                          const TileParts& slots) {
  const int first = tile.first_span / kJoinSpans, end = tile.first_span + tile.spans;
  const int joints = (end - 1) / kJoinSpans + 1 - first;
  const int joint = (tile.first_span + tile.span) / kJoinSpans;
  const int begin = max(tile.first_span, joint * kJoinSpans);
  int count = min(end, (joint + 1) * kJoinSpans) - begin;
  Parts from = slots.From(begin - tile.first_span);
  const Parts joined = slots.From(call.plan.spans + joint - first);
  uint32_t* counter = slots.arrived + 1 + joint - first;
#pragma unroll 1
  for (bool last = joints == 1;; last = true) {
    if (!LastToArrive(counter, count)) return;
    JoinParts<true>(from, count, tile.rows, call.arguments.kv.head_dim,
                    [&](int row, int d, float4 v, float2 e) {
                      last ? StoreOutput(call.arguments, tile, row, d, v, e)
                           : StorePart(joined, row, d, v, e);
                    });
    if (last) return;
    from = slots.From(call.plan.spans), count = joints, counter = slots.arrived;
  }
}

// Ends a block whose `count` parts lie in shared memory.
__device__ __forceinline__ void FinishBlock(const AttentionCall& call, const Tile& tile,
                                            const Parts& parts, int count, int head_dim) {
  __syncthreads();
  const TileParts slots(call, tile);
  const Parts slot = slots.From(tile.span);
  JoinParts<false>(parts, count, tile.rows, head_dim, [&](int row, int d, float4 v, float2 e) {
    tile.spans == 1 ? StoreOutput(call.arguments, tile, row, d, v, e)
                    : StorePart(slot, row, d, v, e);
  });
  if (tile.spans > 1) JoinSpans(call, tile, slots);
}

}  // namespace nibble::cuda
