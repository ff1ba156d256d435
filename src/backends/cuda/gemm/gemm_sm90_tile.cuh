// SPDX-License-Identifier: Apache-2.0
// What the prompt products of compute capability 9.0 share (gemm_sm90.cu, gemm_groups_sm90.cu): the
// tiles of a product, how its operands come to a block, the kernel around its mathematics.
//
// A pair of blocks (a cluster) computes 256 outputs x 256 or 128 tokens at a time, each block 128
// of the outputs; the grid stays and walks over the tiles. The product is computed transposed:
// weights are operand A, which may come from registers, so that 4-bit codes become bytes on their
// way from shared memory to the tensor cores. Activations are operand B, in shared memory.
//
//   loading     one thread: weights of its block, half the activations of the pair for both blocks
//               (else they would be read twice from L2, whose bandwidth is the next limit)
//   preparing   one warp: scales and the like of the tile for the epilogue
//   math        two warpgroups, each 64 outputs of all tokens; for silu(gate) * up one has outputs
//               of gate and the other the same of up
//
// A nibble stays in the high half of its byte, 16 times its code: three instructions for eight
// codes. With a second level of scales or with zeros they are seven (LevelSteps).
#pragma once

#include <cuda.h>

#include <algorithm>
#include <array>
#include <cstddef>

#include "backends/cuda/gemm/gemm_epilogue.cuh"
#include "backends/cuda/gemm/gemm_sm90_tiles.cuh"
#include "backends/cuda/gemm/lattice_points.cuh"
#include "backends/cuda/gemm/level_steps.cuh"
#include "backends/cuda/launch.h"
#include "backends/cuda/ptx/ptx_sm90.h"
#include "backends/cuda/ptx/wgmma.h"

namespace nibble::cuda::sm90 {

inline constexpr int kThreads = 384;  // three warpgroups, two of them math
inline constexpr int kSharedBytes = 227 * 1024;

// kPlain: see ApplyLaw; gated: as that. kPlanes, kGatedPlanes: of inputs of 16 bits.
enum class Epilogue { kPlain, kLaw, kPlanes, kGated, kGatedPlanes };
template <Epilogue kEpilogue>
inline constexpr bool kOfPlanes =
    kEpilogue == Epilogue::kPlanes || kEpilogue == Epilogue::kGatedPlanes;

// tokens: of a stage. fine: blocks have scales of 2 or 4 pieces, not of one. x_groups: so have the
// tokens.
template <WeightKind kind, bool fine, int tokens, bool x_groups, typename Y>
struct Shape {
  using Out = Y;
  static constexpr WeightKind kKind = kind;
  static constexpr bool kGroups = HasGroups(kind), kLevels = kind == WeightKind::kLevels;
  static constexpr int kTokens = tokens, kPieces = fine ? 4 : 1;  // at most
  static constexpr bool kFine = fine, kTokenScales = x_groups;
  static constexpr int kPointBits = PointBits(kind);
  static constexpr int kFactor = SumFactor(kind);
  static constexpr int kWords = CodeBits(kind) / 2;  // of 16 bytes, a thread's in a block
  static constexpr int kBlockBytes =                 // at most
      CodeBytes(kind) +
      BlockScales{kLevels || kGroups ? kPieces : 0, kind == WeightKind::kNibbleGroups}.bytes();
  static constexpr int kScaleFloats = x_groups ? 2 * kPieces * tokens : 0;
  static constexpr int kStageBytes = tokens * kInputs + 2 * kBlockBytes + 4 * kScaleFloats;

  // Bytes of a block in memory; a constant where it can be.
  static __device__ int BlockBytes(const GemmArguments& g) {
    return kFine || kGroups ? g.block_bytes() : kBlockBytes;
  }
};

template <typename S>
struct Shared {
  static constexpr int kMostStages = 8;
  struct Tail {
    Staging<typename S::Out> staging[2];
    TileParameters parameters;
    uint64_t full[kMostStages], empty[kMostStages];  // kStages of each
    uint64_t parameters_full, parameters_empty;
  };
  using Points = cuda::Points<S::kPointBits, 16>;
  static constexpr int kFit = (kSharedBytes - sizeof(Tail) - Points::kTableBytes) / S::kStageBytes;
  static constexpr int kStages = kFit < kMostStages ? kFit : kMostStages;

