// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/gemm/decode_kernel.cuh"
#include "backends/cuda/gemm/gemm_decode.h"

namespace nibble::cuda {
namespace {

struct RunKind {
  template <typename Y>
  bool operator()(const decode::Products& products, const Device& device,
                  cudaStream_t stream) const {
    return WithRowKind(products.common(), [&]<WeightKind kind, bool fine>() {
      return decode::Run<decode::Format<kind, fine, false>, Y>(products, device, stream);
    });
  }
};

}  // namespace

void GemmDecode(std::span<const GemmArguments> products, cudaStream_t stream) {
  decode::Decode(products, stream, RunKind());
}

}  // namespace nibble::cuda
