// SPDX-License-Identifier: Apache-2.0
// Activation codes of one row in shared memory, exactly as formats/quantizer.h defines them.
#pragma once

#include <climits>
#include <cmath>
#include <cstdint>

#include "backends/cuda/acts/hadamard.cuh"
#include "backends/cuda/acts/prepare_acts.h"
#include "backends/cuda/ptx/ptx.h"
#include "backends/cuda/runtime/warp_reduce.cuh"

namespace nibble::cuda {

inline constexpr int kMaxRanksLog2 = 3;

// A block's view of a row. If the row is spread over a cluster of 2^ranks_log2 blocks, a block has
// first [segments] [segment / ranks], then [ranks][share] for its share of these positions.
template <bool spread>
struct RowView {
  int rank, ranks_log2;
  int width, segment;  // this block's
  RowLayout layout;
  int share, inbox_pitch;  // floats

  __host__ __device__ RowView(int row_width, int row_segment, int log2, int block)
      : rank(spread ? block & ((1 << log2) - 1) : 0),
        ranks_log2(spread ? log2 : 0),
        width(row_width >> ranks_log2),
        segment(row_segment >> ranks_log2),
        layout(RowLayout::Of(segment)),
        share(width >> ranks_log2),
        // Room for the gaps of a share that starts anywhere.
        inbox_pitch(share + 4 * (share / segment + 2)) {}

  __host__ __device__ int ranks() const { return 1 << ranks_log2; }
  // Index in the row of element i while loading.
  __device__ int Loaded(int i) const {
    if constexpr (!spread) return i;
    const int s = i / segment;
    return ((s << ranks_log2) + rank) * segment + i - s * segment;
  }
  // Place in an inbox of position i of the share.
  __device__ int InShare(int i) const {
    return layout.At(rank * share + i) - layout.At(rank * share);
  }

  // The place of element i of the result, and its index in the row.
  struct Element {
    int place, index;
  };
  __device__ Element Result(int i) const {
    if constexpr (!spread) return {layout.At(i), i};
    const int r = i / share, position = i - r * share, at = rank * share + position;
    const int s = at / segment;
    return {r * inbox_pitch + InShare(position),
            ((s << ranks_log2) + r) * segment + at - s * segment};
  }
};

// True if a row can be spread over 2^log2 blocks.
inline bool CanSpread(const PrepareArguments& a, int log2) {
  const int segment = a.hadamard.segment >> log2, width = a.width >> log2;
  return log2 <= kMaxRanksLog2 && a.hadamard.sylvester >> log2 > 0 &&
         a.source != Source::kRmsNorm && a.main.group == 0 && a.main.bits <= 8 && !a.in_parts() &&
         segment % 8 == 0 && (width >> log2) % 4 == 0 && width >= 512;
}

// ---- Reductions ----

struct SumOf {
  static constexpr int kIdentity = 0;
  __device__ int operator()(int v) const { return __reduce_add_sync(0xFFFFFFFF, v); }
};
struct MaxOf {
  static constexpr int kIdentity = INT_MIN;
  __device__ int operator()(int v) const { return __reduce_max_sync(0xFFFFFFFF, v); }
};
struct FloatSumOf {  // of floats whose bits are passed as ints
  static constexpr int kIdentity = 0;
  __device__ int operator()(int bits) const {
    float v = __int_as_float(bits);
#pragma unroll
    for (int half = 16; half > 0; half /= 2) v += __shfl_xor_sync(0xFFFFFFFF, v, half);
    return __float_as_int(v);
  }
};

// Joins the values of as many neighbours as share a group, a power of 2; a warp's lanes all call.
template <typename Value, typename Operation>
__device__ Value JoinLanes(Value value, int lanes, const Operation& operation) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const Value other = __shfl_xor_sync(~0u, value, distance);
    if (distance < lanes) value = operation(value, other);
  }
  return value;
}

// Reduces the words of a block's warps, one each.
template <typename Reduce>
__device__ int JoinWarps(const int* words, Reduce reduce) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return reduce(lane < static_cast<int>(blockDim.x) / 32 ? words[lane] : Reduce::kIdentity);
}

