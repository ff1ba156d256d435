// SPDX-License-Identifier: Apache-2.0
// Prompt products of operands with one scale a row (gemm_sm90_tile.cuh). A math warpgroup has 64
// outputs x 256 tokens in 128 registers a thread and unpacks the next 128 inputs while the tensor
// cores work on these.
//
// If less than half the grid has a tile left for its last round, these are halved, 128 tokens each,
// and the round takes half the time. The last two steps of other tiles treat their halves one after
// the other, so that the tensor cores work on the second while the first is stored.
#include "backends/cuda/gemm/gemm_sm90.h"
#include "backends/cuda/gemm/gemm_sm90_split.cuh"

namespace nibble::cuda {
namespace {

using sm90::Epilogue;

template <Epilogue kEpilogue, typename S>
struct RowProduct {
  using Shape = S;
  static __device__ void Multiply(const GemmArguments& g, const sm90::Tiles& tiles,
                                  sm90::Shared<S>& s);
};

template <Epilogue kEpilogue, typename S>
__device__ void RowProduct<kEpilogue, S>::Multiply(const GemmArguments& g, const sm90::Tiles& tiles,
                                                   sm90::Shared<S>& s) {
  constexpr int kHalf = sm90::kHalfTokens * sm90::kInputs;  // bytes
  const int lane = threadIdx.x % 32;
  sm90::Stages<S> stages = {g, s};
  const auto store_half = [&](const int32_t(&sums)[64], int first_token) {
    sm90::Store<kEpilogue>(g, s, stages.warpgroup, sums, first_token);
  };
  const auto first_half = [&](int stage) { return SwizzledTile(s.x[stage]); };
  const auto second_half = [&](int stage) { return SwizzledTile(s.x[stage] + kHalf); };

  uint32_t parity = 0;  // of the parameters
  int tile = tiles.first();
  for (; tile < tiles.whole; tile += tiles.stride(), parity ^= 1) {
    Sums sums;
    Fragments even, odd = {};
    int left = tiles.steps - 2, even_stage, odd_stage = 0;
    do {  // not `while`: ptxas copies the sums if it believes that no step may run
      const bool first = left == tiles.steps - 2;
      even_stage = stages.Next(even);
      MultiplyAsync(sums, even, odd, first_half(even_stage), second_half(even_stage), !first);
      if (!first) stages.Release(odd_stage);
      odd_stage = stages.Next(odd);
      MultiplyAsync(sums, odd, even, first_half(odd_stage), second_half(odd_stage), 1);
      stages.Release(even_stage);
      left -= 2;
    } while (left > 0);

    even_stage = stages.Next(even);
    MultiplyHalf(sums[0], even, odd, first_half(even_stage), 1);
    stages.Release(odd_stage);
    odd_stage = stages.Next(odd);
    MultiplyLast(sums, even, odd, first_half(odd_stage), second_half(even_stage),
                 second_half(odd_stage));
    BarrierWait(&s.tail.parameters_full, parity);
    store_half(sums[0], 0);
    MultiplyEnd(sums[1], even, odd);
    stages.Release(even_stage);
    stages.Release(odd_stage);
    store_half(sums[1], kTileTokens / 2);
    if (lane == 0) BarrierArrive(&s.tail.parameters_empty);
  }
  for (; tile < tiles.Count(); tile += tiles.stride(), parity ^= 1) {
    int32_t sums[64];
    Fragments even, odd = {};
    int left = tiles.steps, even_stage, odd_stage = 0;
    do {
      const bool first = left == tiles.steps;
      even_stage = stages.Next(even);
      MultiplyHalf(sums, even, odd, first_half(even_stage), !first);
      if (!first) stages.Release(odd_stage);
      odd_stage = stages.Next(odd);
      MultiplyHalf(sums, odd, even, first_half(odd_stage), 1);
      stages.Release(even_stage);
      left -= 2;
    } while (left > 0);
    MultiplyEnd(sums, even, odd);
    stages.Release(odd_stage);
    if (tiles.splits > 1) sm90::AddSplits<kEpilogue>(tiles, s, sums);
    BarrierWait(&s.tail.parameters_full, parity);
    store_half(sums, 0);
    if (lane == 0) BarrierArrive(&s.tail.parameters_empty);
  }
}

template <WeightKind kKind, bool kFine, typename Out>
void LaunchFor(const GemmArguments& g, cudaStream_t stream) {
  using S = sm90::Shape<kKind, kFine, kTileTokens, false, Out>;
  const bool plain =
      HasVectors<Out>(g) && g.x_zetas == nullptr && g.w_zeros == nullptr && g.bias == nullptr;
  if constexpr (std::is_same_v<Out, __nv_bfloat16>) {
    if (g.up_w != nullptr) {
      return g.planes() ? sm90::Launch<RowProduct<Epilogue::kGatedPlanes, S>>(g, stream)
                        : sm90::Launch<RowProduct<Epilogue::kGated, S>>(g, stream);
    }
  }
  if (g.planes()) return sm90::Launch<RowProduct<Epilogue::kPlanes, S>>(g, stream);
  plain ? sm90::Launch<RowProduct<Epilogue::kPlain, S>>(g, stream)
        : sm90::Launch<RowProduct<Epilogue::kLaw, S>>(g, stream);
}

}  // namespace

void GemmSm90(const GemmArguments& g, cudaStream_t stream) {
  sm90::CheckSm90(g);
  WithReal(g.y_type, [&]<typename Out>(Out) {
    switch (g.w_kind) {
      case WeightKind::kNibbles:
        return LaunchFor<WeightKind::kNibbles, false, Out>(g, stream);
      case WeightKind::kBytes:
        return LaunchFor<WeightKind::kBytes, false, Out>(g, stream);
      default:
        NIBBLE_CUDA_CHECK(g.w_kind == WeightKind::kLevels);
        g.w_block.pieces == 1 ? LaunchFor<WeightKind::kLevels, false, Out>(g, stream)
                              : LaunchFor<WeightKind::kLevels, true, Out>(g, stream);
    }
  });
}

}  // namespace nibble::cuda
