// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/gemm/gemm_sm80.h"
#include "backends/cuda/gemm/gemm_sm80_kernel.cuh"

namespace nibble::cuda {
namespace {

using sm80::Codes;
using sm80::Launch;
using sm80::Shape;
using sm80::Tiles;

template <Codes codes, typename Y>
void LaunchFor(const GemmArguments& g, cudaStream_t stream) {
  // In groups a warp has twice the sums.
  if (HasGroups(g.w_kind)) return Launch<Shape<codes, 128, 64, 2, true>, Y>(g, stream);
  using Large = Shape<codes, 256, 128, 1>;
  using Small = Shape<codes, 128, 64, 2>;
  const int places = Device::Current().multiprocessors, tiles = Tiles::Of<Large>(g).count();
  const int rounds = (tiles + places - 1) / places;
  const bool idle = 3 * int64_t{tiles} < 2 * int64_t{rounds} * places;  // at least a third
  idle ? Launch<Small, Y>(g, stream) : Launch<Large, Y>(g, stream);
}

// True if 4-bit codes in groups can be multiplied as they are: pieces have at least the 64 inputs
// of an instruction, and neither side has zeros.
bool TakesNibbles(const GemmArguments& g) {
  return g.w_kind == WeightKind::kNibbleGroups && g.piece >= 64 && !g.w_block.zeros &&
         !g.w_block.floats && (g.x_group == 0 || g.x_zero_offsets == nullptr);
}

}  // namespace

void GemmSm80(const GemmArguments& g, cudaStream_t stream) {
  CheckArguments(g);
  const bool rows = g.w_kind == WeightKind::kNibbles || g.w_kind == WeightKind::kBytes;
  const bool levels = g.w_kind == WeightKind::kLevels;
  NIBBLE_CUDA_CHECK(rows || levels || HasGroups(g.w_kind));
  const bool nibbles = g.a_bits <= 4 && (rows || TakesNibbles(g));  // on both sides
  WithReal(g.y_type, [&]<typename Y>(Y) {
    // 99 KB of shared memory do not hold large tiles and steps.
    if (levels) return Launch<Shape<Codes::kL4S8, 128, 64, 2>, Y>(g, stream);
    if (CodeBits(g.w_kind) == 8) return LaunchFor<Codes::kS8S8, Y>(g, stream);
    nibbles ? LaunchFor<Codes::kS4S4, Y>(g, stream) : LaunchFor<Codes::kS4S8, Y>(g, stream);
  });
}

}  // namespace nibble::cuda
