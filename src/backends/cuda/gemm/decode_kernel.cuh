// SPDX-License-Identifier: Apache-2.0
// The kernel of decode linears and its launch (gemm_decode.cu, gemm_decode_groups.cu,
// gemm_decode_experts.cu).
//
// A block of eight warps, or of sixteen, computes kRows outputs for all tokens over its share of
// the inputs, then the next kRows:
//
//   warp = row_warp + kRowWarps * split       row_warp: which 16 outputs
//                                             split: every kSplits-th block of 128 inputs
//   rank in the cluster                       a contiguous share of the inputs
//
// Weights pass through rings in shared memory, up to 8 KiB per warp ahead of their use; the
// activations of the block's share stay there. Each output belongs to one block of the cluster,
// which adds up the sums of all warps, without atomics. Exact integer sums may come in any order;
// those of groups are floats.
//
// The first weights do not depend on the kernel before, so they are requested before waiting for
// that kernel: a chain of decode linears keeps the memory busy across kernel boundaries.
#pragma once

#include <algorithm>
#include <limits>

#include "backends/cuda/gemm/decode_exchange.cuh"
#include "backends/cuda/gemm/gemm_decode.h"
#include "backends/cuda/gemm/gemm_scales.cuh"
#include "backends/cuda/gemm/gemm_sm80.h"
#include "backends/cuda/runtime/launch.h"

namespace nibble::cuda::decode {

// Makes row `first` of the product's x and y its first row.
template <typename Y>
__host__ __device__ void SkipRows(GemmArguments& g, int64_t first) {
  g.y = static_cast<Y*>(g.y) + first * g.y_stride;
  if (g.addend != nullptr) g.addend += first * g.y_stride;
  if (g.experts.row_tokens != nullptr) {
    g.experts.row_tokens += first;
    return;
  }
  const int64_t row = g.planes() ? PlaneRow(first) : first;
  g.x += row * g.stride;
  g.x_scales += first;
  if (g.x_zero_offsets != nullptr) g.x_zero_offsets += first;
  if (g.x_sums != nullptr) g.x_sums += row;
}

// An output's terms of the law, fetched while its products are under way.
struct Output : OutputTerms {
  int n;

  __device__ Output(const Products& products, int output) : n(output) {
    const auto [g, row] = products.Find(n);
    if (row < g.rows) Fetch(g, row);
  }

