// SPDX-License-Identifier: Apache-2.0
// Split-KV decode attention ("Flash-Decoding", Dao et al. 2023) on codes of 4 and 8 bits. A block
// takes a span of keys of one kv head for up to eight rows. A warp copies a page or half of one to
// shared memory, older ones before the kernel in front has ended, and works on it
// (decode_rows.cuh).
#include <algorithm>

#include "backends/cuda/attention/decode_rows.cuh"
#include "backends/cuda/runtime/launch.h"

namespace nibble::cuda {
namespace {

constexpr int kSmBytes = 224 << 10, kSmWarps = 24;

// Warps of a block, each with a page or half of one. Few rows leave a block less to do with a page,
// so that more and shorter blocks keep the memory busier; long pages would leave room for one
// block.
template <typename Page>
constexpr int Warps(int products) {
  if (Page::kBytes > Page::kMaxBytes) return Page::kBytes > 2 * Page::kMaxBytes ? 1 : 2;
  return 2 * Page::kBytes <= Page::kMaxBytes && products == 2 ? 8 : 4;
}

template <typename Page, int kProducts>
struct Shared {
  static constexpr int kWarps = Warps<Page>(kProducts);
  static constexpr int kRowFloats = Page::D + (Page::kHalf ? 4 : 8);  // of a result

  std::byte pages[kWarps][Page::kBytes];  // later K's place holds the warp's result
  Query<Page::D, kProducts> query;
  float2 ends[kWarps][4 * kProducts];
  Tile tile;

