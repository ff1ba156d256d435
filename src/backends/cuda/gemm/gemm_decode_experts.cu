// SPDX-License-Identifier: Apache-2.0
// Decode linears of the experts of a mixture: grid.z is a group of rows.
#include "backends/cuda/gemm/decode_kernel.cuh"
#include "backends/cuda/gemm/gemm_decode.h"

namespace nibble::cuda {
namespace {

using namespace decode;

// Runs an expert's few rows in small blocks: there are enough experts to fill the GPU.
template <typename F, typename Y>
bool RunExperts(const Products& products, const Device& device, cudaStream_t stream) {
  if (products.common().columns() > 8) {
    return RunTiles<Shape<F, 4, 8, 2, kTileRing<F>>, Y>(products, device, stream);
  }
  using Flat = Shape<F, 1, 4, 4, 4 * StageBytes(F::kKind, F::kFine)>;
  const int ranks = RanksOfOneTile(products, device);
  return Launch<Flat, Y>(products, Place<Flat>(products, ranks, device), stream);
}

struct RunKind {
  template <typename Y>
  bool operator()(const Products& products, const Device& device, cudaStream_t stream) const {
    const GemmArguments& g = products.common();
    const auto run = [&]<WeightKind kind, bool fine>() {
      return RunExperts<Format<kind, fine, false, true>, Y>(products, device, stream);
    };
    return HasGroups(g.w_kind) ? WithGroupKind(g, run) : WithRowKind(g, run);
  }
};

}  // namespace

void GemmDecodeExperts(std::span<const GemmArguments> products, cudaStream_t stream) {
  decode::Decode(products, stream, RunKind());
}

}  // namespace nibble::cuda
