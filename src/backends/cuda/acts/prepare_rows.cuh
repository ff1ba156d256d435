// SPDX-License-Identifier: Apache-2.0
// Loading of a row by the threads of prepare_rows.cu, and the messages between them.
#pragma once

#include <cmath>
#include <cstdint>

#include "backends/cuda/acts/gate.cuh"
#include "backends/cuda/acts/prepare_acts.h"
#include "backends/cuda/acts/quantize_row.cuh"

namespace nibble::cuda {

inline constexpr int kRanks = 8;  // blocks of a cluster that has a row

// ---- Loading ----

__device__ inline void Load8(const float* p, float (&v)[8]) {
  const float4 a = reinterpret_cast<const float4*>(p)[0], b = reinterpret_cast<const float4*>(p)[1];
  v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
  v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}
__device__ inline void Load8(const __nv_bfloat16* p, float (&v)[8]) {
  UnpackBf16(*reinterpret_cast<const uint4*>(p), v);
}

// A block's part of a row: all, or a kRanks-th.
struct Block {
  int rank;
  int64_t token;

  __device__ explicit Block(bool spread)
      : rank(spread ? static_cast<int>(blockIdx.x) % kRanks : 0),
        token(spread ? blockIdx.x / kRanks : blockIdx.x) {}

  // The first of the 8 columns of this thread's piece; pieces are a block's threads apart. If the
  // row is spread, a thread has one.
  __device__ int Column(int piece) const {
    return 8 * static_cast<int>((rank + piece) * blockDim.x + threadIdx.x);
  }
};

// Loads this thread's pieces and applies the source op. Returns the sum of squares for kRmsNorm,
// whose weights do not depend on the kernel before.
template <typename X, int kPieces>
__device__ float LoadPieces(const PrepareArguments& a, const Block& block, float (&v)[kPieces][8]) {
  float weights[kPieces][8], squares = 0;
  if (a.norm != nullptr) {
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      if (block.Column(p) < a.width) Load8(a.norm + block.Column(p), weights[p]);
    }
  }
  WaitForPreviousGrid();
  const X* const x = static_cast<const X*>(a.x) + block.token * a.x_stride;
  const X* const up = static_cast<const X*>(a.up) + block.token * a.x_stride;
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    if (block.Column(p) >= a.width) continue;
    float ups[8];
    Load8(x + block.Column(p), v[p]);
    if (a.source == Source::kGated) {
      Load8(up + block.Column(p), ups);
      GateTimes(a.gating, v[p], ups);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (a.source == Source::kRmsNorm) squares = fmaf(v[p][i], v[p][i], squares);
      if (a.norm != nullptr) v[p][i] *= weights[p][i];
    }
  }
  return squares;
}

// Brings columns into their order, by way of shared memory.
template <int kPieces>
__device__ void Arrange(const PrepareArguments& a, const Block& block, float* row,
                        float (&v)[kPieces][8]) {
  int4 from[kPieces][2];
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    if (block.Column(p) >= a.width) continue;
    auto* const to = reinterpret_cast<float4*>(row + block.Column(p));
    to[0] = {v[p][0], v[p][1], v[p][2], v[p][3]};
    to[1] = {v[p][4], v[p][5], v[p][6], v[p][7]};
    const auto* const order = reinterpret_cast<const int4*>(a.order + block.Column(p));
    from[p][0] = __ldg(order), from[p][1] = __ldg(order + 1);
  }
  __syncthreads();
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    if (block.Column(p) >= a.width) continue;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int4 at = from[p][i];
      v[p][4 * i] = row[at.x], v[p][4 * i + 1] = row[at.y];
      v[p][4 * i + 2] = row[at.z], v[p][4 * i + 3] = row[at.w];
    }
  }
}

// ---- Messages between threads ----

// The largest of -v and of v.
struct Extent {
  float low = -INFINITY, high = -INFINITY;

  __device__ void Add(const Extent& other) {
    low = fmaxf(low, other.low), high = fmaxf(high, other.high);
  }
  template <Grid kind>
  __device__ Range<kind> range() const {
    if constexpr (OfMagnitudes(kind)) return {-INFINITY, fmaxf(low, high)};
    return {low, high};
  }
};

// Sums of codes; with 16 bits, of the lower plane and of the upper one.
struct CodeSums {
  int lower = 0, upper = 0;

  __device__ void Add(const CodeSums& other) { lower += other.lower, upper += other.upper; }
};

// One word per warp for a part without groups.
struct PartWords {
  int low[16], high[16], lower[16], upper[16];

  __device__ void Put(const Extent& of_warp) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    low[warp] = MaxOf()(Ordered(of_warp.low)), high[warp] = MaxOf()(Ordered(of_warp.high));
  }
  __device__ void Put(const CodeSums& of_warp) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    lower[warp] = SumOf()(of_warp.lower), upper[warp] = SumOf()(of_warp.upper);
  }
  __device__ Extent extent() const {
    return {FromOrdered(JoinWarps(low, MaxOf())), FromOrdered(JoinWarps(high, MaxOf()))};
  }
  __device__ CodeSums sums() const {
    return {JoinWarps(lower, SumOf()), JoinWarps(upper, SumOf())};
  }
};

// A message of one block of a cluster: words for both parts, and the sum of squares.
struct alignas(16) Message {
  int words[8];
};
struct Words {
  PartWords main, tail;
  int squares[16];
  Message extents[kRanks], sums[kRanks];
};

// Sends `message` to all blocks of the cluster; afterwards every block has the messages of all.
__device__ inline void Deliver(const Block& block, const Message& message, Message (&all)[kRanks]) {
  if (const int peer = static_cast<int>(threadIdx.x); peer < kRanks) {
    const int* const w = message.words;
    const auto words = [&](int i) {
      return uint4{static_cast<uint32_t>(w[i]), static_cast<uint32_t>(w[i + 1]),
                   static_cast<uint32_t>(w[i + 2]), static_cast<uint32_t>(w[i + 3])};
    };
    const uint32_t there = PeerAddress(SharedAddress(all + block.rank), peer);
    StorePeer(there, words(0));
    StorePeer(there + 16, words(4));
  }
  ClusterSync();
}

// Joins the values of the lanes that share a group.
__device__ inline void JoinLanes(int lanes, Extent& e) {
  const auto larger = [](float a, float b) { return fmaxf(a, b); };
  e = {JoinLanes(e.low, lanes, larger), JoinLanes(e.high, lanes, larger)};
}
__device__ inline void JoinLanes(int lanes, CodeSums& sums) {  // 16 bits have no groups
  sums.lower = JoinLanes(sums.lower, lanes, [](int a, int b) { return a + b; });
}

}  // namespace nibble::cuda
