// SPDX-License-Identifier: Apache-2.0
// A row x is viewed as [order, blocks, 64], and H as H_order (x) H_blocks (x) H_64 (TileHadamard).
// H_blocks are butterflies while loading. The others are products of a warpgroup on tensor cores,
// one warpgroup per block of columns and 64 rows of H_order at a time:
//
//   D[64, 64] = H_order[64, order] X[order, 64]     H_order from its signs, X from shared memory
//   Y[64, 64] = D[64, 64] H_64[64, 64]              D in registers, H_64 from shared memory
//
// Y stays in registers until the largest value of the row, and so the scale of its codes, is known.
// X and D are fp16 and lose up to 2^-11 of each value; a power of 2 brings the row into range.
//
// Each thread requests its part of the next row (cp.async) as soon as it has read this one's.
// For few tokens a row is spread over a cluster, which exchanges X (Shape).
#include "backends/cuda/acts/prepare_sm90.cuh"
#include "backends/cuda/acts/prepare_sm90.h"
#include "backends/cuda/ptx/wgmma_half.h"
#include "backends/cuda/runtime/launch.h"

namespace nibble::cuda {
namespace {

// Two fp16 +-1 (PlusMinusOne).
__device__ uint32_t HalfPlusMinusOne(uint32_t signs, int position) {
  return AndOr(signs << position, 0x80008000, 0x3C003C00);
}

// D = H_order X, rows 64 tile.. of it; the signs of 4 steps are a word.
template <int kSteps, int kStep = 0>
__device__ void MultiplyOrder(float (&d)[32], const uint32_t* signs, uint32_t x) {
  constexpr int kNow = kSteps - kStep < 4 ? kSteps - kStep : 4;
  // Not __ldg: then all of H_order would stay in registers from row to row.
  const uint32_t word = signs[kStep / 4 * 32];
  uint32_t a[4 * kNow];
#pragma unroll
  for (int j = 0; j < 4 * kNow; ++j) a[j] = HalfPlusMinusOne(word, j);
  MultiplyAsync<kNow>(d, a, x, kStep);
  if constexpr (kStep + kNow < kSteps) MultiplyOrder<kSteps, kStep + kNow>(d, signs, x);
}

// Rows 64 tile.. of the result in this warpgroup's blocks of columns, the first at x.
template <typename S>
__device__ void TransformTile(const uint32_t* signs, int tile, uint32_t x, uint32_t sylvester,
                              float (&y)[S::kOwn][32]) {
  constexpr int kWords = (S::kSteps + 3) / 4;
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
#pragma unroll
  for (int own = 0; own < S::kOwn; ++own) {
    float d[32];
    MultiplyOrder<S::kSteps>(d, signs + (tile * 4 + warp) * kWords * 32,
                             x + own * (S::kRows * 128 >> 4));
    MultiplyEnd(d);
    uint32_t pairs[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) pairs[i] = PackHalves(d[2 * i], d[2 * i + 1]);
    MultiplyAsync<4>(y[own], pairs, sylvester, 0);
    MultiplyEnd(y[own]);
  }
}

// ActGrid::Code in two instructions, where 2^-22 of the range is below the error of a value:
// 0..1 times the steps of the grid.
struct UnitGrid {
  float factor, offset, steps, round;