// Reduces over a block; all threads get the result. `words` has one word per warp, for this
// reduction only.
template <typename Reduce>
__device__ int ReduceBlock(int v, Reduce reduce, int* words) {
  v = reduce(v);
  if (threadIdx.x % 32 == 0) words[threadIdx.x / 32] = v;
  __syncthreads();
  return JoinWarps(words, reduce);
}

// A block's shared memory besides rows: a word per warp for each reduction, and the messages of
// peers.
struct Scratch {
  static constexpr int kWarps = 24;

  int squares[kWarps], low[kWarps], high[kWarps], codes[kWarps];
  int2 ranges[1 << kMaxRanksLog2], sums[1 << kMaxRanksLog2];
  uint64_t barriers[3];

  __device__ uint32_t rows_barrier() const { return SharedAddress(&barriers[0]); }
  __device__ uint32_t ranges_barrier() const { return SharedAddress(&barriers[1]); }
  __device__ uint32_t sums_barrier() const { return SharedAddress(&barriers[2]); }

  __device__ void ExpectPeers(const RowView<true>& view) const {
    for (int i = 0; i < 3; ++i) BarrierInit(&barriers[i], 1);
    BarrierInitFence();
    const int floats =
        view.layout.At(view.share * (view.rank + 1)) - view.layout.At(view.share * view.rank);
    BarrierArriveExpect(rows_barrier(), static_cast<uint32_t>(view.ranks() * floats * 4));
    BarrierArriveExpect(ranges_barrier(), static_cast<uint32_t>(view.ranks() * 8));
    BarrierArriveExpect(sums_barrier(), static_cast<uint32_t>(view.ranks() * 8));
  }
};

// ---- Codes ----

enum class Grid { kSymmetric, kSigned, kAsymmetric, kPlanes };  // kPlanes: symmetric, 16 bits

__host__ __device__ constexpr bool OfMagnitudes(Grid kind) {
  return kind == Grid::kSymmetric || kind == Grid::kPlanes;
}

// Calls visit<grid> for the grid of codes of up to 8 bits.
template <typename Visit>
__device__ __forceinline__ auto WithGrid(const PreparePart& a, const Visit& visit) {
  if (!a.symmetric) return visit.template operator()<Grid::kAsymmetric>();
  return a.signed_scale ? visit.template operator()<Grid::kSigned>()
                        : visit.template operator()<Grid::kSymmetric>();
}

// The range [-negative_lo, hi] of a group; for grids of magnitudes, hi is the largest one.
template <Grid kind>
struct Range {
  static constexpr bool kMagnitudes = OfMagnitudes(kind);
  float negative_lo = -INFINITY, hi = kMagnitudes ? 0 : -INFINITY;

  __device__ void Add(float v) {
    if constexpr (kMagnitudes) {
      hi = fmaxf(hi, fabsf(v));
    } else {
      negative_lo = fmaxf(negative_lo, -v);
      hi = fmaxf(hi, v);
    }
  }
};

// The grid of a group (formats/quantizer.cc), for values that have yet to be scaled by `factor`.
template <Grid kind>
struct ActGrid {
  static constexpr bool kSymmetric = kind != Grid::kAsymmetric;

  float scale, zero_offset = 0;
  float factor, lo = 0, inverse, bottom, top, round;

  __device__ ActGrid(const PreparePart& a, Range<kind> range, float row_factor)
      : factor(row_factor) {
    constexpr float kMinScale = 1e-10f;
    // 127 * 256 + 127 is the largest code whose upper byte, rounded, is one.
    const float half = kind == Grid::kPlanes ? 32640.0f : static_cast<float>(1 << (a.bits - 1));
    const float hi = __fmul_rn(range.hi, factor);
    if constexpr (OfMagnitudes(kind)) {
      scale = fmaxf(__fmul_rn(hi, __fdiv_rn(a.clip, half - 1)), kMinScale);
    } else if constexpr (kind == Grid::kSigned) {
      const float negative_lo = __fmul_rn(range.negative_lo, factor);
      scale = __fmul_rn(hi >= negative_lo ? -hi : negative_lo, __fdiv_rn(a.clip, half));
      if (fabsf(scale) < kMinScale) scale = kMinScale;
    }
    if constexpr (kSymmetric) {
      inverse = __fdiv_rn(1.0f, scale);
      bottom = -half, top = half - 1;
      factor *= inverse;
    } else {
      bottom = 0, top = 2 * half - 1;
      lo = __fmul_rn(__fmul_rn(-range.negative_lo, factor), a.clip);
      scale = fmaxf(__fdiv_rn(__fsub_rn(__fmul_rn(hi, a.clip), lo), top), kMinScale);
      inverse = __fdiv_rn(1.0f, scale);
      zero_offset = __fadd_rn(__fmul_rn(lo, inverse), half);
    }
    // Adding 1.5 * 2^23 rounds half to even and leaves the code in the low bytes.
    round = 12582912.0f - (kSymmetric ? 0 : half);
  }

