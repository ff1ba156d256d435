// SPDX-License-Identifier: Apache-2.0
// gemm_decode.cu for 2:4 sparse weights, on mma.sp.
#include "backends/cuda/gemm/decode_kernel.cuh"
#include "backends/cuda/gemm/gemm_decode.h"

namespace nibble::cuda {
namespace {

struct RunKind {
  template <typename Y>
  bool operator()(const decode::Products& products, const Device& device,
                  cudaStream_t stream) const {
    return WithSparseKind(products.common().w_kind, [&]<WeightKind kind>() {
      return decode::Run<decode::Format<kind, false, false>, Y>(products, device, stream);
    });
  }
};

}  // namespace

void GemmDecodeSparse(std::span<const GemmArguments> products, cudaStream_t stream) {
  decode::Decode(products, stream, RunKind());
}

}  // namespace nibble::cuda
