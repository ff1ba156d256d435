// SPDX-License-Identifier: Apache-2.0
// Split-KV decode attention ("Flash-Decoding", Dao et al. 2023) on a cache of bf16. A block takes a
// span of keys of one kv head for up to sixteen rows; its warps take 16 keys in turn, through rings
// of their own in shared memory.
//
// Both products run on tensor cores in bf16 with fp32 sums. A key's weight is two bf16 numbers: the
// further product costs nothing beside memory, and no operand is less exact than the cache.
#include "backends/cuda/attention/attention_tile.cuh"
#include "backends/cuda/runtime/launch.h"

namespace nibble::cuda {
namespace {

constexpr int kRows = 16;  // of a tile
constexpr int kKeys = 16;  // of a stage
constexpr int kStages = 2;
constexpr int kSpanPages = 4;

// Rows are padded by 16 bytes, which spreads a column over the banks.
template <int D>
struct Stage {
  __nv_bfloat16 k[kKeys][D + 8], v[kKeys][D + 8];
};

template <int D>
struct Shared {
  static constexpr int kWarps = D <= 128 ? 4 : 2;  // in 99 KiB, which is what some GPUs have

  Stage<D> rings[kWarps][kStages];  // later the warp's result takes their place
  __nv_bfloat16 q[kRows][D + 8];
  float2 ends[kWarps][kRows];
  Tile tile;

  __device__ Parts Results() {
    static_assert(kRows * (D + 4) * sizeof(float) <= sizeof(rings[0]));
    return {reinterpret_cast<float*>(rings), ends[0], D + 4, sizeof(rings[0]) / sizeof(float),
            kRows};
  }
};

// A warp's keys of a block's pages: every kWarps-th 16 of them.
template <int D>
struct KeyRing {
  const KvLayout& kv;
  const Tile& tile;
  Stage<D>* const stages;
  int next, end;  // keys
  int stage = 0;  // where the next keys go

  __device__ KeyRing(const KvLayout& layout, const Tile& t, Stage<D>* ring)
      : kv(layout),
        tile(t),
        stages(ring),
        next(t.pages.first * kPageKeys + threadIdx.x / 32 * kKeys),
        end(min(t.pages.last * kPageKeys, t.Visible(t.rows - 1).last)) {}

  // True if the next keys, if there are any, were cached before the new tokens.
  __device__ bool Settled() const { return next >= end || next + kKeys <= tile.sequence.position; }
  // Starts the copy of the next keys in place of the oldest, which have been read.
  __device__ __forceinline__ void Request() {
    if (next < end) {
      constexpr int kChunks = D / 8;  // of a row
      const std::byte* const block = tile.Block(next / kPageKeys, kv);
#pragma unroll
      for (int i = 0; i < kKeys * kChunks; i += 32) {
        const int at = i + threadIdx.x % 32, row = at / kChunks, d = at % kChunks * 8;
        __nv_bfloat16 *const k = &stages[stage].k[row][d], *const v = &stages[stage].v[row][d];
        if (next + row < end) {
          const int from = ((next % kPageKeys + row) * D + d) * 2;
          CopyAsync16(k, block + kv.k.codes + from);
          CopyAsync16(v, block + kv.v.codes + from);
        } else {  // what lies there may be anything, also NaN
          *reinterpret_cast<uint4*>(k) = *reinterpret_cast<uint4*>(v) = {};
        }
      }
    }
    CopyAsyncCommit();
    next += Shared<D>::kWarps * kKeys;
    stage = (stage + 1) % kStages;
  }
};

// A warp's rows; a lane has rows g and g + 8 (index h).
template <int D>
struct Rows {
  float o[D / 8][4] = {};
  float max[2] = {kNoKeys, kNoKeys}, sum[2] = {0, 0};
};

// Scores of the keys of a stage: row g + 8 h and key 8 n + 2 t + e in [n][2 h + e].
using Scores = float[2][4];

template <int D>
__device__ __forceinline__ void Score(const Shared<D>& shared, const Stage<D>& stage, Scores& s) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int d = 0; d < D; d += 16) {
    uint32_t q[4], k[4];
    LoadMatrices(&shared.q[lane % 16][d + lane / 16 * 8], q);
    LoadMatrices(&stage.k[lane / 16 * 8 + lane % 8][d + lane / 8 % 2 * 8], k);
    MmaBf16(s[0], q, k[0], k[1]);
    MmaBf16(s[1], q, k[2], k[3]);
  }
}

// Scores become weights.
template <int D>
__device__ __forceinline__ void Weigh(const Tile& tile, int first_key, float scale, Scores& s,
                                      Rows<D>& rows) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const bool all = first_key >= tile.common.first && first_key + kKeys <= tile.common.last;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const KeyRange seen = all ? KeyRange{} : tile.Visible(min(8 * h + g, tile.rows - 1));
    float max = rows.max[h];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& score = s[i / 2][2 * h + i % 2];
      const int key = first_key + i / 2 * 8 + 2 * t + i % 2;
      score = Capped(score * scale, tile.cap);
      if (!all && (key < seen.first || key >= seen.last)) score = -INFINITY;
      max = fmaxf(max, score);
    }
    max = fmaxf(max, __shfl_xor_sync(~0u, max, 1));
    max = fmaxf(max, __shfl_xor_sync(~0u, max, 2));
    const float factor = Exp2(rows.max[h] - max);
    rows.max[h] = max;
    rows.sum[h] *= factor;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& score = s[i / 2][2 * h + i % 2];
      rows.sum[h] += score = Exp2(score - max);
    }
    if (!__any_sync(~0u, factor != 1)) continue;
