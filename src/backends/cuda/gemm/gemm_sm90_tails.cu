// SPDX-License-Identifier: Apache-2.0
// Prompt products with tails (gemm_sm90_tail.cuh).
#include "backends/cuda/gemm/gemm_sm90_groups.cuh"
#include "backends/cuda/gemm/gemm_sm90_tail.cuh"
#include "backends/cuda/gemm/gemm_sm90_tails.h"

namespace nibble::cuda {
namespace {

using sm90::Epilogue;
using sm90::Tail;

template <WeightKind kKind>
void LaunchRows(const GemmArguments& g, cudaStream_t stream) {
  WithReal(g.y_type, [&]<typename Out>(Out) {
    using S = sm90::Shape<kKind, false, kTileTokens, false, Out, Tail::kPairs>;
    sm90::Launch<sm90::TailedRowProduct<Epilogue::kScaled, S>>(g, stream);
  });
}

void LaunchGroups(const GemmArguments& g, cudaStream_t stream) {
  WithReal(g.y_type, [&]<typename Out>(Out) {
    using S =
        sm90::Shape<WeightKind::kNibbleGroups, false, sm90::kHalfTokens, true, Out, Tail::kCodes>;
    sm90::Launch<sm90::GroupProduct<Epilogue::kScaled, S, 4>>(g, stream);
  });
}

}  // namespace

void GemmSm90Tails(const GemmArguments& g, cudaStream_t stream) {
  sm90::CheckSm90(g);
  NIBBLE_CUDA_CHECK(g.tail.x != nullptr && !g.planes());
  switch (g.w_kind) {
    case WeightKind::kNibbles:
      return LaunchRows<WeightKind::kNibbles>(g, stream);
    case WeightKind::kBytes:
      return LaunchRows<WeightKind::kBytes>(g, stream);
    default:
      NIBBLE_CUDA_CHECK(g.w_kind == WeightKind::kNibbleGroups && g.piece == 128 && g.x_group != 0 &&
                        g.tail.x_scales != nullptr);
      return LaunchGroups(g, stream);
  }
}

}  // namespace nibble::cuda
