// SPDX-License-Identifier: Apache-2.0
// Code that the prompt products of compute capability 9.0 share (gemm_sm90.cu,
// gemm_sm90_groups.cu): the operands in registers, the kernel around the mathematics of a product,
// and its launch.
//
// A pair of blocks (a cluster) computes 256 outputs x 256, 128 or 64 tokens at a time, each block
// 128 of the outputs; the grid stays and walks over the tiles. The product is transposed: weights
// are operand A, which may come from registers, where 4-bit codes become bytes, and activations
// operand B, in shared memory.
//
//   loading     a lane each: weights of its block, half the pair's activations for both blocks
//               (L2's bandwidth is the next limit), scales of their groups
//   preparing   one warp: scales and the like of the tile for the epilogue
//   math        two warpgroups, each 64 outputs of all tokens; of silu(gate) * up, one has gate's
//               and one up's
//
// A nibble stays in the high half of its byte, 16 times its code: three instructions for eight
// codes. With a second level of scales or with zeros they are seven (LevelSteps).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "backends/cuda/gemm/gemm_sm90_load.cuh"
#include "backends/cuda/gemm/level_steps.cuh"
#include "backends/cuda/ptx/wgmma.h"
#include "backends/cuda/ptx/wgmma_sparse.h"
#include "backends/cuda/runtime/launch.h"

