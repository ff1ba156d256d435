// SPDX-License-Identifier: Apache-2.0
// A pair of blocks (a cluster) computes 256 outputs x 256 tokens at a time, each block 128 of the
// outputs; the grid stays and walks over the tiles. The product is computed transposed: weights are
// operand A, which may come from registers, so that 4-bit codes become bytes on their way from
// shared memory to the tensor cores. Activations are operand B, in shared memory.
//
//   loading     one thread: weights of its block, half the activations of the pair for both blocks
//               (else they would be read twice from L2, whose bandwidth is the next limit)
//   preparing   one warp: scales and the like of the tile for the epilogue
//   math        two warpgroups: each 64 outputs x 256 tokens in 128 registers a thread; they unpack
//               the next 128 inputs while the tensor cores work on these. For silu(gate) * up one
//               has outputs of gate and the other the same of up
//
// If less than half the grid has a tile left for its last round, these are halved, 128 tokens each,
// and the round takes half the time. The last two steps of other tiles treat their halves one after
// the other, so that the tensor cores work on the second while the first is stored. A nibble stays
// in the high half of its byte, 16 times its code: three instructions for eight codes. With a
// second level of scales they are seven (LevelSteps).
#include <cuda.h>

#include <algorithm>
#include <cstddef>

#include "backends/cuda/gemm/gemm_epilogue.cuh"
#include "backends/cuda/gemm/gemm_sm90.h"
#include "backends/cuda/gemm/level_steps.cuh"
#include "backends/cuda/launch.h"
#include "backends/cuda/ptx/ptx_sm90.h"
#include "backends/cuda/ptx/wgmma.h"

namespace nibble::cuda {
namespace {

constexpr int kInputs = 128;   // of a step
constexpr int kPair = 2;       // blocks of a cluster
constexpr int kThreads = 384;  // three warpgroups, two of them math
constexpr int kSharedBytes = 227 * 1024;
constexpr int kBand = 8;  // token tiles that are walked through together, for the sake of L2

enum class Epilogue { kPlain, kLaw, kGated };  // kPlain: see ApplyLaw; kGated: as that

template <WeightKind kKind, typename Out>
struct Shared {
  static constexpr int kBlockBytes = WeightBlockBytes(kKind), kFactor = SumFactor(kKind);
  static constexpr int kWords = CodeBits(kKind) / 2;  // of 16 bytes, a thread's in a block
  static constexpr int kStageBytes = 2 * kBlockBytes + kTileTokens * kInputs;
  struct Tail {
    Staging<Out> staging[2];
    TileParameters parameters;
    uint64_t full[8], empty[8];  // kStages of each
    uint64_t parameters_full, parameters_empty;
  };
  static constexpr int kStages = (kSharedBytes - sizeof(Tail)) / kStageBytes;

  int8_t x[kStages][kTileTokens * kInputs];
  uint8_t w[kStages][2 * kBlockBytes];
  Tail tail;
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

// The tiles of a product, the first `whole` of them 256 tokens, the others half as many, and those
// of them that this block computes.
struct Tiles {
  int token_tiles, output_pairs, block_outputs, k_blocks, whole, count;

