// SPDX-License-Identifier: Apache-2.0
// Prompt products of operands with one scale a row, or with two levels (gemm_sm90_rows.cuh).
#include "backends/cuda/gemm/gemm_sm90.h"
#include "backends/cuda/gemm/gemm_sm90_few.h"
#include "backends/cuda/gemm/gemm_sm90_rows.cuh"

namespace nibble::cuda {
namespace {

using sm90::Epilogue;
using sm90::RowProduct;

template <WeightKind kKind, bool kFine, typename Out>
void LaunchFor(const GemmArguments& g, cudaStream_t stream) {
  using S = sm90::Shape<kKind, kFine, kTileTokens, false, Out>;
  bool plain = g.x_zero_offsets == nullptr && g.w_zeros == nullptr && g.bias == nullptr;
  for (int i = 0; i <= g.joins; ++i) plain = plain && HasVectors<Out>(g.product(i));
  if constexpr (std::is_same_v<Out, __nv_bfloat16>) {
    if (g.up_w != nullptr) {
      return g.planes() ? sm90::Launch<RowProduct<Epilogue::kGatedPlanes, S>>(g, stream)
                        : sm90::Launch<RowProduct<Epilogue::kGated, S>>(g, stream);
    }
  }
  if (g.planes()) return sm90::Launch<RowProduct<Epilogue::kPlanes, S>>(g, stream);
  plain ? sm90::Launch<RowProduct<Epilogue::kPlain, S>>(g, stream)
        : sm90::Launch<RowProduct<Epilogue::kScaled, S>>(g, stream);
}

}  // namespace

void GemmSm90(const GemmArguments& g, cudaStream_t stream) {
  sm90::CheckSm90(g);
  if (FitsFew(g)) return GemmSm90Few(g, stream);
  WithReal(g.y_type, [&]<typename Out>(Out) {
    WithRowKind(g, [&]<WeightKind kind, bool fine>() { LaunchFor<kind, fine, Out>(g, stream); });
  });
}

}  // namespace nibble::cuda