namespace nibble::cuda::sm90 {

inline constexpr int kThreads = 384;  // three warpgroups, two of them math

// kPlain: see ApplyProductScales; kGated is plain, too. kPlanes, kGatedPlanes: for inputs of 16
// bits.
enum class Epilogue { kPlain, kScaled, kPlanes, kGated, kGatedPlanes };
template <Epilogue kEpilogue>
inline constexpr bool kOfPlanes =
    kEpilogue == Epilogue::kPlanes || kEpilogue == Epilogue::kGatedPlanes;

// A thread's scales behind the codes of a block, `pieces` words.
__device__ __forceinline__ const uint32_t* ScaleWords(const uint8_t* scales, int pieces) {
  return reinterpret_cast<const uint32_t*>(scales) + threadIdx.x % 128 / 4 * pieces;
}

// The steps by which the codes for inputs 32 step.. become bytes, where shifts alone do not do.
template <typename S>
__device__ __forceinline__ LevelSteps StepsOf(const GemmArguments& g, const uint8_t* block,
                                              int step) {
  const uint8_t* const scales = block + CodeBytes(S::kKind);
  const int pieces = S::kFine ? g.w_block.pieces : 1, piece = S::kFine ? step * pieces / 4 : 0;
  if constexpr (S::kLevels) return LevelSteps(ScaleWords(scales, pieces)[piece]);
  const uint8_t* const starts = scales + 128 * pieces + threadIdx.x % 128 / 4 * max(4, 2 * pieces);
  return LevelSteps::OfStarts(reinterpret_cast<const uint16_t*>(starts)[piece]);
}

template <typename S>
using FragmentsOf = std::conditional_t<S::kSparse, SparseFragments, Fragments>;

// A thread's fragments of 64 outputs x 128 inputs, from a block of weight_order.h.
template <Widening widening, typename S>
__device__ __forceinline__ void LoadFragments(const GemmArguments& g, const uint8_t* block,
                                              FragmentsOf<S>& a) {
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
  if constexpr (S::kSparse) {
    const auto* const places = reinterpret_cast<const uint2*>(block + StoredCodeBytes(S::kKind));
    const uint2 words = places[threadIdx.x % 128];
    a[8] = words.x, a[9] = words.y;
  }
}

// LoadFragments for codewords. A code has eight inputs, of which operand A has four in a lane, u =
// 0 or 1, and the next four in its neighbour: an even lane looks up the codes of both with u = 0,
// an odd one those with u = 1, and they give each other a half.
template <typename S>
__device__ __forceinline__ void LoadCodewords(const uint8_t* block,
                                              const Codewords<S::kCodewordBits, 16>& codewords,
                                              Fragments& a) {
  const int thread = threadIdx.x % 128;
  const bool odd = thread % 2 != 0;
  const int half = odd ? 4 : 0, from = thread / 4 * 4 + thread % 4 / 2 + (odd ? 2 : 0);
  CodewordCodes<S::kCodewordBits> codes = {reinterpret_cast<const uint4*>(block)[from]};
  const uint8_t* const rest = block + 2048;
  if constexpr (S::kCodewordBits == 4) codes.rest = reinterpret_cast<const uint4*>(rest)[from];
  if constexpr (S::kCodewordBits == 3) codes.rest = reinterpret_cast<const uint2*>(rest)[from];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int step = i / 2, h = i % 2;
    const auto [word, more] = codewords.Find(codes, step, h);
    const uint32_t own = CodewordBytes<S::kCodewordBits, S::kFactor>(word, more, half);
    const uint32_t given = CodewordBytes<S::kCodewordBits, S::kFactor>(word, more, 4 - half);
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
  // Waits for the next step's operands; returns its stage.
  __device__ int Wait() {
    const int stage = ring.stage;
    BarrierWait(&s.rest.full[stage], ring.parity);
    ring.Advance();
    return stage;
  }
  // Waits and loads the step's fragments.
  __device__ int Next(FragmentsOf<S>& a) {
    const int stage = Wait();
    if constexpr (S::kCodewordBits != 0) {
      LoadCodewords<S>(Block(stage), s.codewords(), a);
    } else {
      WithWidening<S::kKind>(
          g.w_block, [&]<Widening widening>() { LoadFragments<widening, S>(g, Block(stage), a); });
    }
    return stage;
  }
  template <Widening widening>
  __device__ int NextAs(FragmentsOf<S>& a) {
    const int stage = Wait();
    LoadFragments<widening, S>(g, Block(stage), a);
    return stage;
  }
  // Every warp tells the loading lanes of both blocks, since both write into this one.
  __device__ void Release(int stage) const {
    const int lane = threadIdx.x % 32;
    if (lane >= kPair) return;
    BarrierArriveAtPeer(PeerAddress(&s.rest.empty[stage], ClusterRank() - PairRank() + lane));
  }
};

// Stores a warpgroup's sums of 128 or 64 columns to y.
template <Epilogue kEpilogue, typename S, typename Sum, int kSums>
__device__ __forceinline__ void Store(const GemmArguments& g, Shared<S>& s, int warpgroup,
                                      const Sum (&sums)[kSums], int first_column) {
  constexpr bool kPlanes = kOfPlanes<kEpilogue>;
  if constexpr (kEpilogue == Epilogue::kGated || kEpilogue == Epilogue::kGatedPlanes) {
    StoreGatedHalf<kPlanes>(g, sums, s.rest.parameters, first_column, warpgroup, s.rest.staging);
  } else {
    StoreHalf<kEpilogue == Epilogue::kPlain, kPlanes>(g, sums, s.rest.parameters, first_column,
                                                      64 * warpgroup, 1 + warpgroup,
                                                      s.rest.staging[warpgroup]);
  }
}

// The other warps wait here while the math warpgroups add up their sums (gemm_sm90_split.cuh).
__device__ __forceinline__ void WaitForSplits() {
  __syncwarp();
  ClusterSync();
  ClusterSync();
}

// P has the Shape of the product's operands, and Multiply for the math warpgroups.
template <typename P>
__global__ __launch_bounds__(kThreads,
                             1) void gemm_sm90(const __grid_constant__ Maps<P::Shape::kTail> maps,
                                               const __grid_constant__ GemmArguments g,
                                               const __grid_constant__ Tiles tiles) {
  using S = Shared<typename P::Shape>;
  extern __shared__ __align__(1024) std::byte memory[];
  S& s = *reinterpret_cast<S*>(memory);
  AllowNextGrid();
  s.codewords().Fill(g.words);
  if (threadIdx.x == 0) {
    PrefetchMap(maps.x);
    for (int i = 0; i < S::kStages; ++i) {
      BarrierInit(&s.rest.full[i], 1);
      BarrierInit(&s.rest.empty[i], kPair * 8);  // every math warp of both blocks arrives
    }
    BarrierInit(&s.rest.parameters_full, 32);
    BarrierInit(&s.rest.parameters_empty, 8);
    BarrierInitFence();
  }
  ClusterSync();
  WaitForPreviousGrid();
  if (threadIdx.x >= 256) {
    ReleaseRegisters<40>();
    if (threadIdx.x == 256) Load<Operand::kInputs>(maps, g, tiles, s);
    if (threadIdx.x == 256 + 32) Load<Operand::kWeights>(maps, g, tiles, s);
    if constexpr (P::Shape::kTokenScales) {
      if (threadIdx.x == 256 + 64) Load<Operand::kScales>(maps, g, tiles, s);
    }
    if (threadIdx.x / 32 == 11) Prepare(g, tiles, s);
    if (tiles.splits > 1) WaitForSplits();
  } else {
    ClaimRegisters<232>();
    P::Multiply(g, tiles, s);
  }
  ClusterSync();  // no block may end while the other writes into it
}

// The number of pairs of blocks that run at a time, in clusters of 1 to kMaxSplits pairs.
template <typename P>
const std::array<int, kMaxSplits>& MaxPairs() {
  static const auto max = [] {
    std::array<int, kMaxSplits> pairs = {};
    for (unsigned splits = 1; splits <= kMaxSplits; ++splits) {
      const LaunchShape shape = {.grid = kPair * splits,
                                 .block = kThreads,
                                 .shared_bytes = kSharedBytes,
                                 .cluster = kPair * splits};
      pairs[splits - 1] = static_cast<int>(splits) * MaxClusters(gemm_sm90<P>, shape);
    }
    return pairs;
  }();
  return max;
}

// Boxes of `box_bytes`, 64 or 128, of `box_rows` rows of bytes, [rows, width] and `stride` apart.
// Their 16-byte units are permuted as wgmma reads those of 128; zeros outside.
inline CUtensorMap BoxesOf(const void* bytes, int64_t rows, int64_t width, int64_t stride,
                           int box_rows, int box_bytes) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result;
    CheckCuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                               cudaEnableDefault, &result),
              "cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  CUtensorMap map;
  const cuuint64_t size[] = {static_cast<cuuint64_t>(width), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(stride)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(box_bytes), static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t step[] = {1, 1};
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void*>(bytes), size, strides, box,
             step, CU_TENSOR_MAP_INTERLEAVE_NONE,
             box_bytes == kInputs ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw Error(ErrorCode::kFailed, "cuTensorMapEncodeTiled: " + std::to_string(result));
  }
  return map;
}