  __device__ uint32_t Code(float x) const {
    float steps = __fmul_rn(x, factor);
    if constexpr (!kSymmetric) steps = __fmul_rn(__fsub_rn(steps, lo), inverse);
    return __float_as_uint(__fadd_rn(fminf(fmaxf(steps, bottom), top), round));
  }
  __device__ uint32_t Codes(float4 v) const {
    return __byte_perm(__byte_perm(Code(v.x), Code(v.y), 0x0040),
                       __byte_perm(Code(v.z), Code(v.w), 0x0040), 0x5410);
  }
  // The upper bytes of codes of 16 bits, which the signed lower ones are added to.
  __device__ uint32_t UpperCodes(float4 v) const {
    return __byte_perm(__byte_perm(Code(v.x) + 128, Code(v.y) + 128, 0x0051),
                       __byte_perm(Code(v.z) + 128, Code(v.w) + 128, 0x0051), 0x5410);
  }
};

// The threads that share a group: a warp, a block or a cluster of blocks.
template <bool spread>
struct Team {
  const RowView<spread>& view;
  Scratch& scratch;
  bool warp_only;

  __device__ int rank() const {
    return static_cast<int>(warp_only ? threadIdx.x % 32 : threadIdx.x);
  }
  __device__ int size() const { return warp_only ? 32 : static_cast<int>(blockDim.x); }
  __device__ bool leader() const { return rank() == 0 && view.rank == 0; }

  template <Grid kind>
  __device__ Range<kind> Join(Range<kind> r) const {
    int low = Ordered(r.negative_lo), high = Ordered(r.hi);
    if (warp_only) {
      if constexpr (!OfMagnitudes(kind)) low = MaxOf()(low);
      return {FromOrdered(low), FromOrdered(MaxOf()(high))};
    }
    if constexpr (!OfMagnitudes(kind)) low = ReduceBlock(low, MaxOf(), scratch.low);
    high = ReduceBlock(high, MaxOf(), scratch.high);
    if constexpr (spread) {
      if (const int peer = static_cast<int>(threadIdx.x); peer < view.ranks()) {
        SendPeer(PeerAddress(SharedAddress(&scratch.ranges[view.rank]), peer), {low, high},
                 PeerAddress(scratch.ranges_barrier(), peer));
      }
      BarrierWaitForPeers(scratch.ranges_barrier(), 0);
      for (int i = 0; i < view.ranks(); ++i) {
        low = max(low, scratch.ranges[i].x);
        high = max(high, scratch.ranges[i].y);
      }
    }
    return {FromOrdered(low), FromOrdered(high)};
  }

  // Only the leader gets the whole sum.
  __device__ int Join(int sum) const {
    if (warp_only) return SumOf()(sum);
    sum = ReduceBlock(sum, SumOf(), scratch.codes);
    if constexpr (!spread) return sum;
    if (threadIdx.x == 0) {
      SendPeer(PeerAddress(SharedAddress(&scratch.sums[view.rank]), 0), {sum, 0},
               PeerAddress(scratch.sums_barrier(), 0));
    }
    if (!leader()) return 0;
    BarrierWaitForPeers(scratch.sums_barrier(), 0);
    sum = 0;
    for (int i = 0; i < view.ranks(); ++i) sum += scratch.sums[i].x;
    return sum;
  }
};

