// SPDX-License-Identifier: Apache-2.0
// Prompt products in groups (gemm_sm90_groups.cuh).
#include "backends/cuda/gemm/gemm_sm90_groups.cuh"
#include "backends/cuda/gemm/gemm_sm90_groups.h"

namespace nibble::cuda {
namespace {

using sm90::Epilogue;
using sm90::GroupProduct;

template <Epilogue kEpilogue, Epilogue kGatedEpilogue, typename S, int kSteps>
void LaunchAs(const GemmArguments& g, cudaStream_t stream) {
  if constexpr (std::is_same_v<typename S::Out, __nv_bfloat16>) {
    if (g.up_w != nullptr) {
      return sm90::Launch<GroupProduct<kGatedEpilogue, S, kSteps>>(g, stream);
    }
  }
  sm90::Launch<GroupProduct<kEpilogue, S, kSteps>>(g, stream);
}

template <WeightKind kKind, int kSteps, bool kTokenScales, typename Out>
void LaunchFor(const GemmArguments& g, cudaStream_t stream) {
  using S = sm90::Shape<kKind, kSteps != 4, sm90::kHalfTokens, kTokenScales, Out>;
  if constexpr (!kTokenScales) {
    if (g.planes()) {
      return LaunchAs<Epilogue::kPlanes, Epilogue::kGatedPlanes, S, kSteps>(g, stream);
    }
  }
  LaunchAs<Epilogue::kScaled, Epilogue::kGated, S, kSteps>(g, stream);
}

template <WeightKind kKind, int kSteps>
void LaunchPieces(const GemmArguments& g, cudaStream_t stream) {
  WithReal(g.y_type, [&]<typename Out>(Out) {
    g.x_group != 0 ? LaunchFor<kKind, kSteps, true, Out>(g, stream)
                   : LaunchFor<kKind, kSteps, false, Out>(g, stream);
  });
}

template <WeightKind kKind>
void LaunchKind(const GemmArguments& g, cudaStream_t stream) {
  g.piece == 128  ? LaunchPieces<kKind, 4>(g, stream)
  : g.piece == 64 ? LaunchPieces<kKind, 2>(g, stream)
                  : LaunchPieces<kKind, 1>(g, stream);
}

}  // namespace

void GemmSm90Groups(const GemmArguments& g, cudaStream_t stream) {
  sm90::CheckSm90(g);
  NIBBLE_CUDA_CHECK(HasGroups(g.w_kind));
  g.w_kind == WeightKind::kNibbleGroups ? LaunchKind<WeightKind::kNibbleGroups>(g, stream)
                                        : LaunchKind<WeightKind::kByteGroups>(g, stream);
}

}  // namespace nibble::cuda