  int8_t x[kStages][S::kTokens * kInputs];
  uint8_t w[kStages][2 * S::kBlockBytes];
  float scales[kStages][S::kScaleFloats > 0 ? S::kScaleFloats : 4];  // then zetas, [piece][token]
  Tail tail;

  __device__ Points points() { return Points(this + 1); }

  // In the end what other splits send takes the place of the stages: a tile's sums from each.
  static constexpr int kSumBytes = 4 * kTileOutputs * kHalfTokens;
};

// A place in the ring of stages.
template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void Advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

// Asks for the scales, and zetas, of a step's pieces and tokens from `token` on.
template <typename S>
__device__ void LoadTokenScales(const GemmArguments& g, int k, int token, float* scales,
                                SharedAddress barrier) {
  constexpr int kBytes = S::kTokens * sizeof(float);
  const int last = static_cast<int>(g.cols) - 1;  // behind it any scales will do
  for (int i = 0; i < kInputs / g.piece; ++i) {
    const int input = min(k * kInputs + i * g.piece, last);
    const int64_t at = input / static_cast<int>(g.x_group) * g.x_pitch + token;
    BulkLoad(scales + i * S::kTokens, g.x_scales + at, kBytes, barrier);
    if (g.x_zetas == nullptr) continue;
    BulkLoad(scales + (S::kPieces + i) * S::kTokens, g.x_zetas + at, kBytes, barrier);
  }
}

__device__ __forceinline__ ProductTerms TermsOf(const GemmArguments& g, const Tiles& tiles,
                                                int tile, int product) {
  ProductTerms terms = g.product(product);
  if (tiles.experts.linears != nullptr) {
    terms.linear = tiles.experts.linears[tiles.Group(tile).expert];
  }
  return terms;
}

template <typename S>
__device__ void Load(const CUtensorMap& x_map, const GemmArguments& g, const Tiles& tiles,
                     Shared<S>& s) {
  const int rank = PairRank(), block_bytes = S::BlockBytes(g);
  const int scale_bytes =
      S::kTokenScales ? kInputs / g.piece * S::kTokens * 4 * (g.x_zetas != nullptr ? 2 : 1) : 0;
  Ring<Shared<S>::kStages> ring;
  for (int tile = tiles.first(); tile < tiles.Count(); tile += tiles.stride()) {
    const auto place = tiles.Place(tile);
    const ProductTerms product = TermsOf(g, tiles, tile, place.product);
    const LinearTerms& linear = product.linear;
    const int last_block = static_cast<int>((product.rows - 1) / 64);
    const uint8_t* w[2];
    for (int half = 0; half < 2; ++half) {  // behind the last block any weights will do
      const bool up = half == 1 && g.up_w != nullptr;
      const int block = min(place.output / 64 + (up ? 0 : half), last_block);
      w[half] = (up ? linear.up_w : linear.w) + int64_t{block} * tiles.k_blocks * block_bytes;
    }
    const bool whole = S::kTokens == kTileTokens && tile < tiles.whole;
    for (int step = 0; step < tiles.steps; ++step, ring.Advance()) {
      const int k = tiles.first_step() + step;
      uint64_t* full = &s.tail.full[ring.stage];
      BarrierWait(&s.tail.empty[ring.stage], ring.parity ^ 1);
      const int tokens = whole ? kTileTokens : kHalfTokens;
      BarrierArriveExpect(full, 2 * block_bytes + tokens * kInputs + scale_bytes);
      const int64_t at = int64_t{min(k, tiles.k_blocks - 1)} * block_bytes;
      BulkLoad(s.w[ring.stage], w[0] + at, block_bytes, full);
      BulkLoad(s.w[ring.stage] + S::kBlockBytes, w[1] + at, block_bytes, full);
      const int part = whole ? rank : 0;  // a half is loaded by the two in turn
      if (whole || k % kPair == rank) {
        TensorLoad(s.x[ring.stage] + part * kHalfTokens * kInputs, x_map, k * kInputs,
                   place.token + part * kHalfTokens, full,
                   ((1 << kPair) - 1) << (ClusterRank() - rank));
      }
      if constexpr (S::kTokenScales) {
        LoadTokenScales<S>(g, k, place.token, s.scales[ring.stage], full);
      }
    }
  }
}

template <typename S>
__device__ void Prepare(const GemmArguments& g, const Tiles& tiles, Shared<S>& s) {
  uint32_t parity = 1;
  for (int tile = tiles.first(); tile < tiles.Count(); tile += tiles.stride(), parity ^= 1) {
    const auto place = tiles.Place(tile);
    BarrierWait(&s.tail.parameters_empty, parity);
    LoadParameters<typename S::Out, S::kFactor>(g, TermsOf(g, tiles, tile, place.product),
                                                place.token, place.output, s.tail.parameters);
    if (threadIdx.x % 32 == 0) {
      if (tiles.experts.linears != nullptr) {
        s.tail.parameters.end = place.token + tiles.Group(tile).rows;
      }
      s.tail.parameters.split = tiles.Split(), s.tail.parameters.splits = tiles.splits;
    }
    BarrierArrive(&s.tail.parameters_full);
  }
}

// Of a thread: where its scales lie behind the codes of a block, `pieces` words.
__device__ __forceinline__ const uint32_t* ScaleWords(const uint8_t* scales, int pieces) {
  return reinterpret_cast<const uint32_t*>(scales) + threadIdx.x % 128 / 4 * pieces;
}

// How the codes for inputs 32 step.. become bytes, where not by shifts alone.
template <typename S>
__device__ __forceinline__ LevelSteps StepsOf(const GemmArguments& g, const uint8_t* block,
                                              int step) {
  const uint8_t* const scales = block + CodeBytes(S::kKind);
  const int pieces = S::kFine ? g.w_block.pieces : 1, piece = S::kFine ? step * pieces / 4 : 0;
  if constexpr (S::kLevels) return LevelSteps(ScaleWords(scales, pieces)[piece]);
  const uint8_t* const starts = scales + 128 * pieces + threadIdx.x % 128 / 4 * max(4, 2 * pieces);
  return LevelSteps::OfStarts(reinterpret_cast<const uint16_t*>(starts)[piece]);
}

// A thread's fragments of 64 outputs x 128 inputs, from a block of weight_order.h.
template <Widening widening, typename S>
__device__ __forceinline__ void LoadFragments(const GemmArguments& g, const uint8_t* block,
                                              Fragments& a) {
  const uint4* words = reinterpret_cast<const uint4*>(block) + threadIdx.x % 128;
  constexpr bool kSteps = widening == Widening::kSteps;
  LevelSteps step;
  if constexpr (kSteps && !S::kFine) step = StepsOf<S>(g, block, 0);
#pragma unroll
  for (int i = 0; i < S::kWords; ++i) {
    const uint4 word = words[i * 128];
    const uint32_t w[] = {word.x, word.y, word.z, word.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (CodeBits(S::kKind) == 8) {
        a[4 * i + j] = w[j];
      } else {
        if (kSteps && S::kFine && j % 2 == 0) step = StepsOf<S>(g, block, 2 * i + j / 2);
        Widen<widening>(w[j], step, a[8 * i + 2 * j], a[8 * i + 2 * j + 1]);
      }
    }
  }
}

// The same of points. A code has eight inputs, of which operand A has four in a lane, u = 0 or 1,
// and the next four in its neighbour: an even lane looks up what both have with u = 0, an odd one
// the other, and they give each other a half.
template <typename S>
__device__ __forceinline__ void LoadPoints(const uint8_t* block,
                                           const Points<S::kPointBits, 16>& points, Fragments& a) {
  const int thread = threadIdx.x % 128;
  const bool odd = thread % 2 != 0;
  const int half = odd ? 4 : 0, from = thread / 4 * 4 + thread % 4 / 2 + (odd ? 2 : 0);
  PointCodes<S::kPointBits> codes = {reinterpret_cast<const uint4*>(block)[from]};
  const uint8_t* const rest = block + 2048;
  if constexpr (S::kPointBits == 4) codes.rest = reinterpret_cast<const uint4*>(rest)[from];
  if constexpr (S::kPointBits == 3) codes.rest = reinterpret_cast<const uint2*>(rest)[from];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int step = i / 2, h = i % 2;
    const auto [word, more] = points.Find(codes, step, h);
    const uint32_t own = PointBytes<S::kPointBits, S::kFactor>(word, more, half);
    const uint32_t given = PointBytes<S::kPointBits, S::kFactor>(word, more, 4 - half);
    const uint32_t got = __shfl_xor_sync(0xFFFFFFFF, given, 1);
    a[4 * step + h] = odd ? got : own;
    a[4 * step + 2 + h] = odd ? own : got;
  }
}

