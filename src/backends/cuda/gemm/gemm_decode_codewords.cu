// SPDX-License-Identifier: Apache-2.0
// Decode linears whose weights are codewords of lattices. Their table in shared memory serves
// sixteen warps: a multiprocessor has one block.
#include "backends/cuda/gemm/decode_kernel.cuh"
#include "backends/cuda/gemm/gemm_decode.h"

namespace nibble::cuda {
namespace {

using namespace decode;

template <typename F, int tiles, int row_warps, int ring_bytes, int table_columns = 32>
using Codewords16 = Shape<F, tiles, row_warps, 1, ring_bytes, 16, table_columns>;

// Runs products of few columns; a block has all of their inputs where these are 64 KiB or less.
template <typename F, int tiles, int ring_bytes, int table_columns, typename Y>
bool RunFew(const Products& products, const Device& device, cudaStream_t stream) {
  const int ranks = RanksOfOneTile(products, device);
  double min = std::numeric_limits<double>::infinity();
  bool (*launch)(const Products&, const Placement&, cudaStream_t) = nullptr;
  Placement best;
  // Chooses the block size whose outputs and exchanges of sums take the least time.
  const auto consider = [&]<typename S>() {
    const Placement placement = Place<S>(products, ranks, device);
    const double time = placement.rounds * (S::kRows + 8.0 * ranks);
    if (!placement.fits || time >= min) return;
    min = time, best = placement, launch = Launch<S, Y>;
  };
  consider.template operator()<Codewords16<F, tiles, 1, ring_bytes, table_columns>>();
  consider.template operator()<Codewords16<F, tiles, 2, ring_bytes, table_columns>>();
  consider.template operator()<Codewords16<F, tiles, 4, ring_bytes, table_columns>>();
  return launch != nullptr && launch(products, best, stream);
}

struct RunKind {
  template <WeightKind kind, typename Y>
  static bool Run(const Products& products, const Device& device, cudaStream_t stream) {
    using F = Format<kind, false, false>;
    constexpr int kStage = StageBytes(kind, false);
    const int columns = products.common().columns();
    // The 99 KB of shared memory that every GPU of compute capability 8 has hold a table half as
    // wide.
    if (device.major < 9) return RunFew<F, 1, 2048, 16, Y>(products, device, stream);
    if (columns <= 8) return RunFew<F, 1, 4096, 32, Y>(products, device, stream);
    if (columns <= 16) {
      // Larger clusters would exchange sums more often than blocks of 128 outputs.
      constexpr int kMaxRanks = 4;
      return RanksOfOneTile(products, device) <= kMaxRanks
                 ? RunFew<F, 2, 3072, 32, Y>(products, device, stream)
                 : RunTiles<Codewords16<F, 2, 8, 4 * kStage>, Y>(products, device, stream);
    }
    return RunTiles<Codewords16<F, 4, 8, 3 * kStage>, Y>(products, device, stream);
  }
  template <typename Y>
  bool operator()(const Products& products, const Device& device, cudaStream_t stream) const {
    return WithCodewordKind(products.common().w_kind, [&]<WeightKind kind>() {
      return Run<kind, Y>(products, device, stream);
    });
  }
};

}  // namespace

void GemmDecodeCodewords(std::span<const GemmArguments> products, cudaStream_t stream) {
  decode::Decode(products, stream, RunKind());
}

}  // namespace nibble::cuda
