// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <climits>

#include "backends/cuda/experts/routes.h"
#include "backends/cuda/ptx/ptx.h"
#include "backends/cuda/runtime/launch.h"
#include "backends/cuda/runtime/warp_reduce.cuh"

namespace nibble::cuda {
namespace {

constexpr int kChooseWarps = 4;
constexpr int kThreads = 256;
constexpr int kFewThreads = kMaxRoutedExperts, kMaxFewRows = 256;
constexpr unsigned kAll = 0xFFFFFFFF;

__device__ unsigned LanesBelow() {
  return (1u << threadIdx.x % 32) - 1;
}

// A warp's choice of the experts of one token: lane l has every 32nd expert from l on.
template <int kOfLane, bool kSigmoid>
class Choice {
 public:
  __device__ Choice(const RouteArguments& a, int64_t token) : router_(a.router), scales_(a.scales) {
    const int experts = static_cast<int>(router_.experts);
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int e = 32 * i + Lane();
      logits_[i] = e < experts ? a.logits[token * experts + e] : -INFINITY;
      float key = kSigmoid ? Sigmoid(logits_[i]) : logits_[i];
      if (a.bias != nullptr && e < experts) key += a.bias[e];
      keys_[i] = e >= experts ? INT_MIN : Ordered(isnan(key) ? -INFINITY : key + 0.0f);
    }
    for (int taken = 0; taken < router_.experts_per_token; ++taken) {
      const int expert = Largest();
      if (expert % 32 == Lane()) chosen_ |= 1u << expert / 32;
      if (taken > 0) continue;
#pragma unroll
      for (int i = 0; i < kOfLane; ++i) {
        const float theirs = __shfl_sync(kAll, logits_[i], expert % 32);
        if (i == expert / 32) largest_ = theirs;
      }
    }
  }

  __device__ void Store(int32_t* experts, float* weights) const {
    float sum = 0, scores[kOfLane];
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      scores[i] = kSigmoid ? Sigmoid(logits_[i]) : expf(logits_[i] - largest_);
      const bool exists = 32 * i + Lane() < router_.experts;
      if (router_.normalized ? IsChosen(i) : exists) sum += scores[i];
    }
    sum = WarpSum(sum);
    if (kSigmoid) sum = router_.normalized ? sum + kMinScoreSum : 1;
    int before = 0;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const unsigned lanes = __ballot_sync(kAll, IsChosen(i));
      if (IsChosen(i)) {
        const int at = before + __popc(lanes & LanesBelow());
        experts[at] = 32 * i + Lane();
        weights[at] = scores[i] / sum * router_.scale;
        if (scales_ != nullptr) weights[at] *= scales_[32 * i + Lane()];
      }
      before += __popc(lanes);
    }
    for (int i = Lane(); i < router_.shared; i += 32) {
      experts[router_.experts_per_token + i] = static_cast<int>(router_.experts) + i;
      weights[router_.experts_per_token + i] = 1;
    }
  }

 private:
  static __device__ int Lane() {
    return static_cast<int>(threadIdx.x) % 32;
  }
  static __device__ float Sigmoid(float x) {
    return 1 / (1 + expf(-x));
  }
  __device__ bool IsChosen(int i) const {
    return (chosen_ >> i & 1) != 0;
  }

  // The largest key of those that are left; of equal ones the first.
  __device__ int Largest() const {
    int best = INT_MIN, expert = INT_MAX;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      if (!IsChosen(i) && keys_[i] > best) best = keys_[i], expert = 32 * i + Lane();
    }
    const int largest = __reduce_max_sync(kAll, best);
    return __reduce_min_sync(kAll, best == largest ? expert : INT_MAX);
  }

  const RouterSpec& router_;
  const float* scales_;
  float logits_[kOfLane];
  int keys_[kOfLane];    // Ordered
  unsigned chosen_ = 0;  // bit i: the lane's i-th expert
  float largest_ = 0;    // the logit of the largest key, without sigmoids the largest of all
};

// A warp per token.
template <int kOfLane, bool kSigmoid>
__global__ void ChooseKernel(const __grid_constant__ RouteArguments a) {
  WaitForPreviousGrid();
  AllowNextGrid();
  const int64_t token = int64_t{blockIdx.x} * kChooseWarps + threadIdx.x / 32;
  if (token >= a.tokens) return;
  const int64_t at = token * a.of_token();
  Choice<kOfLane, kSigmoid>(a, token).Store(a.experts + at, a.weights + at);
}

