// SPDX-License-Identifier: Apache-2.0
// Attention for any format, any number of rows and heads of up to 256 ("FlashAttention-2", Dao
// 2023). Four warps hold 16 or 32 rows each and walk over the pages of their keys. A packed page is
// copied to shared memory while the one before is worked on, and decoded there to fp16; the softmax
// is fp32.
//
// With few rows the keys are cut into spans as in decoding (attention_plan.h).
#include <algorithm>

#include "backends/cuda/attention/prefill_rows.cuh"
#include "backends/cuda/runtime/launch.h"

namespace nibble::cuda {
namespace {

constexpr int kThreads = 32 * kPrefillWarps;
constexpr int kSpanPages = 8;
constexpr int kFewRows = 64;  // up to here keys are split
constexpr int kBlocks = 2;    // that share a multiprocessor
// A packed page of so many bytes goes through shared memory even if only one block finds room then.
constexpr int kAlwaysStaged = 20 * 1024;

__device__ __forceinline__ void CopyBlock(const std::byte* block, int bytes, std::byte* staged) {
  for (int i = threadIdx.x * 16; i < bytes; i += kThreads * 16) CopyAsync16(staged + i, block + i);
  CopyAsyncCommit();
}

template <int D, int kTiles>
__device__ __forceinline__ void AttendPages(const AttentionCall& call, const Tile& tile,
                                            std::byte* staged, PrefillShared<D, kTiles>& shared,
                                            WarpState<D, kTiles>& state) {
  const KvLayout& kv = call.arguments.kv;
#pragma unroll 1
  for (int number = tile.pages.first; number < tile.pages.last; ++number) {
    const int page = tile.PageAt(number);
    const int stored = tile.Stored(page);
    const std::byte* block = staged != nullptr ? staged : tile.Block(page, kv);
    CopyAsyncWait<0>();
    __syncthreads();  // the packed page is there, and no warp reads the one before any more
    DecodeRows<D>(kv.k, kv.head_dim, block, stored, shared.k[0], PrefillShared<D, kTiles>::kStride);
    DecodeRows<D>(kv.v, kv.head_dim, block, stored, shared.v[0], PrefillShared<D, kTiles>::kStride);
    __syncthreads();
    if (staged != nullptr && number + 1 < tile.pages.last) {
      CopyBlock(tile.Block(tile.PageAt(number + 1), kv), kv.block_bytes, staged);
    }
    AttendPage(tile, page, shared, state);
  }
}

template <int D, int kTiles>
__global__ void __launch_bounds__(kThreads, kBlocks)
    PrefillKernel(const __grid_constant__ AttentionCall call, bool stages) {
  extern __shared__ __align__(128) std::byte memory[];
  auto& shared = *reinterpret_cast<PrefillShared<D, kTiles>*>(memory);
  const AttentionArguments& a = call.arguments;
  std::byte* staged = stages ? memory + sizeof(shared) : nullptr;
  __shared__ Tile tile;  // not in registers, of which the products leave none
  if (threadIdx.x == 0) tile = TileOf(call);
  __syncthreads();
  if (tile.rows == 0 || tile.span >= tile.spans) return;
  const int first_page = tile.PageAt(tile.pages.first);
  const auto copy_first = [&](bool settled) {
    if (staged == nullptr || tile.pages.first >= tile.pages.last) return;
    if (tile.Settled(first_page) != settled) return;
    CopyBlock(tile.Block(first_page, a.kv), a.kv.block_bytes, staged);
  };
  copy_first(true);
  WaitForPreviousGrid();
  AllowNextGrid();
  copy_first(false);
  ClearPadding<D>(a.kv.head_dim, shared.k);
  ClearPadding<D>(a.kv.head_dim, shared.v);
  StoreQuery<D, kThreads>(a, tile, shared.q);
  WarpState<D, kTiles> state;
  Clear(state);
  AttendPages(call, tile, staged, shared, state);
  StoreRows(state, shared);
  FinishBlock(call, tile, shared.Result(), 1, a.kv.head_dim);
}

template <int D, int kTiles>
void LaunchFor(const AttentionCall& call, cudaStream_t stream) {
  const AttentionArguments& a = call.arguments;
  constexpr int kShared = sizeof(PrefillShared<D, kTiles>);
  const int share = Device::Current().multiprocessor_shared_bytes / kBlocks - 1024;
  const bool stages = a.kv.block_bytes <= std::max(kAlwaysStaged, share - kShared);
  LaunchDependent(PrefillKernel<D, kTiles>,
                  {.grid = dim3(a.kv.kv_heads, call.plan.spans, a.sequences * call.plan.tiles),
                   .block = kThreads,
                   .shared_bytes = static_cast<size_t>(kShared + (stages ? a.kv.block_bytes : 0))},
                  stream, call, stages);
}

bool FewRows(const AttentionArguments& a) {
  return a.rows() <= kFewRows;
}

// Tiles of 32 rows a warp need too many registers with the longest heads.
bool WideTiles(const AttentionArguments& a) {
  return !FewRows(a) && a.kv.head_dim <= 128;
}

template <int D>
void LaunchFor(const AttentionCall& call, cudaStream_t stream) {
  if constexpr (D <= 128) {
    if (WideTiles(call.arguments)) return LaunchFor<D, 2>(call, stream);
  }
  LaunchFor<D, 1>(call, stream);
}

}  // namespace

bool FitsPrefill(const AttentionArguments& a) {
  return a.kv.head_dim <= kMaxTileHeadDim;
}

AttentionPlan PrefillPlan(const AttentionArguments& a) {
  return PlanOf(a, 16 * kPrefillWarps * (WideTiles(a) ? 2 : 1), FewRows(a) ? kSpanPages : 0);
}

void LaunchPrefill(const AttentionCall& call, cudaStream_t stream) {
  const int head_dim = call.arguments.kv.head_dim;
  if (head_dim <= 64) return LaunchFor<64>(call, stream);
  if (head_dim <= 96) return LaunchFor<96>(call, stream);
  if (head_dim <= 128) return LaunchFor<128>(call, stream);
  LaunchFor<256>(call, stream);
}

}  // namespace nibble::cuda
