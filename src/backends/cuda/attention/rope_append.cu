// SPDX-License-Identifier: Apache-2.0
// One warp takes one head of one token at a time: q, k or v. The next few are on their way to
// shared memory meanwhile.
#include "backends/cuda/attention/kv_append.cuh"
#include "backends/cuda/attention/rope_rows.cuh"
#include "backends/cuda/runtime/launch.h"

namespace nibble::cuda {
namespace {

// Warps of a block; with the longest heads each needs the memory of two.
template <int kElements>
constexpr int kWarps = kElements > 8 ? 4 : 8;
constexpr int kAhead = 4;            // heads of a warp in shared memory
constexpr int kTargetBlocks = 1024;  // fewer tokens than this share a token among several blocks

template <int kElements, typename Real>
struct WarpMemory {
  alignas(16) Real heads[kAhead][32 * kElements];  // as loaded
  AppendMemory<kElements> append;
};

template <int kElements, typename Real>
__global__ void __launch_bounds__(32 * kWarps<kElements>)
    RopeAppendKernel(const __grid_constant__ RopeAppendArguments a) {
  __shared__ WarpMemory<kElements, Real> memories[kWarps<kElements>];
  auto& memory = memories[threadIdx.x / 32];
  const int head_dim = a.kv.head_dim, kv_heads = a.kv.kv_heads, first = Lane() * kElements;
  const int64_t token = blockIdx.x;
  const int sequence = FindSequence(a, blockIdx.x);
  if (sequence < 0) return;
  const TokenPages pages(a, sequence, blockIdx.x);
  Angles<kElements> turn;
  turn.Load(a, pages.position);
  WaitForPreviousGrid();
  AllowNextGrid();
  const int heads = a.all_heads(), step = gridDim.y * kWarps<kElements>;
  int h = blockIdx.y * kWarps<kElements> + threadIdx.x / 32, coming = h;
  const auto fetch = [&](int place) {
    if (coming < heads && first < head_dim) {
      CopyAsync<kElements * sizeof(Real)>(&memory.heads[place][first],
                                          HeadOf<Real>(a, token, coming) + first);
    }
    CopyAsyncCommit();
    coming += step;
  };
#pragma unroll
  for (int i = 0; i < kAhead - 1; ++i) fetch(i);
  for (int place = 0; h < heads; h += step, place = (place + 1) % kAhead) {
    fetch((place + kAhead - 1) % kAhead);
    CopyAsyncWait<kAhead - 1>();
    __syncwarp();
    const bool is_q = h < a.heads, is_k = !is_q && h < a.heads + kv_heads;
    float x[kElements] = {};
    if (first < head_dim) Load(&memory.heads[place][first], x);
    if (is_q || is_k) {
      if (const float* norm = is_q ? a.q_norm : a.k_norm; norm != nullptr) {
        const float factor = NormFactor(SumOfSquares(x), 32, head_dim, a.norm_eps);
        if (first < head_dim) Scale(factor, norm + first, x);
        Store(x, memory.append.row + first);
        __syncwarp();
        Turn(memory.append.row, a.angles, turn, x);
      } else {
        Turn(memory.heads[place], a.angles, turn, x);
      }
      Rotate(a.rotation, head_dim, memory.append.row, x);
      if (is_k && a.key_center != nullptr && first < head_dim) {
        Subtract(a.key_center + (h - a.heads) * head_dim + first, x);
      }
    }
    if (is_q) {
      if (first < head_dim) Store(x, HeadOf<Real>(a, token, h) + first);
    } else {
      const int kv_head = h - a.heads - (is_k ? 0 : kv_heads);
      const auto append = [&](const KvLayout& kv, std::byte* page) {
        Append(is_k ? kv.k : kv.v, head_dim, page + int64_t{kv_head} * kv.block_bytes, pages.slot,
               memory.append, x);
      };
      append(a.kv, pages.page);
      __syncwarp();
      if (pages.recent != nullptr) append(a.recent, pages.recent);
    }
    __syncwarp();
  }
}

template <int kElements>
void LaunchFor(const RopeAppendArguments& a, cudaStream_t stream) {
  const int heads = a.all_heads();
  const int shares =
      std::clamp(kTargetBlocks / a.rows, 1, (heads + kWarps<kElements> - 1) / kWarps<kElements>);
  const LaunchShape shape = {.grid = dim3(a.rows, shares), .block = 32 * kWarps<kElements>};
  WithReal(a.type, [&]<typename Real>(Real) {
    LaunchDependent(RopeAppendKernel<kElements, Real>, shape, stream, a);
  });
}

}  // namespace

void RopeAppend(const RopeAppendArguments& a, cudaStream_t stream) {
  if (a.rows == 0 || RopeAppendPacked(a, stream)) return;
  if (a.kv.head_dim <= 64) return LaunchFor<2>(a, stream);
  if (a.kv.head_dim <= 128) return LaunchFor<4>(a, stream);
  if (a.kv.head_dim <= 256) return LaunchFor<8>(a, stream);
  LaunchFor<16>(a, stream);
}

}  // namespace nibble::cuda