__device__ int Groups(const RouteArguments& a, int rows) {
  return (rows + a.group_rows - 1) / a.group_rows;
}

// A block per expert: counts the rows of all, then finds its own.
__global__ void GroupKernel(const __grid_constant__ RouteArguments a) {
  __shared__ int counts[kMaxRoutedExperts], warp_rows[32], rows_before, groups_before;
  WaitForPreviousGrid();
  AllowNextGrid();
  const int experts = static_cast<int>(a.all()), expert = blockIdx.x;
  const int all = static_cast<int>(a.rows()), thread = threadIdx.x, threads = blockDim.x;
  for (int e = thread; e < experts; e += threads) counts[e] = 0;
  if (thread == 0) rows_before = groups_before = 0;
  __syncthreads();
  for (int i = thread; i < all; i += threads) atomicAdd(&counts[a.experts[i]], 1);
  __syncthreads();
  for (int e = thread; e < expert; e += threads) {
    atomicAdd(&rows_before, counts[e]);
    atomicAdd(&groups_before, Groups(a, counts[e]));
  }
  __syncthreads();
  const int count = counts[expert], groups = Groups(a, count);
  for (int i = thread; i < groups; i += threads) {
    const int row = i * a.group_rows;
    a.groups[groups_before + i] = {expert, rows_before + row, min(a.group_rows, count - row)};
  }
  if (expert == experts - 1 && thread == 0) *a.group_count = groups_before + groups;

  int found = 0;
  for (int start = 0; found < count; start += threads) {
    const int i = start + thread;
    const bool mine = i < all && a.experts[i] == expert;
    const unsigned lanes = __ballot_sync(kAll, mine);
    if (thread % 32 == 0) warp_rows[thread / 32] = __popc(lanes);
    __syncthreads();
    const int lane = thread % 32, rows = lane < threads / 32 ? warp_rows[lane] : 0;
    const int before = found + __reduce_add_sync(kAll, lane < thread / 32 ? rows : 0);
    found += __reduce_add_sync(kAll, rows);
    if (mine) {
      const int row = rows_before + before + __popc(lanes & LanesBelow());
      a.places[i] = row;
      a.row_tokens[row] = i / static_cast<int>(a.of_token());
    }
    __syncthreads();
  }
}

// ChooseKernel and GroupKernel for few rows, in one block.
template <int kOfLane, bool kSigmoid>
__global__ void __launch_bounds__(kFewThreads)
    RouteFewKernel(const __grid_constant__ RouteArguments a) {
  __shared__ int chosen[kMaxFewRows], counts[kFewThreads], firsts[kFewThreads], totals[32];
  WaitForPreviousGrid();
  AllowNextGrid();
  const int of_token = static_cast<int>(a.of_token());
  const int all = static_cast<int>(a.rows()), thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32, warp = thread / 32;
  counts[thread] = 0;
  for (int token = warp; token < a.tokens; token += kFewThreads / 32) {
    Choice<kOfLane, kSigmoid>(a, token).Store(chosen + token * of_token,
                                              a.weights + token * of_token);
  }
  __syncthreads();
  if (thread < all) atomicAdd(&counts[chosen[thread]], 1);
  __syncthreads();
  // own: the rows of the thread's expert and, from bit 16 on, its groups; sum: those of all experts
  // up to it.
  const int count = counts[thread], groups = Groups(a, count), own = count | groups << 16;
  int sum = own;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int below = __shfl_up_sync(kAll, sum, distance);
    if (lane >= distance) sum += below;
  }
  if (lane == 31) totals[warp] = sum;
  __syncthreads();
  for (int i = 0; i < warp; ++i) sum += totals[i];
  const int first = (sum - own) & 0xFFFF, first_group = (sum - own) >> 16;
  firsts[thread] = first;
  for (int i = 0; i < groups; ++i) {
    const int row = i * a.group_rows;
    a.groups[first_group + i] = {thread, first + row, min(a.group_rows, count - row)};
  }
  if (thread == kFewThreads - 1) *a.group_count = sum >> 16;
  __syncthreads();
  if (thread >= all) return;
  int row = firsts[chosen[thread]];
  for (int i = 0; i < thread; ++i) row += chosen[i] == chosen[thread] ? 1 : 0;
  a.places[thread] = row;
  a.row_tokens[row] = thread / of_token;
}