  // Stores y of token t; total(column) gives a column's sum.
  template <typename Y, typename S, typename Total>
  __device__ void Store(const Products& products, const TokenParameters<S>& tokens, int t,
                        const Total& total) const {
    const auto [g, row] = products.Find(n);
    if (row >= g.rows) return;
    const GemmArguments& common = products.common();
    float v = common.planes() ? LawOfPlanes(common, *this, tokens, t, 2 * t, 2 * t + 1,
                                            total(2 * t), total(2 * t + 1))
                              : LawValue(common, *this, tokens, t, total(t));
    if (g.addend != nullptr) v = __fadd_rn(v, g.addend[t * g.y_stride + row]);
    StoreValue(g, static_cast<Y*>(g.y) + t * g.y_stride + row, v);
  }
};

// The products or, of a mixture, those for group blockIdx.z, which the kernels in front have made.
// If there is no such group, the products have no tokens.
template <typename S, typename Y>
__device__ __forceinline__ const Products& OfGroup(const Products& all) {
  if constexpr (!S::kExperts) {
    return all;
  } else {
    constexpr int kWords = sizeof(Products) / sizeof(uint32_t);
    __shared__ __align__(16) uint32_t memory[kWords];
    Products& own = reinterpret_cast<Products&>(memory);
    for (int i = threadIdx.x; i < kWords; i += S::kThreads) {
      memory[i] = reinterpret_cast<const uint32_t*>(&all)[i];
    }
    WaitForPreviousGrid();
    const ExpertGroups& experts = all.common().experts;
    const ExpertGroup group = experts.groups[blockIdx.z];  // read together with the count
    const bool exists = static_cast<int>(blockIdx.z) < *experts.count;
    __syncthreads();
    GemmArguments* const g = own.parts + threadIdx.x;
    if (threadIdx.x < kMaxJoined && !exists) g->tokens = 0;
    if (threadIdx.x < kMaxJoined && exists && g->experts.linears != nullptr) {
      const LinearTerms linear = g->experts.linears[group.expert];
      g->w = linear.w, g->w_scales = linear.scales, g->w_zeros = linear.zeros;
      g->w_sums = linear.sums, g->bias = linear.bias;
      g->tokens = group.rows;
      SkipRows<Y>(*g, group.first);
    }
    __syncthreads();
    return own;
  }
}

// grid [ranks, up to the number of blocks of kRows outputs, groups], clusters of [ranks, 1]
template <typename S, typename Y>
__global__ void __launch_bounds__(S::kThreads, S::kMinBlocks)
    GemmDecodeKernel(const __grid_constant__ Products all) {
#if __CUDA_ARCH__ < 900
  if constexpr (S::kCodewordBits != 0 && S::kTableColumns == 32) return;  // never launched here
#endif
  extern __shared__ __align__(16) uint8_t memory[];
  Shared<S>& shared = *reinterpret_cast<Shared<S>*>(memory);
  AllowNextGrid();
  const Products& products = OfGroup<S, Y>(all);
  const GemmArguments& g = products.common();
  if (S::kExperts && g.tokens == 0) return;
  const int shift = FloorLog2(g.w_block.factor(S::kKind));
  const int rank = blockIdx.x, ranks_log2 = FloorLog2(static_cast<int>(gridDim.x));
  const int warp = threadIdx.x / 32, row_warp = warp % S::kRowWarps, split = warp / S::kRowWarps;
  const Slice slice = Slice::Of(g.cols, rank, ranks_log2);
  WeightRing<S> ring(products, row_warp, slice.begin + split, slice.end, shared.rings[warp]);

  const int owned_log2 = FloorLog2(S::kRows) - ranks_log2,
            own = threadIdx.x & ((1 << owned_log2) - 1);
  const int first_own = (rank << owned_log2) + own;
  Output output(products, blockIdx.y * S::kRows + first_own);
  Exchange<S> exchange(shared, rank, ranks_log2);
  const CodewordsOf<S> codewords(shared.table());
  codewords.Fill(g.words);
  WaitForPreviousGrid();

  const Activations<S> x(g, slice, shared.activations(), shared.tokens);
  const uint32_t lane_address = x.LaneAddress(g.columns());
  for (int first = blockIdx.y * S::kRows; first < products.rows;) {
    Sums<S> sums = {};
    int block = split;
    const int blocks = slice.end - slice.begin;
#pragma unroll 1
    for (; block + (S::kBurst - 1) * S::kSplits < blocks; block += S::kBurst * S::kSplits) {
      Multiply<S::kBurst>(ring, g, x, lane_address, block, codewords, sums);
    }
    if (S::kBurst > 1 && block < blocks) {
      Multiply<1>(ring, g, x, lane_address, block, codewords, sums);
    }
    exchange.Run(sums, row_warp, split);
    for (int t = threadIdx.x >> owned_log2; t < g.tokens; t += S::kThreads >> owned_log2) {
      output.Store<Y>(products, shared.tokens, t, [&](int column) {
        const auto total = exchange.Total(own, column, shift);
        if constexpr (!S::kLevels) return total;
        return total - kByteOffset * shared.tokens.sums[column];
      });
    }
    exchange.DoneReading();
    first += gridDim.y * S::kRows;
    output = Output(products, first + first_own);
  }
  exchange.Finish();
}

// The way a shape would run: its clusters, and the blocks of outputs that each takes in turn
// (rounds).
struct Placement {
  int ranks = 1, clusters = 0, rounds = 0, shared_bytes = 0;
  bool fits = false;
};

template <typename S>
Placement Place(const Products& products, int ranks, const Device& device) {
  static_assert(S::kRows <= kMaxRows);
  const GemmArguments& g = products.common();
  const int blocks = static_cast<int>((g.cols + 127) / 128);
  const size_t sums = ranks > 1 ? sizeof(SumBuffer<S>) : 0;
  const int bytes = static_cast<int>(sizeof(Shared<S>) + CodewordsOf<S>::kTableBytes + sums) +
                    Activations<S>::Bytes(g, (blocks + ranks - 1) / ranks);
  const int of_group = S::kExperts ? static_cast<int>(sizeof(Products)) : 0;
  if (bytes + of_group > device.shared_bytes) return {};
  const int per_multiprocessor =
      std::min(S::kMinBlocks, device.multiprocessor_shared_bytes / (bytes + 1024));
  // Clusters do not fill every group of multiprocessors: of 8 blocks, an H200 holds 14 at a time.
  const int places =
      std::max(1, per_multiprocessor * device.multiprocessors / ranks * (ranks > 2 ? 7 : 8) / 8);
  const int row_blocks = (products.rows + S::kRows - 1) / S::kRows;
  const int groups = std::max(g.experts.max, 1);  // many of them may have no rows
  const int rounds = groups > 1 ? 1 : (row_blocks + places - 1) / places;
  return {.ranks = ranks,
          .clusters = (row_blocks + rounds - 1) / rounds,
          .rounds = rounds,
          .shared_bytes = bytes,
          .fits = true};
}

// Returns false if the shape does not fit into shared memory.
template <typename S, typename Y>
bool Launch(const Products& products, const Placement& placement, cudaStream_t stream) {
  if (!placement.fits) return false;
  const auto ranks = static_cast<unsigned>(placement.ranks);
  const auto groups = static_cast<unsigned>(std::max(products.common().experts.max, 1));
  LaunchDependent(GemmDecodeKernel<S, Y>,
                  {.grid = dim3(ranks, static_cast<unsigned>(placement.clusters), groups),
                   .block = S::kThreads,
                   .shared_bytes = static_cast<size_t>(placement.shared_bytes),
                   .cluster = ranks},
                  stream, products);
  return true;
}

// The smallest cluster for which `enough` holds, up to 8 blocks.
template <typename Enough>
int Ranks(const Products& products, const Device& device, const Enough& enough) {
  const int64_t blocks = (products.common().cols + 127) / 128;
  int ranks = 1;
  while (device.major >= 9 && ranks < 8 && 2 * ranks <= blocks && !enough(ranks)) ranks *= 2;
  return ranks;
}

// The ranks for up to 8 columns: a block reads all inputs of its outputs, unless its activations
// grow too large.
inline int RanksOfOneTile(const Products& products, const Device& device) {
  const GemmArguments& g = products.common();
  return Ranks(products, device, [&](int r) { return g.columns() * g.cols / r <= 64 << 10; });
}

// With all outputs in place at once there is one exchange of sums; large matrices have the time
// for several, and deep rings serve them best.
template <typename F, typename Y>
bool RunOneTile(const Products& products, const Device& device, cudaStream_t stream) {
  const GemmArguments& g = products.common();
  constexpr int kShallow = 4 * StageBytes(F::kKind, F::kFine);
  using Deep = Shape<F, 1, 1, 3, 8192>;
  using Flat16 = Shape<F, 1, 1, 4, kShallow>;
  using Flat32 = Shape<F, 1, 2, 4, kShallow>;
  using Flat64 = Shape<F, 1, 4, 4, kShallow>;
  const int ranks = RanksOfOneTile(products, device);
  const Placement flat64 = Place<Flat64>(products, ranks, device);
  if (ranks > 1) return Launch<Flat64, Y>(products, flat64, stream);
  const Placement deep = Place<Deep>(products, 1, device),
                  flat16 = Place<Flat16>(products, 1, device);
  const Placement flat32 = Place<Flat32>(products, 1, device);
  const bool small = g.cols < 8192;
  if (deep.fits && deep.rounds == 1) return Launch<Deep, Y>(products, deep, stream);
  if (flat16.rounds == 1 || !deep.fits) return Launch<Flat16, Y>(products, flat16, stream);
  if (small && flat32.rounds == 1) return Launch<Flat32, Y>(products, flat32, stream);
  if (small && flat64.rounds == 1) return Launch<Flat64, Y>(products, flat64, stream);
  return Launch<Deep, Y>(products, deep, stream);
}

// Runs products of up to 32 columns. Many outputs share a block's activations; a block has about
// 1024 inputs, so that several fit on a multiprocessor.
template <typename S, typename Y>
bool RunTiles(const Products& products, const Device& device, cudaStream_t stream) {
  const int64_t groups = std::max(products.common().experts.max, 1);
  const int64_t row_blocks = groups * ((products.rows + S::kRows - 1) / S::kRows);
  const int64_t wanted = device.multiprocessors * (S::kTiles == 2 ? 6 : 3) / 4;
  const int ranks = Ranks(products, device, [&](int r) {
    return products.common().cols / r <= 1024 && row_blocks * r >= wanted;
  });
  return Launch<S, Y>(products, Place<S>(products, ranks, device), stream);
}

// The ring has four stages; three where scales lie behind the codes, since with a fourth one block
// less would fit on a multiprocessor.
template <typename F>
inline constexpr int kTileRing = std::max(1024 * CodeBits(F::kKind),
                                          3 * StageBytes(F::kKind, F::kFine));

template <typename F, typename Y>
bool Run(const Products& products, const Device& device, cudaStream_t stream) {
  const int columns = products.common().columns();
  if (columns <= 8) return RunOneTile<F, Y>(products, device, stream);
  if (columns <= 16) {
    constexpr int kBlocks = CodeBits(F::kKind) == 4 ? 3 : 2;
    return RunTiles<Shape<F, 2, 8, kBlocks, kTileRing<F>>, Y>(products, device, stream);
  }
  return RunTiles<Shape<F, 4, 8, 2, kTileRing<F>>, Y>(products, device, stream);
}

// visit<kind, fine> for groups of weights or of inputs.
template <typename Visit>
bool WithGroupKind(const GemmArguments& g, const Visit& visit) {
  constexpr auto kNibbles = WeightKind::kNibbleGroups, kBytes = WeightKind::kByteGroups;
  const bool whole = g.piece == 128;
  if (g.w_kind == kNibbles) {
    return whole ? visit.template operator()<kNibbles, false>()
                 : visit.template operator()<kNibbles, true>();
  }
  NIBBLE_CUDA_CHECK(g.w_kind == kBytes);
  return whole ? visit.template operator()<kBytes, false>()
               : visit.template operator()<kBytes, true>();
}

// The products for tokens `first` to `first + count`.
template <typename Y>
Products Join(std::span<const GemmArguments> all, int64_t first, int64_t count) {
  Products products = {};
  std::ranges::fill(products.starts, std::numeric_limits<int>::max());
  for (size_t i = 0; i < all.size(); ++i) {
    GemmArguments& g = products.parts[i] = all[i];
    g.tokens = count;
    SkipRows<Y>(g, first);
    products.starts[i] = (products.rows + kMaxRows - 1) / kMaxRows * kMaxRows;
    products.rows = products.starts[i] + static_cast<int>(g.rows);
  }
  return products;
}

[[noreturn]] inline void FailToFit(const GemmArguments& g) {
  throw Error(ErrorCode::kFailed, "a row of " + std::to_string(g.cols) +
                                      " activations does not fit into shared memory");
}

// Runs the products by run<Y>(products, ..), which knows their format.
template <typename Y, typename RunKind>
void RunAll(std::span<const GemmArguments> all, cudaStream_t stream, const RunKind& run) {
  const Device device = Device::Current();
  const GemmArguments& g = all.front();
  // Tokens of one launch; fewer where activations outgrow shared memory, but with planes a multiple
  // of eight.
  if (g.experts.linears != nullptr) {  // groups of rows are small enough for one launch
    const Products products = Join<Y>(all, 0, g.experts.max_rows);
    if (run.template operator()<Y>(products, device, stream)) return;
    FailToFit(g);
  }
  const int64_t min = g.planes() ? 8 : 1;
  int64_t max = g.planes() ? kMaxLaunchRows / 2 : kMaxLaunchRows;
  for (int64_t first = 0; first < g.tokens;) {
    const int64_t count = std::min(max, g.tokens - first);
    const Products products = Join<Y>(all, first, count);
    if (run.template operator()<Y>(products, device, stream)) {
      first += count;
    } else if (count > min) {
      max = std::max(min, count / 2);
    } else if (device.major < 9) {  // no clusters that could share a row
      const auto gemm = CodewordBits(g.w_kind) != 0 ? GemmSm80Codewords : GemmSm80;
      for (const GemmArguments& whole : all) gemm(whole, stream);
      return;
    } else {
      FailToFit(g);
    }
  }
}

template <typename RunKind>
void Decode(std::span<const GemmArguments> products, cudaStream_t stream, const RunKind& run) {
  CheckJoined(products);
  WithReal(products.front().y_type, [&]<typename Y>(Y) { RunAll<Y>(products, stream, run); });
}

}  // namespace nibble::cuda::decode