  template <typename ActGrid>
  __device__ explicit UnitGrid(const ActGrid& grid, bool symmetric)
      : steps(grid.top - grid.bottom), round(grid.round + grid.bottom) {
    factor = grid.factor * (symmetric ? 1.0f : grid.inverse) / steps;
    offset = (symmetric ? -grid.bottom : -grid.lo * grid.inverse) / steps;
  }
  __device__ uint32_t Code(float x) const {
    return __float_as_uint(fmaf(__saturatef(fmaf(x, factor, offset)), steps, round));
  }
  __device__ uint32_t Codes(float a, float b, float c, float d) const {
    return __byte_perm(__byte_perm(Code(a), Code(b), 0x0040), __byte_perm(Code(c), Code(d), 0x0040),
                       0x5410);
  }
};

// Codes of 16 neighbouring columns, in the order of a thread's results; adds them to `sum`.
__device__ void StoreCodes(const UnitGrid& unit, const float* y, int8_t* codes, int& sum) {
  uint32_t words[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float* const v = y + 8 * j;
    words[j] = unit.Codes(v[0], v[1], v[4], v[5]);
    sum = __dp4a(static_cast<int>(words[j]), 0x01010101, sum);
  }
  StoreGlobal(codes, {words[0], words[1], words[2], words[3]});
}

// Codes of the row's values y * factor.
template <Grid kGrid, typename S>
__device__ void Quantize(const PrepareArguments& a, int64_t token,
                         const float (&y)[S::kTiles][S::kOwn][32], float factor, Scratch& scratch) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int first = S::Rank() / S::kBlocks * 64 + warp % 4 * 16 + lane / 4;
  const int block = S::Rank() % S::kBlocks + warp / 4 * S::kOwn;
  const int order = a.hadamard.tile.order;
  const RowView<S::kSpread> view(a.width, a.width, S::kRanksLog2, static_cast<int>(blockIdx.x));
  const Team<S::kSpread> team = {view, scratch, false};
  Range<kGrid> range;
#pragma unroll
  for (int i = 0; i < S::kTiles * 2; ++i) {
    if (i / 2 * 64 + i % 2 * 8 + first >= order) continue;
#pragma unroll
    for (int j = 0; j < S::kOwn * 16; ++j) {
      range.Add(y[i / 2][j / 16][j % 16 / 2 * 4 + i % 2 * 2 + j % 2]);
    }
  }
  const ActGrid<kGrid> grid(a.main, team.Join(range), factor);
  const UnitGrid unit(grid, kGrid != Grid::kAsymmetric);
  int8_t* const codes =
      a.main.codes + token * a.main.stride + (first * S::kBlocks + block) * 64 + lane % 4 * 16;
  int sum = 0;
#pragma unroll
  for (int i = 0; i < S::kTiles * 2; ++i) {
    const int row = i / 2 * 64 + i % 2 * 8;
    if (row + first >= order) continue;
#pragma unroll
    for (int own = 0; own < S::kOwn; ++own) {
      StoreCodes(unit, &y[i / 2][own][i % 2 * 2], codes + (row * S::kBlocks + own) * 64, sum);
    }
  }
  sum = team.Join(sum);
  if (!team.leader()) return;
  a.main.scales[token] = grid.scale;
  if (a.main.zero_offsets != nullptr) a.main.zero_offsets[token] = grid.zero_offset;
  a.main.sums[token] = sum;
}

// Quantize in groups of 128 columns: two neighbouring blocks of this warpgroup, or if there is one
// block, two neighbouring rows of it.
template <Grid kGrid, typename S>
__device__ void QuantizeGroups(const PrepareArguments& a, int64_t token,
                               const float (&y)[S::kTiles][S::kOwn][32], float factor) {
  constexpr int kPair = S::kBlocks == 1 ? 1 : 2, kLanes = S::kBlocks == 1 ? 8 : 4;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int first = S::Rank() / S::kBlocks * 64 + warp % 4 * 16 + lane / 4;
  const int64_t pitch = ScalePitch(a.tokens);
  const auto larger = [](float v, float w) { return fmaxf(v, w); };
#pragma unroll
  for (int i = 0; i < S::kTiles * 2; ++i) {
    const int row = i / 2 * 64 + i % 2 * 8 + first;
    const bool exists = row < a.hadamard.tile.order;
#pragma unroll
    for (int own = 0; own < S::kOwn; own += kPair) {
      const int block = row * S::kBlocks + warp / 4 * S::kOwn + own;
      Range<kGrid> range;
#pragma unroll
      for (int j = 0; j < kPair * 16; ++j) {
        range.Add(y[i / 2][own + j / 16][j % 16 / 2 * 4 + i % 2 * 2 + j % 2]);
      }
      range.hi = JoinLanes(range.hi, kLanes, larger);
      if (!OfMagnitudes(kGrid)) range.negative_lo = JoinLanes(range.negative_lo, kLanes, larger);
      const ActGrid<kGrid> grid(a.main, range, factor);
      const UnitGrid unit(grid, kGrid != Grid::kAsymmetric);
      int sum = 0;
#pragma unroll
      for (int j = 0; j < kPair && exists; ++j) {
        StoreCodes(unit, &y[i / 2][own + j][i % 2 * 2],
                   a.main.codes + token * a.main.stride + (block + j) * 64 + lane % 4 * 16, sum);
      }
      sum = JoinLanes(sum, kLanes, [](int v, int w) { return v + w; });
      if (!exists || lane % kLanes != 0) continue;
      const int64_t at = block / 2 * pitch + token;
      a.main.scales[at] = grid.scale, a.main.sums[at] = sum;
      if (kGrid == Grid::kAsymmetric) a.main.zero_offsets[at] = grid.zero_offset;
    }
  }
}

template <typename S>
__device__ void ExpectPeers(typename S::Shared& shared) {
  const auto expect = [](uint64_t& barrier, int bytes) {
    BarrierInit(&barrier, 1);
    BarrierInitFence();
    BarrierArriveExpect(&barrier, static_cast<uint32_t>(bytes));
  };
  expect(shared.scratch.barriers[0], sizeof(shared.x));
  for (int i = 1; i < 3; ++i) expect(shared.scratch.barriers[i], S::kRanks * 8);
  expect(shared.largest_barrier, S::kRanks * 8);
}

template <typename S>
__global__ void __launch_bounds__(S::kThreads, S::kMinBlocks)
    prepare_sm90(const PrepareArguments a) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& shared = *reinterpret_cast<typename S::Shared*>(memory);
  AllowNextGrid();
  if constexpr (S::kSpread) {
    if (threadIdx.x == 0) ExpectPeers<S>(shared);
    ClusterArrive();
  }
  FillSylvester<S>(shared);
  WaitForPreviousGrid();
  const int64_t first = blockIdx.x / S::kRanks, step = gridDim.x / S::kRanks;
#pragma unroll
  for (int round = 0; round < S::kRounds; ++round) {
    Request<S>(shared, Pieces::Of<S>(a, first), round);
  }
  if constexpr (S::kSpread) ClusterWait();

