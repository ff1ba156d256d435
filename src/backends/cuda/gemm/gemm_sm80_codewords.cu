// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/gemm/gemm_sm80.h"
#include "backends/cuda/gemm/gemm_sm80_kernel.cuh"

namespace nibble::cuda {

void GemmSm80Codewords(const GemmArguments& g, cudaStream_t stream) {
  CheckArguments(g);
  WithCodewordKind(g.w_kind, [&]<WeightKind kind>() {
    constexpr auto kCodes = sm80::CodewordCodesOf(kind);
    WithReal(g.y_type,
             [&]<typename Y>(Y) { sm80::Launch<sm80::Shape<kCodes, 128, 64, 1>, Y>(g, stream); });
  });
}

}  // namespace nibble::cuda
