// SPDX-License-Identifier: Apache-2.0
// gemm_sm90.cu for 2:4 sparse weights on sparse tensor cores, which take half the time for a step.
#include "backends/cuda/gemm/gemm_sm90.h"
#include "backends/cuda/gemm/gemm_sm90_few.h"
#include "backends/cuda/gemm/gemm_sm90_rows.cuh"

namespace nibble::cuda {

void GemmSm90Sparse(const GemmArguments& g, cudaStream_t stream) {
  sm90::CheckSm90(g);
  const bool few = FitsFew(g);
  WithReal(g.y_type, [&]<typename Out>(Out) {
    WithSparseKind(g.w_kind, [&]<WeightKind kind>() {
      few ? sm90::LaunchFew<kind, false, Out>(g, stream)
          : sm90::LaunchWide<kind, false, Out>(g, stream);
    });
  });
}

}  // namespace nibble::cuda
