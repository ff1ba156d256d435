// SPDX-License-Identifier: Apache-2.0
// Prompt products of operands with one scale a row (gemm_sm90_tile.cuh). A math warpgroup has 64
// outputs x 256 tokens in 128 registers a thread and unpacks the next 128 inputs while the tensor
// cores work on these.
//
// If less than half the grid has a tile left for its last round, these are halved to 128 tokens,
// and the round takes half the time. Where there are few tokens or outputs, all tiles have 64.
// Other tiles end one half after the other, so that the first is stored while the tensor cores work
// on the second.
#pragma once

#include "backends/cuda/gemm/gemm_sm90_split.cuh"

namespace nibble::cuda::sm90 {

// The sums of a tile of kHalves times S::kPart tokens, one step after the other; two sets of
// fragments take turns.
template <int kHalves, typename S>
__device__ __forceinline__ void SumTile(const Tiles& tiles, Shared<S>& s, Stages<S>& stages,
                                        FragmentsOf<S>& even, FragmentsOf<S>& odd,
                                        int32_t (&sums)[kHalves][S::kPart / 2]) {
  const auto half = [&](int stage, int i) {
    return SwizzledTile(s.x[stage] + i * S::kPart * kInputs);
  };
  const auto multiply = [&](FragmentsOf<S>& a, FragmentsOf<S>& previous, int stage,
                            int accumulate) {
    if constexpr (kHalves == 2) {
      MultiplyAsync(sums, a, previous, half(stage, 0), half(stage, 1), accumulate);
    } else {
      MultiplyHalf(sums[0], a, previous, half(stage, 0), accumulate);
    }
  };
  int left = tiles.steps, even_stage, odd_stage = 0;
  do {
    const bool first = left == tiles.steps;
    even_stage = stages.Next(even);
    multiply(even, odd, even_stage, !first);
    if (!first) stages.Release(odd_stage);
    odd_stage = stages.Next(odd);
    multiply(odd, even, odd_stage, 1);
    stages.Release(even_stage);
    left -= 2;
  } while (left > 0);
#pragma unroll
  for (int i = 0; i < kHalves; ++i) MultiplyEnd(sums[i], even, odd);
  stages.Release(odd_stage);
}

template <Epilogue kEpilogue, typename S>
struct RowProduct {
  using Shape = S;

  static __device__ void Multiply(const GemmArguments& g, const Tiles& tiles, Shared<S>& s) {
    Stages<S> stages = {g, s};
    uint32_t parity = 0;  // of the parameters
    int tile = tiles.first();
    const auto release = [&] {
      if (threadIdx.x % 32 == 0) BarrierArrive(&s.rest.parameters_empty);
    };
    if constexpr (S::kTokens == kTileTokens) {
      for (; tile < tiles.whole; tile += tiles.stride(), parity ^= 1) {
        MultiplyWhole(g, tiles, s, stages, parity);
        release();
      }
    }
    for (; tile < tiles.Count(); tile += tiles.stride(), parity ^= 1) {
      FragmentsOf<S> even, odd = {};
      int32_t sums[1][S::kPart / 2];
      SumTile(tiles, s, stages, even, odd, sums);
      if (tiles.splits > 1) AddSplits<kEpilogue>(tiles, s, sums[0]);
      BarrierWait(&s.rest.parameters_full, parity);
      Store<kEpilogue>(g, s, stages.warpgroup, sums[0], 0);
      release();
    }
  }

 private:
  // A tile of 256 tokens.
  static __device__ __forceinline__ void MultiplyWhole(const GemmArguments& g, const Tiles& tiles,
                                                       Shared<S>& s, Stages<S>& stages,
                                                       uint32_t parity) {
    constexpr int kHalf = kHalfTokens * kInputs;  // bytes
    const auto first_half = [&](int stage) { return SwizzledTile(s.x[stage]); };
    const auto second_half = [&](int stage) { return SwizzledTile(s.x[stage] + kHalf); };
    Sums sums;
    FragmentsOf<S> even, odd = {};
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
    BarrierWait(&s.rest.parameters_full, parity);
    Store<kEpilogue>(g, s, stages.warpgroup, sums[0], 0);
    MultiplyEnd(sums[1], even, odd);
    stages.Release(even_stage);
    stages.Release(odd_stage);
    Store<kEpilogue>(g, s, stages.warpgroup, sums[1], kHalfTokens);
  }
};

// Launches a product on tiles of 256 tokens, or on those of 64.
template <WeightKind kKind, bool kFine, typename Out>
void LaunchWide(const GemmArguments& g, cudaStream_t stream) {
  using S = Shape<kKind, kFine, kTileTokens, false, Out>;
  bool plain = g.x_zero_offsets == nullptr && g.w_zeros == nullptr && g.bias == nullptr;
  for (int i = 0; i <= g.joins; ++i) plain = plain && HasVectors<Out>(g.product(i));
  if constexpr (std::is_same_v<Out, __nv_bfloat16>) {
    if (g.up_w != nullptr) {
      return g.planes() ? Launch<RowProduct<Epilogue::kGatedPlanes, S>>(g, stream)
                        : Launch<RowProduct<Epilogue::kGated, S>>(g, stream);
    }
  }
  if (g.planes()) return Launch<RowProduct<Epilogue::kPlanes, S>>(g, stream);
  plain ? Launch<RowProduct<Epilogue::kPlain, S>>(g, stream)
        : Launch<RowProduct<Epilogue::kScaled, S>>(g, stream);
}
template <WeightKind kKind, bool kFine, typename Out>
void LaunchFew(const GemmArguments& g, cudaStream_t stream) {
  using S = Shape<kKind, kFine, kQuarterTokens, false, Out>;
  if constexpr (std::is_same_v<Out, __nv_bfloat16>) {
    if (g.up_w != nullptr) return Launch<RowProduct<Epilogue::kGated, S>>(g, stream);
  }
  Launch<RowProduct<Epilogue::kScaled, S>>(g, stream);
}

}  // namespace nibble::cuda::sm90
