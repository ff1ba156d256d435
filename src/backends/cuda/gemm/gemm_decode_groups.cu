// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/gemm/decode_kernel.cuh"
#include "backends/cuda/gemm/gemm_decode.h"

namespace nibble::cuda {
namespace {

struct RunKind {
  template <typename Y>
  bool operator()(const decode::Products& products, const Device& device,
                  cudaStream_t stream) const {
    const auto run = [&]<WeightKind kind>() {
      const GemmArguments& g = products.common();
      const auto run_fine = [&]<bool fine>() {
        using decode::Format;
        return g.x_group == 0 ? decode::Run<Format<kind, fine, false>, Y>(products, device, stream)
                              : decode::Run<Format<kind, fine, true>, Y>(products, device, stream);
      };
      return g.piece == 128 ? run_fine.template operator()<false>()
                            : run_fine.template operator()<true>();
    };
    return products.common().w_kind == WeightKind::kNibbleGroups
               ? run.template operator()<WeightKind::kNibbleGroups>()
               : run.template operator()<WeightKind::kByteGroups>();
  }
};

}  // namespace

void GemmDecodeGroups(std::span<const GemmArguments> products, cudaStream_t stream) {
  NIBBLE_CUDA_CHECK(HasGroups(products.front().w_kind));
  decode::Decode(products, stream, RunKind());
}

}  // namespace nibble::cuda
