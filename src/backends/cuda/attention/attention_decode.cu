// SPDX-License-Identifier: Apache-2.0
// Split-KV decode attention ("Flash-Decoding", Dao et al. 2023) on 4-bit codes. A block takes a
// span of keys of one kv head for up to eight rows, each of its warps one page: copied to shared
// memory as it is, all at once, pages older than this step before the kernel in front has ended.
// Then it works on it by itself (decode_rows.cuh).
#include "backends/cuda/attention/decode_rows.cuh"
#include "backends/cuda/launch.h"

namespace nibble::cuda {
namespace {

// Pages of a span. Few rows leave a block less to do with a page, so that more and shorter blocks
// keep the memory busier.
constexpr int SpanPages(int head_dim, int products) {
  return head_dim <= 128 && products == 2 ? 8 : 4;
}

template <int D, int kProducts>
struct Shared {
  static constexpr int kWarps = SpanPages(D, kProducts);
  static constexpr int kBlocksPerSm = D <= 128 ? 24 / kWarps : 3;  // as many as fit

  std::byte pages[kWarps][PackedPage<D>::kBytes];  // later K's place holds the warp's result
  Query<D, kProducts> query;
  float2 ends[kWarps][4 * kProducts];
  Tile tile;

  __device__ Parts Results() {
    return {reinterpret_cast<float*>(pages), ends[0], D + 8, PackedPage<D>::kBytes / sizeof(float),
            4 * kProducts};
  }
};

template <int D, int kProducts>
__device__ __forceinline__ void AttendPage(int page, Shared<D, kProducts>& shared) {
  static_assert(4 * kProducts * (D + 8) * sizeof(float) <= PackedPage<D>::kPart);
  const int warp = threadIdx.x / 32, t = threadIdx.x % 4, key = page * kPageKeys;
  const Tile& tile = shared.tile;
  std::byte* keys = shared.pages[warp];
  const std::byte* values = keys + PackedPage<D>::kPart;
  if (tile.Stored(page) < kPageKeys) PackedPage<D>::ClearParams(keys, tile.Stored(page));
  PageScores<kProducts> scores;
  Score(keys, shared.query, scores);
  if (key < tile.common.first || key + kPageKeys > tile.common.last) {
    Mask<kProducts>(tile, page, scores);
  }
  PageWeights<kProducts> weights;
  weights.template Set<D>(values, shared.query.step, scores);
  __syncwarp();  // every lane has read its keys
  float* rows = reinterpret_cast<float*>(keys) + kProducts * t * (D + 8);
  AddValues<D>(values, weights, [&](int c, int d, float4 v) {
    *reinterpret_cast<float4*>(rows + c * (D + 8) + d) = v;
  });
#pragma unroll
  for (int c = 0; c < kProducts; ++c) {
    shared.ends[warp][kProducts * t + c] = {weights.max[c], weights.sum[c]};
  }
}

// Blocks that begin together load together and then compute together, wave after wave. So of those
// that share one of `multiprocessors` in the first wave each begins a while after the one before.
template <int kBlocks>
__device__ __forceinline__ void BeginApart(int multiprocessors) {
  constexpr int kClocks = 10500 / kBlocks;  // of some 14000 that a block takes
  const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const int place = block / multiprocessors;
  if (place >= kBlocks) return;
  const int64_t begin = clock64();
  while (clock64() - begin < place * kClocks) {
  }
}

template <int D, int kProducts>
__global__ void __launch_bounds__(32 * Shared<D, kProducts>::kWarps,
                                  Shared<D, kProducts>::kBlocksPerSm)
    DecodeKernel(const __grid_constant__ AttentionCall call, int multiprocessors) {  // 0: one wave
  using S = Shared<D, kProducts>;
  extern __shared__ __align__(128) std::byte memory[];
  auto& shared = *reinterpret_cast<S*>(memory);
  const AttentionArguments& a = call.arguments;
  const Tile& tile = shared.tile;
  const int warp = threadIdx.x / 32;
  if (threadIdx.x == 0) shared.tile = TileOf(call);
  __syncthreads();
  if (tile.rows == 0 || tile.span >= tile.spans) return;
  if (multiprocessors > 0) BeginApart<S::kBlocksPerSm>(multiprocessors);
  const int page = tile.pages.first + warp;
  const bool has_page = page < tile.pages.last, settled = tile.Settled(page);
  if (has_page && settled) PackedPage<D>::Copy(tile.Block(page, a.kv), shared.pages[warp]);
  WaitForPreviousGrid();
  AllowNextGrid();
  if (has_page && !settled) PackedPage<D>::Copy(tile.Block(page, a.kv), shared.pages[warp]);
  CopyAsyncCommit();
  for (int row = warp; row < 4 * kProducts; row += S::kWarps) shared.query.Store(a, tile, row);
  __syncthreads();
  if (has_page) {
    CopyAsyncWait<0>();
    __syncwarp();
    AttendPage(page, shared);
  }
  FinishBlock(call, tile, shared.Results(), tile.pages.last - tile.pages.first, D);
}

template <int D, int kProducts>
void LaunchFor(const AttentionCall& call, cudaStream_t stream) {
  using S = Shared<D, kProducts>;
  const AttentionArguments& a = call.arguments;
  const dim3 grid(a.kv.kv_heads, call.plan.spans, a.sequences * call.plan.tiles);
  const int multiprocessors = Device::Current().multiprocessors;
  const bool waves = int64_t{grid.x} * grid.y * grid.z > S::kBlocksPerSm * multiprocessors;
  LaunchDependent(DecodeKernel<D, kProducts>,
                  {.grid = grid, .block = 32 * S::kWarps, .shared_bytes = sizeof(S)}, stream, call,
                  waves ? multiprocessors : 0);
}

template <int D>
void LaunchFor(const AttentionCall& call, cudaStream_t stream) {
  call.plan.tile_rows == 4 ? LaunchFor<D, 1>(call, stream) : LaunchFor<D, 2>(call, stream);
}

}  // namespace

bool FitsDecode(const AttentionArguments& a) {
  // Beyond so many rows a page decoded once is cheaper than a pass over its codes per 8 rows.
  return a.kv.k.nibbles() && a.kv.v.nibbles() && a.softcap == 0 && a.rows() <= 32 &&
         WithHeadDim(a.kv.head_dim, [](auto) {});
}

AttentionPlan DecodePlan(const AttentionArguments& a) {
  const int products = a.rows() <= 4 ? 1 : 2;
  return PlanOf(a, 4 * products, SpanPages(a.kv.head_dim, products));
}

void LaunchDecode(const AttentionCall& call, cudaStream_t stream) {
  WithHeadDim(call.arguments.kv.head_dim, [&](auto d) { LaunchFor<d()>(call, stream); });
}

}  // namespace nibble::cuda