  __device__ int first() const { return blockIdx.x / kPair; }
  __device__ int stride() const { return gridDim.x / kPair; }
  // Of 128 inputs, in pairs; at least 4, since the last two are special. Past the end of K the
  // activations are zeros.
  __device__ int steps() const { return max(4, (k_blocks + 1) / 2 * 2); }
  // First token and first output.
  __device__ int2 Place(int number) const {
    const int half = max(0, number - whole), tile = min(number, whole) + half / 2;
    const int band = tile / (kBand * output_pairs) * kBand;
    const int height = min(token_tiles - band, kBand);
    const int in_band = tile - band * output_pairs;
    return {(band + in_band % height) * kTileTokens + half % 2 * (kTileTokens / 2),
            (in_band / height * kPair + ClusterRank()) * block_outputs};
  }
};

template <WeightKind kKind, typename Out>
__device__ void Load(const CUtensorMap& x_map, const GemmArguments& g, const Tiles& tiles,
                     Shared<kKind, Out>& s) {
  using S = Shared<kKind, Out>;
  constexpr int kTokens = kTileTokens / kPair;  // of a load
  const int rank = ClusterRank(), last_block = static_cast<int>((g.rows - 1) / 64);
  Ring<S::kStages> ring;
  for (int tile = tiles.first(); tile < tiles.count; tile += tiles.stride()) {
    const int2 place = tiles.Place(tile);
    const uint8_t* w[2];
    for (int half = 0; half < 2; ++half) {  // behind the last block any weights will do
      const bool up = half == 1 && g.up_w != nullptr;
      const int block = min(place.y / 64 + (up ? 0 : half), last_block);
      w[half] = (up ? g.up_w : g.w) + int64_t{block} * tiles.k_blocks * S::kBlockBytes;
    }
    const bool whole = tile < tiles.whole;
    for (int k = 0; k < tiles.steps(); ++k, ring.Advance()) {
      uint64_t* full = &s.tail.full[ring.stage];
      BarrierWait(&s.tail.empty[ring.stage], ring.parity ^ 1);
      BarrierArriveExpect(full, S::kStageBytes - (whole ? 0 : kTokens * kInputs));
      const int64_t at = int64_t{min(k, tiles.k_blocks - 1)} * S::kBlockBytes;
      BulkLoad(s.w[ring.stage], w[0] + at, S::kBlockBytes, full);
      BulkLoad(s.w[ring.stage] + S::kBlockBytes, w[1] + at, S::kBlockBytes, full);
      const int part = whole ? rank : 0;  // a half is loaded by the two in turn
      if (whole || k % kPair == rank) {
        TensorLoad(s.x[ring.stage] + part * kTokens * kInputs, x_map, k * kInputs,
                   place.x + part * kTokens, full, (1 << kPair) - 1);
      }
    }
  }
}

template <WeightKind kKind, typename Out>
__device__ void Prepare(const GemmArguments& g, const Tiles& tiles, Shared<kKind, Out>& s) {
  uint32_t parity = 1;
  for (int tile = tiles.first(); tile < tiles.count; tile += tiles.stride(), parity ^= 1) {
    const int2 place = tiles.Place(tile);
    BarrierWait(&s.tail.parameters_empty, parity);
    LoadParameters<Shared<kKind, Out>::kFactor>(g, place.x, place.y, s.tail.parameters);
    BarrierArrive(&s.tail.parameters_full);
  }
}

// A thread's fragments of 64 outputs x 128 inputs, from a block of weight_order.h.
template <WeightKind kKind, int kWords>
__device__ __forceinline__ void LoadFragments(const uint8_t* block, Fragments& a) {
  const uint4* words = reinterpret_cast<const uint4*>(block) + threadIdx.x % 128;
  LevelSteps steps;
  if constexpr (kKind == WeightKind::kLevels) {
    steps = LevelSteps(reinterpret_cast<const uint32_t*>(block + 4096)[threadIdx.x % 128 / 4]);
  }
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const uint4 word = words[i * 128];
    const uint32_t w[] = {word.x, word.y, word.z, word.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (kKind == WeightKind::kBytes) {
        a[4 * i + j] = w[j];
      } else if constexpr (kKind == WeightKind::kLevels) {
        steps.Widen(w[j], a[8 * i + 2 * j], a[8 * i + 2 * j + 1]);
      } else {
        a[8 * i + 2 * j] = (w[j] << 4) & 0xF0F0F0F0u;
        a[8 * i + 2 * j + 1] = w[j] & 0xF0F0F0F0u;
      }
    }
  }
}

template <Epilogue kEpilogue, WeightKind kKind, typename Out>
__device__ void Multiply(const GemmArguments& g, const Tiles& tiles, Shared<kKind, Out>& s) {
  using S = Shared<kKind, Out>;
  constexpr int kHalf = kTileTokens / 2 * kInputs;  // bytes
  const int warpgroup = threadIdx.x / 128, lane = threadIdx.x % 32;
  Ring<S::kStages> ring;
  // The fragments of the next step; returns its stage.
  const auto load = [&](Fragments& a) {
    const int stage = ring.stage;
    BarrierWait(&s.tail.full[stage], ring.parity);
    LoadFragments<kKind, S::kWords>(s.w[stage] + warpgroup * S::kBlockBytes, a);
    ring.Advance();
    return stage;
  };
  // Every warp tells both loading threads, since both write into this block.
  const auto release = [&](int stage) {
    if (lane < kPair) BarrierArriveAtPeer(PeerAddress(&s.tail.empty[stage], lane));
  };
  const auto store_half = [&](const int32_t(&sums)[64], int first_token) {
    if constexpr (kEpilogue == Epilogue::kGated) {
      StoreGatedHalf(g, sums, s.tail.parameters, first_token, warpgroup, s.tail.staging);
    } else {
      StoreHalf<kEpilogue == Epilogue::kPlain>(g, sums, s.tail.parameters, first_token,
                                               64 * warpgroup, 1 + warpgroup,
                                               s.tail.staging[warpgroup]);
    }
  };

  const auto first_half = [&](int stage) { return SwizzledTile(s.x[stage]); };
  const auto second_half = [&](int stage) { return SwizzledTile(s.x[stage] + kHalf); };

  uint32_t parity = 0;  // of the parameters
  int tile = tiles.first();
  for (; tile < tiles.whole; tile += tiles.stride(), parity ^= 1) {
    Sums sums;
    Fragments even, odd = {};
    int left = tiles.steps() - 2, even_stage, odd_stage = 0;
    do {  // not `while`: ptxas copies the sums if it believes that no step may run
      const bool first = left == tiles.steps() - 2;
      even_stage = load(even);
      MultiplyAsync(sums, even, odd, first_half(even_stage), second_half(even_stage), !first);
      if (!first) release(odd_stage);
      odd_stage = load(odd);
      MultiplyAsync(sums, odd, even, first_half(odd_stage), second_half(odd_stage), 1);
      release(even_stage);
      left -= 2;
    } while (left > 0);

    even_stage = load(even);
    MultiplyHalf(sums[0], even, odd, first_half(even_stage), 1);
    release(odd_stage);
    odd_stage = load(odd);
    MultiplyLast(sums, even, odd, first_half(odd_stage), second_half(even_stage),
                 second_half(odd_stage));
    BarrierWait(&s.tail.parameters_full, parity);
    store_half(sums[0], 0);
    MultiplyEnd(sums[1], even, odd);
    release(even_stage);
    release(odd_stage);
    store_half(sums[1], kTileTokens / 2);
    if (lane == 0) BarrierArrive(&s.tail.parameters_empty);
  }
  if (tile >= tiles.count) return;  // a block has one half at most

  int32_t sums[64];
  Fragments even, odd = {};
  int left = tiles.steps(), even_stage, odd_stage = 0;
  do {
    const bool first = left == tiles.steps();
    even_stage = load(even);
    MultiplyHalf(sums, even, odd, first_half(even_stage), !first);
    if (!first) release(odd_stage);
    odd_stage = load(odd);
    MultiplyHalf(sums, odd, even, first_half(odd_stage), 1);
    release(even_stage);
    left -= 2;
  } while (left > 0);
  MultiplyEnd(sums, even, odd);
  release(odd_stage);
  BarrierWait(&s.tail.parameters_full, parity);
  store_half(sums, 0);
}

template <Epilogue kEpilogue, WeightKind kKind, typename Out>
__global__ __cluster_dims__(kPair, 1, 1)
    __launch_bounds__(kThreads, 1) void gemm_sm90(const __grid_constant__ CUtensorMap x_map,
                                                  const __grid_constant__ GemmArguments g,
                                                  const __grid_constant__ Tiles tiles) {
  using S = Shared<kKind, Out>;
  extern __shared__ __align__(1024) std::byte memory[];
  S& s = *reinterpret_cast<S*>(memory);
  AllowNextGrid();
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
  } else {
    ClaimRegisters<232>();
    Multiply<kEpilogue>(g, tiles, s);
  }
  ClusterSync();  // no block may end while the other writes into it
}

// The activations in boxes of 128 inputs x 128 tokens, their 16-byte units permuted as wgmma reads
// them; zeros outside.
CUtensorMap ActivationMap(const GemmArguments& g, int k_blocks) {
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
                             static_cast<cuuint64_t>(g.tokens)};
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

template <Epilogue kEpilogue, WeightKind kKind, typename Out>
void Launch(const GemmArguments& g, cudaStream_t stream) {
  const auto tiles_of = [](int64_t size, int64_t tile) {
    return static_cast<int>((size + tile - 1) / tile);
  };
  const int outputs = g.up_w != nullptr ? kTileOutputs / 2 : kTileOutputs;
  Tiles tiles = {.token_tiles = tiles_of(g.tokens, kTileTokens),
                 .output_pairs = tiles_of(g.rows, kPair * outputs),
                 .block_outputs = outputs,
                 .k_blocks = tiles_of(g.cols, kInputs)};
  const int most = Device::Current().multiprocessors / kPair;
  const int all = tiles.token_tiles * tiles.output_pairs, left = all % most;
  tiles.whole = 2 * left <= most ? all - left : all;
  tiles.count = all + (all - tiles.whole);
  const int pairs = std::min(tiles.count, most);
  LaunchDependent(gemm_sm90<kEpilogue, kKind, Out>,
                  {.grid = static_cast<unsigned>(pairs * kPair),
                   .block = kThreads,
                   .shared_bytes = kSharedBytes},
                  stream, ActivationMap(g, tiles.k_blocks), g, tiles);
}

template <WeightKind kKind, typename Out>
void LaunchFor(const GemmArguments& g, cudaStream_t stream) {
  const bool plain =
      HasVectors<Out>(g) && g.x_zetas == nullptr && g.w_zeros == nullptr && g.bias == nullptr;
  if constexpr (std::is_same_v<Out, __nv_bfloat16>) {
    if (g.up_w != nullptr) return Launch<Epilogue::kGated, kKind, Out>(g, stream);
  }
  plain ? Launch<Epilogue::kPlain, kKind, Out>(g, stream)
        : Launch<Epilogue::kLaw, kKind, Out>(g, stream);
}

}  // namespace

void GemmSm90(const GemmArguments& g, cudaStream_t stream) {
  CheckArguments(g);
  if (Device::Current().major != 9) {
    throw Error(ErrorCode::kFailed, "gemm_sm90 needs a GPU of compute capability 9.0");
  }
  WithReal(g.y_type, [&]<typename Out>(Out) {
    WithBlocks(g.w_kind, [&]<WeightKind kKind>() { LaunchFor<kKind, Out>(g, stream); });
  });
}

}  // namespace nibble::cuda