  const uint32_t x = RowsOf64(shared.x[threadIdx.x / 128 * S::kOwn]);
  const uint32_t sylvester = RowsOf64(shared.sylvester);
  const uint32_t* const signs = a.hadamard.tile.signs + threadIdx.x % 32;
  for (int64_t token = first; token < a.tokens; token += step) {
    const float scale = LoadRow<S>(a, shared, token + step);
    float y[S::kTiles][S::kOwn][32];
#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) {
      const int tile = min(S::Rank() / S::kBlocks + t, S::kAllTiles - 1);  // a rank may have none
      TransformTile<S>(signs, tile, x, sylvester, y[t]);
    }
    const float factor = a.hadamard.scale / scale;
    WithGrid(a.main, [&]<Grid kGrid>() {
      if constexpr (S::kHasGroups) {
        if (a.main.group != 0) return QuantizeGroups<kGrid, S>(a, token, y, factor);
      }
      Quantize<kGrid, S>(a, token, y, factor, shared.scratch);
    });
  }
}

template <int kSteps, int kBlocks, int kGroups, int kRanks>
void Launch(const PrepareArguments& a, cudaStream_t stream) {
  using S = Shape<kSteps, kBlocks, kGroups, kRanks>;
  const int64_t max = int64_t{S::kMinBlocks} * Device::Current().multiprocessors;
  LaunchDependent(prepare_sm90<S>,
                  {.grid = static_cast<unsigned>(std::min(a.tokens * kRanks, max)),
                   .block = S::kThreads,
                   .shared_bytes = sizeof(typename S::Shared),
                   .cluster = kRanks},
                  stream, a);
}

// kRanks: blocks of a cluster for few tokens.
template <int kSteps, int kBlocks, int kGroups, int kRanks>
void Run(const PrepareArguments& a, cudaStream_t stream) {
  using Spread = Shape<kSteps, kBlocks, 1, kRanks>;
  const bool few = a.tokens * kRanks <= Device::Current().multiprocessors;
  few && (Spread::kHasGroups || a.main.group == 0) ? Launch<kSteps, kBlocks, 1, kRanks>(a, stream)
                                                   : Launch<kSteps, kBlocks, kGroups, 1>(a, stream);
}

}  // namespace

bool FitsSm90(const PrepareArguments& a) {
  const TileHadamard& tile = a.hadamard.tile;
  const bool sigmoid = a.gating.opening == GateSpec::Opening::kSigmoid;
  const bool groups =
      a.main.group == 0 || (a.main.group == 128 && (tile.k_steps == 4 || tile.blocks == 1));
  return a.source != Source::kRmsNorm && (a.up == nullptr || sigmoid) &&
         a.type == RealType::kBfloat16 && a.main.values == nullptr && groups && a.main.bits <= 8 &&
         !a.in_parts() && a.scales == nullptr && tile.signs != nullptr;
}

void PrepareActsSm90(const PrepareArguments& a, cudaStream_t stream) {
  const TileHadamard& tile = a.hadamard.tile;
  if (tile.k_steps == 11) {
    return tile.blocks == 1 ? Run<11, 1, 1, 4>(a, stream) : Run<11, 2, 2, 8>(a, stream);
  }
  switch (tile.blocks) {
    case 1:
      return Launch<4, 1, 1, 1>(a, stream);
    case 2:
      return Run<4, 2, 1, 2>(a, stream);
    case 4:
      return Run<4, 4, 2, 4>(a, stream);
    default:
      return Run<4, 8, 4, 8>(a, stream);
  }
}

}  // namespace nibble::cuda