#pragma unroll
    for (auto& o : rows.o) o[2 * h] *= factor, o[2 * h + 1] *= factor;
  }
}

// Two numbers as bf16, and what that leaves of them.
__device__ __forceinline__ uint32_t SplitBf16(float x, float y, uint32_t& rest) {
  const uint32_t upper = PackBf16(x, y);
  rest = PackBf16(x - __uint_as_float(upper << 16), y - __uint_as_float(upper & 0xFFFF0000u));
  return upper;
}

template <int D>
__device__ __forceinline__ void AddValues(const Stage<D>& stage, const Scores& s, Rows<D>& rows) {
  const int lane = threadIdx.x % 32;
  uint32_t upper[4], lower[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    upper[i] = SplitBf16(s[i / 2][i % 2 * 2], s[i / 2][i % 2 * 2 + 1], lower[i]);
  }
#pragma unroll
  for (int d = 0; d < D; d += 16) {
    uint32_t v[4];
    LoadTransposed(&stage.v[lane % 16][d + lane / 16 * 8], v);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      MmaBf16(rows.o[d / 8 + i], upper, v[2 * i], v[2 * i + 1]);
      MmaBf16(rows.o[d / 8 + i], lower, v[2 * i], v[2 * i + 1]);
    }
  }
}

template <int D>
__device__ __forceinline__ void StoreRows(const Rows<D>& rows, Shared<D>& shared) {
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const Parts results = shared.Results();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = g + 8 * h;
    float sum = rows.sum[h];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (t == 0) shared.ends[warp][row] = {rows.max[h], sum};
    float* const to = results.values + warp * results.part_stride + row * results.row_stride;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      *reinterpret_cast<float2*>(to + 8 * n + 2 * t) = {rows.o[n][2 * h], rows.o[n][2 * h + 1]};
    }
  }
}

template <int D>
__global__ void __launch_bounds__(32 * Shared<D>::kWarps)
    DecodeBf16Kernel(const __grid_constant__ AttentionCall call) {
  extern __shared__ __align__(128) std::byte memory[];
  auto& shared = *reinterpret_cast<Shared<D>*>(memory);
  const AttentionArguments& a = call.arguments;
  const Tile& tile = shared.tile;
  if (threadIdx.x == 0) shared.tile = TileOf(call);
  __syncthreads();
  if (tile.rows == 0 || tile.span >= tile.spans) return;
  Stage<D>* const stages = shared.rings[threadIdx.x / 32];
  KeyRing<D> ring(a.kv, tile, stages);
  int key = ring.next, requested = 0;
  for (; requested < kStages && ring.Settled(); ++requested) ring.Request();
  WaitForPreviousGrid();
  AllowNextGrid();
  for (; requested < kStages; ++requested) ring.Request();
  for (int i = threadIdx.x; i < kRows * D / 8; i += blockDim.x) {
    const int row = i / (D / 8), d = i % (D / 8) * 8;
    uint4 q = {};
    if (row < tile.rows) q = *reinterpret_cast<const uint4*>(a.q + PlaceOf(a, tile, row, d));
    *reinterpret_cast<uint4*>(&shared.q[row][d]) = q;
  }
  __syncthreads();
  Rows<D> rows;
  for (; key < ring.end; key += Shared<D>::kWarps * kKeys) {
    CopyAsyncWait<kStages - 1>();
    __syncwarp();
    const Stage<D>& stage = stages[ring.stage];
    Scores s = {};
    Score(shared, stage, s);
    Weigh(tile, key, a.scale * kLog2E, s, rows);
    AddValues(stage, s, rows);
    __syncwarp();  // every lane has read its keys
    ring.Request();
  }
  CopyAsyncWait<0>();
  __syncwarp();
  StoreRows(rows, shared);
  FinishBlock(call, tile, shared.Results(), Shared<D>::kWarps, D);
}

template <int D>
void LaunchFor(const AttentionCall& call, cudaStream_t stream) {
  const AttentionArguments& a = call.arguments;
  LaunchDependent(DecodeBf16Kernel<D>,
                  {.grid = dim3(a.kv.kv_heads, call.plan.spans, a.sequences * call.plan.tiles),
                   .block = 32 * Shared<D>::kWarps,
                   .shared_bytes = sizeof(Shared<D>)},
                  stream, call);
}

}  // namespace

bool FitsDecodeBf16(const AttentionArguments& a) {
  return a.kv.k.bits == 16 && a.kv.v.bits == 16 && a.rows() <= kRows &&
         a.kv.head_dim <= kMaxTileHeadDim && WithHeadDim(a.kv.head_dim, [](auto) {});
}

AttentionPlan DecodeBf16Plan(const AttentionArguments& a) {
  return PlanOf(a, kRows, kSpanPages);
}

void LaunchDecodeBf16(const AttentionCall& call, cudaStream_t stream) {
  WithHeadDim(call.arguments.kv.head_dim, [&](auto d) {
    if constexpr (d() <= kMaxTileHeadDim) LaunchFor<d()>(call, stream);
  });
}

}  // namespace nibble::cuda
