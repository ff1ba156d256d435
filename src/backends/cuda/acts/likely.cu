// SPDX-License-Identifier: Apache-2.0
// Blocks take equal parts of a row. First each finds its largest logit and the sum relative to it;
// then all know the row's, and list what is in the window.
#include <algorithm>
#include <cmath>

#include "backends/cuda/acts/likely.h"
#include "backends/cuda/ptx/ptx.h"
#include "backends/cuda/runtime/launch.h"

namespace nibble::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxQueries = 128;

// grid [parts, rows]
struct LikelyArguments {
  const float* logits;
  int64_t width;
  float cap;
  LikelyPart* parts;
  LikelyRow* answers;
  LikelyQuery queries[kMaxQueries];
};

__device__ float Logit(const LikelyArguments& a, int64_t column) {
  const float logit = a.logits[blockIdx.y * a.width + column];
  return a.cap == 0 ? logit : a.cap * tanhf(logit / a.cap);
}

// Calls work(column) for this thread's columns of the block's part.
template <typename Work>
__device__ void ForColumns(int64_t width, Work&& work) {
  const int64_t length = (width + kLikelyParts - 1) / kLikelyParts;
  const int64_t first = blockIdx.x * length, end = min(width, first + length);
#pragma unroll 4
  for (int64_t i = first + threadIdx.x; i < end; i += kThreads) work(i);
}

struct Larger {
  __device__ float operator()(float x, float y) const { return fmaxf(x, y); }
};
struct Sum {
  __device__ float operator()(float x, float y) const { return x + y; }
};

template <typename Join>
__device__ float JoinBlock(float v, Join&& join) {
  __shared__ float warps[kThreads / 32];
  for (int distance = 16; distance > 0; distance /= 2) {
    v = join(v, __shfl_xor_sync(~0u, v, distance));
  }
  __syncthreads();  // those of the last call have been read
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;
  __syncthreads();
  v = warps[0];
  for (int i = 1; i < kThreads / 32; ++i) v = join(v, warps[i]);
  return v;
}

__global__ void __launch_bounds__(kThreads)
    LikelyPartsKernel(const __grid_constant__ LikelyArguments a) {
  WaitForPreviousGrid();
  AllowNextGrid();
  const float cold = a.queries[blockIdx.y].cold;
  float top = -INFINITY, sum = 0;
  bool finite = true;
  ForColumns(a.width, [&](int64_t i) {
    const float logit = a.logits[blockIdx.y * a.width + i];
    finite = finite && isfinite(logit);
    top = fmaxf(top, Logit(a, i));
  });
  top = JoinBlock(top, Larger());
  if (cold > 0) {
    ForColumns(a.width, [&](int64_t i) { sum += expf((Logit(a, i) - top) * cold); });
    sum = JoinBlock(sum, Sum());
  }
  finite = __syncthreads_and(finite);
  if (threadIdx.x > 0) return;
  a.parts[blockIdx.y * kLikelyParts + blockIdx.x] = {top, sum, finite};
  if (blockIdx.x == 0) a.answers[blockIdx.y].count = 0;
}

__global__ void __launch_bounds__(kThreads)
    LikelyListKernel(const __grid_constant__ LikelyArguments a) {
  WaitForPreviousGrid();
  AllowNextGrid();
  const LikelyQuery query = a.queries[blockIdx.y];
  LikelyRow& row = a.answers[blockIdx.y];
  LikelyPart part = {.top = -INFINITY, .sum = 0, .finite = 1};
  if (threadIdx.x < kLikelyParts) part = a.parts[blockIdx.y * kLikelyParts + threadIdx.x];
  const float top = JoinBlock(part.top, Larger());
  if (blockIdx.x == 0) {
    const float share = part.sum > 0 ? part.sum * expf((part.top - top) * query.cold) : 0;
    const float total = JoinBlock(share, Sum());
    const bool finite = __syncthreads_and(part.finite);
    if (threadIdx.x == 0) row.total = total, row.finite = finite;
  }
  const float least = top - query.window;
  ForColumns(a.width, [&](int64_t i) {
    const float logit = Logit(a, i);
    if (!(logit >= least)) return;
    const int at = atomicAdd(&row.count, 1);
    if (at < static_cast<int>(kMaxLikely)) row.tokens[at] = {static_cast<int32_t>(i), logit};
  });
}

}  // namespace

void FindLikely(const float* logits, int64_t width, float cap, std::span<const LikelyQuery> queries,
                LikelyPart* parts, LikelyRow* answers, cudaStream_t stream) {
  while (!queries.empty()) {
    const size_t count = std::min(queries.size(), size_t{kMaxQueries});
    LikelyArguments a = {.logits = logits,
                         .width = width,
                         .cap = cap,
                         .parts = parts,
                         .answers = answers,
                         .queries = {}};
    std::copy_n(queries.begin(), count, a.queries);
    const LaunchShape shape = {.grid = dim3(kLikelyParts, static_cast<unsigned>(count)),
                               .block = kThreads};
    LaunchDependent(LikelyPartsKernel, shape, stream, a);
    LaunchDependent(LikelyListKernel, shape, stream, a);
    logits += static_cast<int64_t>(count) * width, parts += count * kLikelyParts, answers += count;
    queries = queries.subspan(count);
  }
}

}  // namespace nibble::cuda