// A math warpgroup's side of the ring.
template <typename S>
struct Stages {
  const GemmArguments& g;
  Shared<S>& s;
  const int warpgroup = threadIdx.x / 128;
  Ring<Shared<S>::kStages> ring = {};

  __device__ const uint8_t* Block(int stage) const {
    return s.w[stage] + warpgroup * S::kBlockBytes;
  }
  // The fragments of the next step; returns its stage.
  __device__ int Next(Fragments& a) {
    const int stage = ring.stage;
    BarrierWait(&s.tail.full[stage], ring.parity);
    if constexpr (S::kPointBits != 0) {
      LoadPoints<S>(Block(stage), s.points(), a);
    } else {
      WithWidening<S::kKind>(
          g.w_block, [&]<Widening widening>() { LoadFragments<widening, S>(g, Block(stage), a); });
    }
    ring.Advance();
    return stage;
  }
  // Every warp tells both loading threads, since both write into this block.
  __device__ void Release(int stage) const {
    const int lane = threadIdx.x % 32;
    if (lane >= kPair) return;
    BarrierArriveAtPeer(PeerAddress(&s.tail.empty[stage], ClusterRank() - PairRank() + lane));
  }
};

// A warpgroup's sums of 128 columns to y.
template <Epilogue kEpilogue, typename S, typename Sum>
__device__ __forceinline__ void Store(const GemmArguments& g, Shared<S>& s, int warpgroup,
                                      const Sum (&sums)[64], int first_column) {
  constexpr bool kPlanes = kOfPlanes<kEpilogue>;
  if constexpr (kEpilogue == Epilogue::kGated || kEpilogue == Epilogue::kGatedPlanes) {
    StoreGatedHalf<kPlanes>(g, sums, s.tail.parameters, first_column, warpgroup, s.tail.staging);
  } else {
    StoreHalf<kEpilogue == Epilogue::kPlain, kPlanes>(g, sums, s.tail.parameters, first_column,
                                                      64 * warpgroup, 1 + warpgroup,
                                                      s.tail.staging[warpgroup]);
  }
}