// A block per row.
__global__ void GatherKernel(const __grid_constant__ PreparedRows from, const int32_t* row_tokens,
                             int64_t stride, const __grid_constant__ PreparedRows to) {
  WaitForPreviousGrid();
  AllowNextGrid();
  const int64_t row = blockIdx.x, token = row_tokens[row];
  const auto* const codes = reinterpret_cast<const uint4*>(from.codes + token * stride);
  auto* const gathered = reinterpret_cast<uint4*>(to.codes + row * stride);
  for (int64_t i = threadIdx.x; i < stride / 16; i += blockDim.x) gathered[i] = codes[i];
  if (threadIdx.x > 0) return;
  to.scales[row] = from.scales[token];
  to.sums[row] = from.sums[token];
  if (from.zero_offsets != nullptr) to.zero_offsets[row] = from.zero_offsets[token];
}

__device__ float2 Load2(const float* y) {
  return *reinterpret_cast<const float2*>(y);
}
__device__ float2 Load2(const __nv_bfloat16* y) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(y));
}

// A block per token and 2 kThreads columns.
template <typename Y>
__global__ void AddExpertsKernel(const __grid_constant__ RouteArguments a, const Y* y,
                                 int64_t width, float* x) {
  WaitForPreviousGrid();
  AllowNextGrid();
  const int64_t column = 2 * (int64_t{blockIdx.x} * kThreads + threadIdx.x);
  if (column >= width) return;
  const int64_t first = blockIdx.y * a.of_token();
  float2* const to = reinterpret_cast<float2*>(x + blockIdx.y * width + column);
  float2 sum = *to;
#pragma unroll 4
  for (int64_t i = first; i < first + a.of_token(); ++i) {
    const float2 v = Load2(y + a.places[i] * width + column);
    sum.x += a.weights[i] * v.x, sum.y += a.weights[i] * v.y;
  }
  *to = sum;
}

unsigned Blocks(int64_t size, int64_t block) {
  return static_cast<unsigned>((size + block - 1) / block);
}

}  // namespace

int64_t RouteArguments::max_groups() const {
  return std::min(rows(), all() + rows() / group_rows);
}

template <int kOfLane, bool kSigmoid>
void RouteAs(const RouteArguments& a, cudaStream_t stream) {
  if (a.rows() <= kMaxFewRows) {
    return LaunchDependent(RouteFewKernel<kOfLane, kSigmoid>, {.grid = 1, .block = kFewThreads},
                           stream, a);
  }
  LaunchDependent(ChooseKernel<kOfLane, kSigmoid>,
                  {.grid = Blocks(a.tokens, kChooseWarps), .block = 32 * kChooseWarps}, stream, a);
  const unsigned threads = 32 * std::min(32u, Blocks(a.rows(), 32));
  LaunchDependent(GroupKernel, {.grid = static_cast<unsigned>(a.all()), .block = threads}, stream,
                  a);
}

void Route(const RouteArguments& a, cudaStream_t stream) {
  NIBBLE_CUDA_CHECK(a.all() <= kMaxRoutedExperts);
  const bool few = a.router.experts <= 4 * 32;
  a.router.sigmoid ? (few ? RouteAs<4, true>(a, stream) : RouteAs<16, true>(a, stream))
                   : (few ? RouteAs<4, false>(a, stream) : RouteAs<16, false>(a, stream));
}

void GatherRows(const PreparedRows& from, const int32_t* row_tokens, int64_t rows, int64_t stride,
                const PreparedRows& to, cudaStream_t stream) {
  LaunchDependent(GatherKernel, {.grid = static_cast<unsigned>(rows), .block = 128}, stream, from,
                  row_tokens, stride, to);
}

void AddExperts(const RouteArguments& routes, const void* y, RealType type, int64_t width, float* x,
                cudaStream_t stream) {
  const dim3 grid(Blocks(width, 2 * kThreads), static_cast<unsigned>(routes.tokens));
  WithReal(type, [&]<typename Y>(Y) {
    LaunchDependent(AddExpertsKernel<Y>, {.grid = grid, .block = kThreads}, stream, routes,
                    static_cast<const Y*>(y), width, x);
  });
}

}  // namespace nibble::cuda
