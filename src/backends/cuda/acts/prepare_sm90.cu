// SPDX-License-Identifier: Apache-2.0
// A row x is viewed as [order, blocks, columns], H as the product of three factors (TileHadamard).
// H_blocks are butterflies while loading. The others are products of a warpgroup on tensor cores,
// for a block of columns and 64 rows of H_order at a time, here of 64 columns:
//
//   D[64, 64] = H_order[64, order] X[order, 64]     H_order from its signs, X from shared memory
//   Y[64, 64] = D[64, 64] H_columns[64, 64]         D in registers, H_columns from shared memory
//
// Y stays in registers until the largest value of the row, and so the scale of its codes, is known.
// X and D are fp16 and lose up to 2^-11 of each value; a power of 2 brings the row into range.
//
// Each thread requests its part of the next row (cp.async) as soon as it has read this one's.
// For few tokens a row is spread over a cluster, which exchanges X (Shape).
#include "backends/cuda/acts/prepare_sm90.cuh"
#include "backends/cuda/acts/prepare_sm90.h"
#include "backends/cuda/runtime/launch.h"

namespace nibble::cuda {
namespace {

// Two fp16 +-1 (PlusMinusOne).
__device__ uint32_t HalfPlusMinusOne(uint32_t signs, int position) {
  return AndOr(signs << position, 0x80008000, 0x3C003C00);
}

// D = H_order X, rows 64 tile.. of it; the signs of 4 steps are a word.
template <int kSteps, int kStep = 0, int kValues>
__device__ void MultiplyOrder(float (&d)[kValues], const uint32_t* signs, uint32_t x) {
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
__device__ void TransformTile(const uint32_t* signs, int tile, uint32_t x, uint32_t matrix,
                              float (&y)[S::kOwn][S::kValues]) {
  constexpr int kWords = (S::kSteps + 3) / 4;
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
#pragma unroll
  for (int own = 0; own < S::kOwn; ++own) {
    float d[S::kValues];
    MultiplyOrder<S::kSteps>(d, signs + (tile * 4 + warp) * kWords * 32,
                             x + own * static_cast<uint32_t>(sizeof(S::Shared::x[0]) >> 4));
    MultiplyEnd(d);
    uint32_t pairs[S::kValues / 2];
#pragma unroll
    for (int i = 0; i < S::kValues / 2; ++i) pairs[i] = PackHalves(d[2 * i], d[2 * i + 1]);
    MultiplyAsync<S::kPadded / 16>(y[own], pairs, matrix, 0);
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

// Codes of neighbouring columns, in the order of a thread's results; adds them to `sum`.
template <int kNeighbours>
__device__ void StoreCodes(const UnitGrid& unit, const float* y, int8_t* codes, int& sum) {
  uint32_t words[kNeighbours / 4];
#pragma unroll
  for (int j = 0; j < kNeighbours / 4; ++j) {
    const float* const v = y + 8 * j;
    words[j] = unit.Codes(v[0], v[1], v[4], v[5]);
    sum = __dp4a(static_cast<int>(words[j]), 0x01010101, sum);
  }
  if constexpr (kNeighbours == 16) {
    StoreGlobal(codes, {words[0], words[1], words[2], words[3]});
  } else {
    *reinterpret_cast<uint2*>(codes) = {words[0], words[1]};
  }
}

// Calls work(results, place in the row) for each list of a thread's neighbouring results that
// exists.
template <typename S, typename Work>
__device__ void ForNeighbours(const TileHadamard& tile,
                              const float (&y)[S::kTiles][S::kOwn][S::kValues], Work&& work) {
  constexpr int kEights = S::kNeighbours / 8;  // of a list
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int first_row = S::Tile() * 64 + warp % 4 * 16 + lane / 4, first = lane % 4 * kEights;
  const int base = first_row * S::kRowStride + S::Block() * S::kColumns + first * 8;
#pragma unroll
  for (int i = 0; i < S::kTiles * 2; ++i) {
    const int row = i / 2 * 64 + i % 2 * 8;
    if (row + first_row >= tile.order) continue;
#pragma unroll
    for (int own = 0; own < S::kOwn; ++own) {
#pragma unroll
      for (int j = 0; j < S::kPadded / 8; j += S::kNeighbours / 2) {
        if (S::kPads && 8 * (j + first) >= S::kColumns) continue;
        work(&y[i / 2][own][4 * j + i % 2 * 2],
             S::kContiguous ? base + row * S::kRowStride + own * S::kColumns + j * 8
                            : tile.At(row + first_row, S::Block() + own, j + first));
      }
    }
  }
}

// Codes of the row's values y * factor.
template <Grid kGrid, typename S>
__device__ void Quantize(const PrepareArguments& a, int64_t token,
                         const float (&y)[S::kTiles][S::kOwn][S::kValues], float factor,
                         Scratch& scratch) {
  const TileHadamard& tile = a.hadamard.tile;
  const RowView<S::kSpread> view(a.width, a.width, S::kRanksLog2, static_cast<int>(blockIdx.x));
  const Team<S::kSpread> team = {view, scratch, false};
  Range<kGrid> range;
  ForNeighbours<S>(tile, y, [&](const float* v, int) {
#pragma unroll
    for (int i = 0; i < S::kNeighbours; ++i) range.Add(v[i / 2 * 4 + i % 2]);
  });
  const ActGrid<kGrid> grid(a.main, team.Join(range), factor);
  const UnitGrid unit(grid, kGrid != Grid::kAsymmetric);
  int8_t* const codes = a.main.codes + token * a.main.stride;
  int sum = 0;
  ForNeighbours<S>(tile, y, [&](const float* v, int at) {
    StoreCodes<S::kNeighbours>(unit, v, codes + at, sum);
  });
  sum = team.Join(sum);
  if (!team.leader()) return;
  a.main.scales[token] = grid.scale;
  if (a.main.zero_offsets != nullptr) a.main.zero_offsets[token] = grid.zero_offset;
  a.main.sums[token] = sum;
}

// The row's values y * factor as bf16, where `row` is what was loaded last.
template <typename S>
__device__ void StoreRow(const TileHadamard& tile, const float (&y)[S::kTiles][S::kOwn][S::kValues],
                         float factor, uint16_t* row) {
  ForNeighbours<S>(tile, y, [&](const float* v, int at) {
#pragma unroll
    for (int j = 0; j < S::kNeighbours / 8; ++j) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* const pair = v + 4 * (4 * j + i);
        words[i] = PackBf16(pair[0] * factor, pair[1] * factor);
      }
      StoreGlobal(row + at + 8 * j, {words[0], words[1], words[2], words[3]});
    }
  });
}

// Quantize in groups of 128 columns: two neighbouring blocks of this warpgroup, or if there is one
// block, two neighbouring rows of it.
template <Grid kGrid, typename S>
__device__ void QuantizeGroups(const PrepareArguments& a, int64_t token,
                               const float (&y)[S::kTiles][S::kOwn][S::kValues], float factor) {
  constexpr int kPair = S::kBlocks == 1 ? 1 : 2, kLanes = S::kBlocks == 1 ? 8 : 4;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int first = S::Tile() * 64 + warp % 4 * 16 + lane / 4;
  const int64_t pitch = ScalePitch(a.tokens);
  const auto larger = [](float v, float w) { return fmaxf(v, w); };
#pragma unroll
  for (int i = 0; i < S::kTiles * 2; ++i) {
    const int row = i / 2 * 64 + i % 2 * 8 + first;
    const bool exists = row < a.hadamard.tile.order;
#pragma unroll
    for (int own = 0; own < S::kOwn; own += kPair) {
      const int block = row * S::kBlocks + S::Block() + own;
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
        StoreCodes<16>(unit, &y[i / 2][own + j][i % 2 * 2],
                       a.main.codes + token * a.main.stride + (block + j) * 64 + lane % 4 * 16,
                       sum);
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

template <typename S, typename X>
__global__ void __launch_bounds__(S::kThreads, S::kMinBlocks)
    prepare_sm90(const PrepareArguments a) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& shared = *reinterpret_cast<typename S::Shared*>(memory);
  AllowNextGrid();
  if constexpr (S::kSpread) {
    if (threadIdx.x == 0) ExpectPeers<S>(shared);
    ClusterArrive();
  }
  const TileHadamard& tile = a.hadamard.tile;
  FillMatrix<S>(tile, shared);
  WaitForPreviousGrid();
  const int64_t first = blockIdx.x / S::kRanks, step = gridDim.x / S::kRanks;
#pragma unroll
  for (int round = 0; round < S::kRounds; ++round) {
    Request<S>(tile, shared, Inputs<S, X>(a, first), round);
  }
  if constexpr (S::kSpread) ClusterWait();

  const uint32_t x = OperandB(shared.x[S::kSpread ? 0 : S::Block()], S::kRows, S::kWidth);
  const uint32_t matrix = OperandB(shared.matrix, S::kPadded, S::kWidth);
  const uint32_t* const signs = tile.signs + threadIdx.x % 32;
  for (int64_t token = first; token < a.tokens; token += step) {
    const float factor = LoadRow<S, X>(a, shared, token + step);
    float y[S::kTiles][S::kOwn][S::kValues];
#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) {
      TransformTile<S>(signs, min(S::Tile() + t, S::kAllTiles - 1), x, matrix, y[t]);
    }
    if (a.main.bf16 != nullptr) {
      StoreRow<S>(tile, y, factor, a.main.bf16 + a.RowAt(token));
      continue;
    }
    WithGrid(a.main, [&]<Grid kGrid>() {
      if constexpr (S::kHasGroups) {
        if (a.main.group != 0) return QuantizeGroups<kGrid, S>(a, token, y, factor);
      }
      Quantize<kGrid, S>(a, token, y, factor, shared.scratch);
    });
  }
}

template <typename S, typename X>
void LaunchOf(const PrepareArguments& a, cudaStream_t stream) {
  const int64_t max = int64_t{S::kMinBlocks} * Device::Current().multiprocessors;
  LaunchDependent(prepare_sm90<S, X>,
                  {.grid = static_cast<unsigned>(std::min(a.tokens * S::kRanks, max)),
                   .block = S::kThreads,
                   .shared_bytes = sizeof(typename S::Shared),
                   .cluster = S::kRanks},
                  stream, a);
}

template <typename S>
void Launch(const PrepareArguments& a, cudaStream_t stream) {
  if constexpr (S::kNorms) {
    if (a.source == Source::kRmsNorm) return LaunchOf<S, float>(a, stream);
  }
  LaunchOf<S, __nv_bfloat16>(a, stream);
}

// S for many tokens; for few, clusters of kRanks blocks.
template <typename S, int kRanks>
void Run(const PrepareArguments& a, cudaStream_t stream) {
  using Spread = Shape<S::kSteps, S::kBlocks, S::kColumns, 1, 1, kRanks>;
  const bool few = a.tokens * kRanks <= Device::Current().multiprocessors;
  few && (Spread::kHasGroups || a.main.group == 0) ? Launch<Spread>(a, stream)
                                                   : Launch<S>(a, stream);
}

}  // namespace

bool FitsSm90(const PrepareArguments& a) {
  const TileHadamard& tile = a.hadamard.tile;
  const bool sigmoid = a.gating.opening == GateSpec::Opening::kSigmoid;
  // Norms are as wide as the residual stream, where one block of 64 columns is enough, or two.
  const bool norms =
      tile.columns == 64 && (tile.blocks == 1 || (tile.blocks == 2 && tile.k_steps == 4));
  const bool source = a.source == Source::kRmsNorm
                          ? a.type == RealType::kFloat32 && norms
                          : a.type == RealType::kBfloat16 && (a.up == nullptr || sigmoid);
  const bool groups = a.main.group == 0 || (a.main.group == 128 && tile.columns == 64 &&
                                            (tile.k_steps == 4 || tile.blocks == 1));
  return source && a.main.values == nullptr && groups && a.main.bits <= 8 && !a.in_parts() &&
         a.scales == nullptr && tile.signs != nullptr;
}

void PrepareActsSm90(const PrepareArguments& a, cudaStream_t stream) {
  const TileHadamard& tile = a.hadamard.tile;
  const bool one = tile.blocks == 1;
  switch (tile.columns) {
    case 160:
      return tile.k_steps == 4 ? Launch<Shape<4, 1, 160, 1, 1>>(a, stream)
                               : Run<Shape<10, 1, 160, 1, 3>, 4>(a, stream);
    case 96:
      return one ? Run<Shape<9, 1, 96, 1, 3>, 4>(a, stream)
                 : Run<Shape<9, 2, 96, 1, 3>, 8>(a, stream);
    case 48:
      return Run<Shape<9, 1, 48, 1, 3>, 4>(a, stream);
    default:
      break;
  }
  if (tile.k_steps == 11) {
    return one ? Run<Shape<11, 1, 64, 1, 3>, 4>(a, stream)
               : Run<Shape<11, 2, 64, 2, 3>, 8>(a, stream);
  }
  switch (tile.blocks) {
    case 1:
      return Launch<Shape<4, 1, 64, 1, 1>>(a, stream);
    case 2:
      return Run<Shape<4, 2, 64, 1, 1>, 2>(a, stream);
    case 4:
      return Run<Shape<4, 4, 64, 2, 1>, 4>(a, stream);
    default:
      return Run<Shape<4, 8, 64, 4, 1>, 8>(a, stream);
  }
}

}  // namespace nibble::cuda