  __device__ Parts Results() {
    return {reinterpret_cast<float*>(pages), ends[0], kRowFloats, Page::kBytes / sizeof(float),
            4 * kProducts};
  }
};

// The number of blocks that a multiprocessor has room for.
template <typename Page, int kProducts>
constexpr int kBlocksPerSm = std::min<int>(kSmWarps / Shared<Page, kProducts>::kWarps,
                                           kSmBytes / sizeof(Shared<Page, kProducts>));

// Attends to one warp's keys, from `first` on.
template <typename Page, int kProducts>
__device__ __forceinline__ void AttendKeys(int first, Shared<Page, kProducts>& shared) {
  constexpr int kKeys = Page::kKeys, kRowFloats = Shared<Page, kProducts>::kRowFloats;
  static_assert(4 * kProducts * kRowFloats * sizeof(float) <= Page::K::kBytes);
  const int warp = threadIdx.x / 32, t = threadIdx.x % 4;
  const Tile& tile = shared.tile;
  std::byte* keys = shared.pages[warp];
  const std::byte* values = keys + Page::K::kBytes;
  if (const int stored = tile.End() - first; stored < kKeys) {
    Page::ClearParams(keys, max(stored, 0));
  }
  KeyScores<kKeys, kProducts> scores;
  Score<typename Page::K>(keys, shared.query, scores);
  if (tile.cap != 0) Cap<kKeys, kProducts>(tile.cap, shared.query.step, scores);
  if (first < tile.common.first || first + kKeys > tile.common.last) {
    Mask<kKeys, kProducts>(tile, first, scores);
  }
  KeyWeights<kKeys, kProducts> weights;
  weights.template Set<typename Page::V>(values, shared.query.step, scores);
  __syncwarp();  // every lane has read its keys
  float* rows = reinterpret_cast<float*>(keys) + kProducts * t * kRowFloats;
  AddValues<typename Page::V>(values, weights, [&]<typename Some>(int c, int d, Some some) {
    *reinterpret_cast<Some*>(rows + c * kRowFloats + d) = some;
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

template <typename Page, int kProducts>
__global__ void __launch_bounds__(32 * Shared<Page, kProducts>::kWarps,
                                  kBlocksPerSm<Page, kProducts>)
    DecodeKernel(const __grid_constant__ AttentionCall call, int multiprocessors) {  // 0: one wave
  using S = Shared<Page, kProducts>;
  extern __shared__ __align__(128) std::byte memory[];
  auto& shared = *reinterpret_cast<S*>(memory);
  const AttentionArguments& a = call.arguments;
  const Tile& tile = shared.tile;
  const int warp = threadIdx.x / 32;
  if (threadIdx.x == 0) shared.tile = TileOf(call);
  __syncthreads();
  if (tile.rows == 0 || tile.span >= tile.spans) return;
  if (multiprocessors > 0) BeginApart<kBlocksPerSm<Page, kProducts>>(multiprocessors);
  const int number = tile.pages.first + warp / Page::kOfPage, piece = warp % Page::kOfPage;
  const int page = tile.PageAt(number);
  const bool has_page = number < tile.pages.last, settled = tile.Settled(page);
  const auto copy = [&] { Page::Copy(tile.Block(page, a.kv), piece, shared.pages[warp]); };
  if (has_page && settled) copy();
  WaitForPreviousGrid();
  AllowNextGrid();
  if (has_page && !settled) copy();
  CopyAsyncCommit();
  for (int row = warp; row < 4 * kProducts; row += S::kWarps) shared.query.Store(a, tile, row);
  __syncthreads();
  if (has_page) {
    CopyAsyncWait<0>();
    __syncwarp();
    AttendKeys(page * kPageKeys + piece * Page::kKeys, shared);
  }
  const int parts = (tile.pages.last - tile.pages.first) * Page::kOfPage;
  FinishBlock(call, tile, shared.Results(), parts, Page::kHeadDim);
}

template <typename Page, int kProducts>
struct Kernel {};

// visit(Kernel) of the one for this call.
template <typename Page, typename Visit>
void WithProducts(const AttentionArguments& a, const Visit& visit) {
  a.rows() <= 4 ? visit(Kernel<Page, 1>()) : visit(Kernel<Page, 2>());
}
template <int D, typename Visit>
void WithBits(const AttentionArguments& a, const Visit& visit) {
  const bool wide_k = a.kv.k.bits == 8, wide_v = a.kv.v.bits == 8;
  if (wide_k && wide_v) return WithProducts<PackedPage<D, 8, 8>>(a, visit);
  if (wide_k) return WithProducts<PackedPage<D, 8, 4>>(a, visit);
  if (wide_v) return WithProducts<PackedPage<D, 4, 8>>(a, visit);
  WithProducts<PackedPage<D, 4, 4>>(a, visit);
}
template <typename Visit>
bool WithKernel(const AttentionArguments& a, const Visit& visit) {
  return a.kv.k.packs() && a.kv.v.packs() &&
         WithHeadDim(a.kv.head_dim, [&](auto d) { WithBits<d()>(a, visit); });
}

template <typename Page, int kProducts>
void LaunchFor(const AttentionCall& call, cudaStream_t stream) {
  using S = Shared<Page, kProducts>;
  const AttentionArguments& a = call.arguments;
  const dim3 grid(a.kv.kv_heads, call.plan.spans, a.sequences * call.plan.tiles);
  const int multiprocessors = Device::Current().multiprocessors;
  const bool waves =
      int64_t{grid.x} * grid.y * grid.z > kBlocksPerSm<Page, kProducts> * multiprocessors;
  LaunchDependent(DecodeKernel<Page, kProducts>,
                  {.grid = grid, .block = 32 * S::kWarps, .shared_bytes = sizeof(S)}, stream, call,
                  waves ? multiprocessors : 0);
}

}  // namespace

bool FitsDecode(const AttentionArguments& a) {
  // Beyond so many rows a page decoded once is cheaper than a pass over its codes per 8 rows. All
  // rows read a page in the same form.
  if (a.form != CacheForm::kOnly && a.max_tokens > 1) return false;
  return a.rows() <= 32 && WithKernel(a, [](auto) {});
}

AttentionPlan DecodePlan(const AttentionArguments& a) {
  AttentionPlan plan;
  WithKernel(a, [&]<typename Page, int products>(Kernel<Page, products>) {
    plan = PlanOf(a, 4 * products, Warps<Page>(products) / Page::kOfPage);
  });
  return plan;
}

void LaunchDecode(const AttentionCall& call, cudaStream_t stream) {
  WithKernel(call.arguments, [&]<typename Page, int products>(Kernel<Page, products>) {
    LaunchFor<Page, products>(call, stream);
  });
}

}  // namespace nibble::cuda
