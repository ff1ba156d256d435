// SPDX-License-Identifier: Apache-2.0
#include <cuda_fp16.h>

#include "backends/cuda/gemm/gemm_router.h"
#include "backends/cuda/ptx/ptx.h"
#include "backends/cuda/runtime/launch.h"

namespace nibble::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;

template <typename W>
__device__ float4 Load4(const W* p) {
  struct alignas(4 * sizeof(W)) Four {
    W x, y, z, w;
  };
  const Four v = *reinterpret_cast<const Four*>(p);
  return {static_cast<float>(v.x), static_cast<float>(v.y), static_cast<float>(v.z),
          static_cast<float>(v.w)};
}

__device__ float AddProducts(float4 a, float4 b, float sum) {
  return fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, sum))));
}

// Sums over the lanes; lane l gets that of v[l % kCount], in the same order for every kCount.
template <int kCount>
__device__ float WarpSums(float (&v)[kCount]) {
  static_assert(kCount == 1 || kCount == 8);
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int distance = 4; distance > 0; distance /= 2) {
#pragma unroll
    for (int i = 0; i < (kCount == 1 ? 1 : distance); ++i) {
      if constexpr (kCount == 1) {
        v[0] += __shfl_xor_sync(0xFFFFFFFF, v[0], distance);
      } else {
        const bool upper = (lane & distance) != 0;
        const float sent = upper ? v[i] : v[i + distance], kept = upper ? v[i + distance] : v[i];
        v[i] = kept + __shfl_xor_sync(0xFFFFFFFF, sent, distance);
      }
    }
  }
  v[0] += __shfl_xor_sync(0xFFFFFFFF, v[0], 8);
  return v[0] + __shfl_xor_sync(0xFFFFFFFF, v[0], 16);
}

// grid [blocks of kExperts, blocks of kTokens]
template <typename W, int kExperts, int kTokens>
__global__ void __launch_bounds__(kThreads)
    RouterKernel(const __grid_constant__ RouterArguments a) {
  __shared__ float parts[kWarps][kTokens][kExperts + 1];  // squares lie behind the experts
  AllowNextGrid();
  const int experts = static_cast<int>(a.experts), cols = static_cast<int>(a.cols);
  const int first_expert = static_cast<int>(blockIdx.x) * kExperts;
  const int64_t first_token = int64_t{blockIdx.y} * kTokens;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const W* const w = static_cast<const W*>(a.w);
  if (static_cast<int>(threadIdx.x) < min(kExperts, experts - first_expert)) {
    PrefetchL2(w + (first_expert + threadIdx.x) * a.cols,
               static_cast<uint32_t>(a.cols * sizeof(W)));
  }
  WaitForPreviousGrid();
  float sums[kTokens][kExperts] = {}, squares[kTokens][1] = {};
#pragma unroll(kExperts == 1 ? 4 : 1)
  for (int k = 4 * static_cast<int>(threadIdx.x); k < cols; k += 4 * kThreads) {
    float4 x[kTokens];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {  // past the end the last token repeats
      x[t] = Load4(a.x + min(first_token + t, a.tokens - 1) * a.cols + k);
      squares[t][0] = AddProducts(x[t], x[t], squares[t][0]);
      if (a.norm == nullptr) continue;
      const float4 norm = Load4(a.norm + k);
      x[t] = {x[t].x * norm.x, x[t].y * norm.y, x[t].z * norm.z, x[t].w * norm.w};
    }
#pragma unroll
    for (int e = 0; e < kExperts; ++e) {
      const float4 v = Load4(w + int64_t{min(first_expert + e, experts - 1)} * a.cols + k);
#pragma unroll
      for (int t = 0; t < kTokens; ++t) sums[t][e] = AddProducts(x[t], v, sums[t][e]);
    }
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    const float sum = WarpSums(sums[t]), square = WarpSums(squares[t]);
    if (lane < kExperts) parts[warp][t][lane] = sum;
    if (lane == 0) parts[warp][t][kExperts] = square;
  }
  __syncthreads();
  const int t = static_cast<int>(threadIdx.x) / kExperts,
            e = static_cast<int>(threadIdx.x) % kExperts;
  if (t >= kTokens || first_token + t >= a.tokens || first_expert + e >= experts) return;
  float sum = 0, square = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) sum += parts[i][t][e], square += parts[i][t][kExperts];
  const float logit = sum / sqrtf(square / static_cast<float>(cols) + a.eps);
  a.logits[(first_token + t) * a.experts + first_expert + e] =
      a.bias == nullptr ? logit : logit + a.bias[first_expert + e];
}

template <typename W>
void Launch(const RouterArguments& a, cudaStream_t stream) {
  const auto launch = [&]<int kExperts, int kTokens>() {
    const auto blocks = [](int64_t size, int64_t of) {
      return static_cast<unsigned>((size + of - 1) / of);
    };
    LaunchDependent(
        RouterKernel<W, kExperts, kTokens>,
        {.grid = dim3(blocks(a.experts, kExperts), blocks(a.tokens, kTokens)), .block = kThreads},
        stream, a);
  };
  constexpr int64_t kFewTokens = 8;
  a.tokens <= kFewTokens ? launch.template operator()<1, 1>() : launch.template operator()<8, 4>();
}

}  // namespace

void RouterLogits(const RouterArguments& a, cudaStream_t stream) {
  switch (a.w_type) {
    case WeightType::kFloat32:
      return Launch<float>(a, stream);
    case WeightType::kBfloat16:
      return Launch<__nv_bfloat16>(a, stream);
    case WeightType::kFloat16:
      return Launch<__half>(a, stream);
  }
}

}  // namespace nibble::cuda
