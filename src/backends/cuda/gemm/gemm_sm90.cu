// SPDX-License-Identifier: Apache-2.0
// Prompt products of operands with one scale a row, or with two levels (gemm_sm90_rows.cuh).
#include "backends/cuda/gemm/gemm_sm90.h"
#include "backends/cuda/gemm/gemm_sm90_few.h"
#include "backends/cuda/gemm/gemm_sm90_rows.cuh"

namespace nibble::cuda {

void GemmSm90(const GemmArguments& g, cudaStream_t stream) {
  sm90::CheckSm90(g);
  if (FitsFew(g)) return GemmSm90Few(g, stream);
  WithReal(g.y_type, [&]<typename Out>(Out) {
    WithRowKind(
        g, [&]<WeightKind kind, bool fine>() { sm90::LaunchWide<kind, fine, Out>(g, stream); });
  });
}

}  // namespace nibble::cuda
