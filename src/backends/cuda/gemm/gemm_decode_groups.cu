// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/gemm/decode_kernel.cuh"
#include "backends/cuda/gemm/gemm_decode.h"

namespace nibble::cuda {
namespace {

struct RunKind {
  template <typename Y>
  bool operator()(const decode::Products& products, const Device& device,
                  cudaStream_t stream) const {
    const GemmArguments& g = products.common();
    return decode::WithGroupKind(g, [&]<WeightKind kind, bool fine>() {
      using decode::Format;
      return g.x_group == 0 ? decode::Run<Format<kind, fine, false>, Y>(products, device, stream)
                            : decode::Run<Format<kind, fine, true>, Y>(products, device, stream);
    });
  }
};

}  // namespace

void GemmDecodeGroups(std::span<const GemmArguments> products, cudaStream_t stream) {
  decode::Decode(products, stream, RunKind());
}

}  // namespace nibble::cuda