// What the other warps do while the math warpgroups add up their sums (gemm_sm90_split.cuh).
__device__ __forceinline__ void WaitForSplits() {
  __syncwarp();
  ClusterSync();
  ClusterSync();
}

// P: the Shape of its operands, and Multiply for the math warpgroups.
template <typename P>
__global__ __launch_bounds__(kThreads, 1) void gemm_sm90(const __grid_constant__ CUtensorMap x_map,
                                                         const __grid_constant__ GemmArguments g,
                                                         const __grid_constant__ Tiles tiles) {
  using S = Shared<typename P::Shape>;
  extern __shared__ __align__(1024) std::byte memory[];
  S& s = *reinterpret_cast<S*>(memory);
  AllowNextGrid();
  s.points().Fill(g.words);
  if (threadIdx.x == 0) {
    PrefetchMap(x_map);
    for (int i = 0; i < S::kStages; ++i) {
      BarrierInit(&s.tail.full[i], 1);
      BarrierInit(&s.tail.empty[i], kPair * 8);  // a warp of either block each
    }
    BarrierInit(&s.tail.parameters_full, 32);
    BarrierInit(&s.tail.parameters_empty, 8);
    BarrierInitFence();
  }
  ClusterSync();
  WaitForPreviousGrid();
  if (threadIdx.x >= 256) {
    ReleaseRegisters<40>();
    if (threadIdx.x == 256) Load(x_map, g, tiles, s);
    if (threadIdx.x / 32 == 9) Prepare(g, tiles, s);
    if (tiles.splits > 1) WaitForSplits();
  } else {
    ClaimRegisters<232>();
    P::Multiply(g, tiles, s);
  }
  ClusterSync();  // no block may end while the other writes into it
}

