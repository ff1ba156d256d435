// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/gemm/decode_kernel.cuh"
#include "backends/cuda/gemm/gemm_decode.h"

namespace nibble::cuda {
namespace {

struct RunKind {
  template <typename Y>
  bool operator()(const decode::Products& products, const Device& device,
                  cudaStream_t stream) const {
    using decode::Format;
    const GemmArguments& g = products.common();
    if (g.w_kind == WeightKind::kNibbles) {
      return decode::Run<Format<WeightKind::kNibbles, false, false>, Y>(products, device, stream);
    }
    if (g.w_kind == WeightKind::kBytes) {
      return decode::Run<Format<WeightKind::kBytes, false, false>, Y>(products, device, stream);
    }
    NIBBLE_CUDA_CHECK(g.w_kind == WeightKind::kLevels);
    return g.w_block.pieces == 1
               ? decode::Run<Format<WeightKind::kLevels, false, false>, Y>(products, device, stream)
               : decode::Run<Format<WeightKind::kLevels, true, false>, Y>(products, device, stream);
  }
};

}  // namespace

void GemmDecode(std::span<const GemmArguments> products, cudaStream_t stream) {
  decode::Decode(products, stream, RunKind());
}

}  // namespace nibble::cuda