template <typename S>
Maps<S::kTail> MapsOf(const GemmArguments& g, int k_blocks) {
  const int64_t rows = WholeTiles(g.x_rows());
  const auto of_tokens = [&](const int8_t* x, int64_t width, int64_t stride) {
    return BoxesOf(x, rows, width, stride, S::kPart, kInputs);
  };
  Maps<S::kTail> maps;
  maps.x = of_tokens(g.x, int64_t{k_blocks} * kInputs, g.stride);
  if constexpr (S::kTail != Tail::kNone) {
    maps.tail = of_tokens(g.tail.x, g.tail.stride, g.tail.stride);
  }
  if constexpr (S::kTail == Tail::kPairs) {
    for (int i = 0; i <= g.joins; ++i) {
      const ProductTerms product = g.product(i);
      const int64_t width = 2 * g.tail.cols;
      maps.weights[i] =
          BoxesOf(product.linear.tail_w, product.rows, width, width, 64, 2 * kTailInputs);
    }
  }
  return maps;
}

template <typename P>
void Launch(const GemmArguments& g, cudaStream_t stream) {
  using S = Shared<typename P::Shape>;
  static_assert(sizeof(S) + S::Codewords::kTableBytes <= kSharedBytes);
  const std::array<int, kMaxSplits>& max = MaxPairs<P>();
  NIBBLE_CUDA_CHECK(max[0] > 0);
  const Tiles tiles = TilesOf(g, P::Shape::kTokens, max);
  const auto cluster = static_cast<unsigned>(kPair * tiles.splits);
  LaunchDependent(gemm_sm90<P>,
                  {.grid = std::min(tiles.count, max[0]) * cluster,
                   .block = kThreads,
                   .shared_bytes = kSharedBytes,
                   .cluster = cluster},
                  stream, MapsOf<typename P::Shape>(g, tiles.k_blocks), g, tiles);
}

// Checks that either kernel can be launched.
inline void CheckSm90(const GemmArguments& g) {
  CheckArguments(g);
  if (Device::Current().major != 9) {
    throw Error(ErrorCode::kFailed, "gemm_sm90 needs a GPU of compute capability 9.0");
  }
}

}  // namespace nibble::cuda::sm90
