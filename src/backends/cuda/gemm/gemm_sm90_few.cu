// SPDX-License-Identifier: Apache-2.0
// Products of gemm_sm90.cu in tiles of 64 tokens (gemm_sm90_rows.cuh).
#include "backends/cuda/gemm/gemm_sm90_few.h"
#include "backends/cuda/gemm/gemm_sm90_rows.cuh"

namespace nibble::cuda {
bool FitsFew(const GemmArguments& g) {
  if (g.planes() || g.experts.linears != nullptr) return false;
  const int max = Device::Current().multiprocessors / sm90::kPair;
  return g.x_rows() <= sm90::kQuarterTokens ||
         sm90::TilesOf(g, sm90::kQuarterTokens, {max, max}).count <= max;
}

void GemmSm90Few(const GemmArguments& g, cudaStream_t stream) {
  WithReal(g.y_type, [&]<typename Out>(Out) {
    WithRowKind(g,
                [&]<WeightKind kind, bool fine>() { sm90::LaunchFew<kind, fine, Out>(g, stream); });
  });
}

}  // namespace nibble::cuda