// How many pairs of blocks run at a time, in clusters of 1 to kMostSplits pairs.
template <typename P>
const std::array<int, kMostSplits>& MostPairs() {
  static const auto most = [] {
    std::array<int, kMostSplits> pairs = {};
    for (unsigned splits = 1; splits <= kMostSplits; ++splits) {
      const LaunchShape shape = {.grid = kPair * splits,
                                 .block = kThreads,
                                 .shared_bytes = kSharedBytes,
                                 .cluster = kPair * splits};
      pairs[splits - 1] = static_cast<int>(splits) * MostClusters(gemm_sm90<P>, shape);
    }
    return pairs;
  }();
  return most;
}

// The activations in boxes of 128 inputs x 128 tokens, their 16-byte units permuted as wgmma reads
// them; zeros outside.
inline CUtensorMap ActivationMap(const GemmArguments& g, int k_blocks) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result;
    CheckCuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                               cudaEnableDefault, &result),
              "cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  CUtensorMap map;
  const cuuint64_t size[] = {static_cast<cuuint64_t>(k_blocks) * kInputs,
                             static_cast<cuuint64_t>(WholeTiles(g.x_rows()))};
  const cuuint64_t stride[] = {static_cast<cuuint64_t>(g.stride)};
  const cuuint32_t box[] = {kInputs, kTileTokens / kPair};
  const cuuint32_t step[] = {1, 1};
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<int8_t*>(g.x), size, stride, box,
             step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw Error(ErrorCode::kFailed, "cuTensorMapEncodeTiled: " + std::to_string(result));
  }
  return map;
}

template <typename P>
void Launch(const GemmArguments& g, cudaStream_t stream) {
  using S = Shared<typename P::Shape>;
  static_assert(sizeof(S) + S::Points::kTableBytes <= kSharedBytes);
  const std::array<int, kMostSplits>& most = MostPairs<P>();
  NIBBLE_CUDA_CHECK(most[0] > 0);
  const Tiles tiles = TilesOf(g, P::Shape::kTokens == kTileTokens, most);
  const auto cluster = static_cast<unsigned>(kPair * tiles.splits);
  LaunchDependent(gemm_sm90<P>,
                  {.grid = std::min(tiles.count, most[0]) * cluster,
                   .block = kThreads,
                   .shared_bytes = kSharedBytes,
                   .cluster = cluster},
                  stream, ActivationMap(g, tiles.k_blocks), g, tiles);
}

// What a launch of either kernel needs.
inline void CheckSm90(const GemmArguments& g) {
  CheckArguments(g);
  if (Device::Current().major != 9) {
    throw Error(ErrorCode::kFailed, "gemm_sm90 needs a GPU of compute capability 9.0");
  }
}

}  // namespace nibble::cuda::sm90
