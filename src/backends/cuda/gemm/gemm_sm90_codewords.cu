// SPDX-License-Identifier: Apache-2.0
// Prompt products with codewords of lattices: a math warpgroup looks the next codes up while the
// tensor cores work on these (gemm_sm90_rows.cuh).
#include "backends/cuda/gemm/gemm_sm90.h"
#include "backends/cuda/gemm/gemm_sm90_rows.cuh"

namespace nibble::cuda {
namespace {

template <WeightKind kKind>
void LaunchFor(const GemmArguments& g, cudaStream_t stream) {
  using sm90::Epilogue;
  WithReal(g.y_type, [&]<typename Out>(Out) {
    using S = sm90::Shape<kKind, false, kTileTokens, false, Out>;
    g.planes() ? sm90::Launch<sm90::RowProduct<Epilogue::kPlanes, S>>(g, stream)
               : sm90::Launch<sm90::RowProduct<Epilogue::kScaled, S>>(g, stream);
  });
}

}  // namespace

void GemmSm90Codewords(const GemmArguments& g, cudaStream_t stream) {
  sm90::CheckSm90(g);
  WithCodewordKind(g.w_kind, [&]<WeightKind kind>() { LaunchFor<kind>(g, stream); });
}

}  // namespace nibble::cuda