// The columns of a part: those of the row, ordered by `order` if there is one, from `first` on.
template <bool spread>
struct Columns {
  const RowView<spread>& view;
  const float* values;
  const int32_t* order;  // or null
  int first;

  // Columns i .. i + 3, i a multiple of 4.
  __device__ float4 Four(int i) const {
    if constexpr (!spread) {
      if (order != nullptr) {
        const int4 at = __ldg(reinterpret_cast<const int4*>(order + first + i));
        return {values[view.layout.At(at.x)], values[view.layout.At(at.y)],
                values[view.layout.At(at.z)], values[view.layout.At(at.w)]};
      }
    }
    return *reinterpret_cast<const float4*>(values + view.Result(first + i).place);
  }
};

// Columns [begin, end) of a part, group `group`, times `factor`.
template <Grid kind, bool spread>
__device__ void QuantizeGroup(const PreparePart& a, const Team<spread>& team, int64_t token,
                              int64_t pitch, int64_t group, int begin, int end,
                              const Columns<spread>& columns, float factor) {
  const int first = begin + team.rank() * 4, step = team.size() * 4;
  Range<kind> range;
#pragma unroll 4
  for (int i = first; i < end; i += step) {
    const float4 v = columns.Four(i);
    range.Add(v.x), range.Add(v.y), range.Add(v.z), range.Add(v.w);
  }
  const ActGrid<kind> grid(a, team.Join(range), factor);
  constexpr bool kPlanes = kind == Grid::kPlanes;
  int8_t* const codes = a.codes + (kPlanes ? PlaneRow(token) + 8 : token) * a.stride;
  int sum = 0, upper_sum = 0;
#pragma unroll 4
  for (int i = first; i < end; i += step) {
    const int index = team.view.Result(i).index;
    const float4 v = columns.Four(i);
    const uint32_t four = grid.Codes(v);
    sum = __dp4a(static_cast<int>(four), 0x01010101, sum);
    *reinterpret_cast<uint32_t*>(codes + index) = four;
    if constexpr (kPlanes) {
      const uint32_t upper = grid.UpperCodes(v);
      upper_sum = __dp4a(static_cast<int>(upper), 0x01010101, upper_sum);
      *reinterpret_cast<uint32_t*>(codes - 8 * a.stride + index) = upper;
    }
  }
  sum = team.Join(sum);
  if constexpr (kPlanes) upper_sum = ReduceBlock(upper_sum, SumOf(), team.scratch.low);
  if (!team.leader()) return;
  const int64_t at = group * pitch + token;
  a.scales[at] = grid.scale;
  if (kind == Grid::kAsymmetric) a.zero_offsets[at] = grid.zero_offset;
  if constexpr (kPlanes) {
    a.sums[PlaneRow(token)] = upper_sum;
    a.sums[PlaneRow(token) + 8] = sum;
  } else {
    a.sums[at] = sum;
  }
}

template <Grid kind, bool spread>
__device__ void QuantizeRow(const PreparePart& a, const Columns<spread>& columns, int64_t token,
                            int64_t pitch, float factor, Scratch& scratch) {
  const RowView<spread>& view = columns.view;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  if (view.rank == 0) {
    for (int i = a.columns / 4 + thread; i < a.stride / 4; i += threads) {
      if constexpr (kind == Grid::kPlanes) {
        auto* const upper = reinterpret_cast<uint32_t*>(a.codes + PlaneRow(token) * a.stride);
        upper[i] = upper[i + 2 * a.stride] = 0;
      } else {
        reinterpret_cast<uint32_t*>(a.codes + token * a.stride)[i] = 0;
      }
    }
  }
  const Team<spread> team = {view, scratch, a.group != 0};
  if (spread || a.group == 0) {
    QuantizeGroup<kind>(a, team, token, pitch, 0, 0, spread ? view.width : a.columns, columns,
                        factor);
    return;
  }
  const int groups = a.columns / a.group;
  for (int g = thread / 32; g < groups; g += threads / 32) {
    QuantizeGroup<kind>(a, team, token, pitch, g, g * a.group, (g + 1) * a.group, columns, factor);
  }
}

}  // namespace nibble::cuda
