// SPDX-License-Identifier: Apache-2.0
// Products of gemm_sm90.cu in tiles of 64 tokens (gemm_sm90_rows.cuh).
#include "backends/cuda/gemm/gemm_sm90_few.h"
#include "backends/cuda/gemm/gemm_sm90_rows.cuh"

namespace nibble::cuda {
namespace {

template <WeightKind kKind, bool kFine>
void LaunchFor(const GemmArguments& g, cudaStream_t stream) {
  using sm90::Epilogue;
  WithReal(g.y_type, [&]<typename Out>(Out) {
    using S = sm90::Shape<kKind, kFine, sm90::kQuarterTokens, false, Out>;
    if constexpr (std::is_same_v<Out, __nv_bfloat16>) {
      if (g.up_w != nullptr) return sm90::Launch<sm90::RowProduct<Epilogue::kGated, S>>(g, stream);
    }
    sm90::Launch<sm90::RowProduct<Epilogue::kScaled, S>>(g, stream);
  });
}

}  // namespace

bool FitsFew(const GemmArguments& g) {
  if (g.planes() || g.experts.linears != nullptr) return false;
  const int max = Device::Current().multiprocessors / sm90::kPair;
  return g.x_rows() <= sm90::kQuarterTokens ||
         sm90::TilesOf(g, sm90::kQuarterTokens, {max, max}).count <= max;
}

void GemmSm90Few(const GemmArguments& g, cudaStream_t stream) {
  WithRowKind(g, [&]<WeightKind kind, bool fine>() { LaunchFor<kind, fine>(g, stream); });
}

}  // namespace nibble::cuda
