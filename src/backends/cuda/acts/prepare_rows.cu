// SPDX-License-Identifier: Apache-2.0
// A block per row, whose values stay in registers from the first load to the codes. One barrier is
// enough: a norm's factor scales the whole row, so the largest values need not wait for it. An
// order of columns takes one more, through shared memory. With few tokens, long rows are spread
// over a cluster.
#include <algorithm>
#include <bit>

#include "backends/cuda/acts/prepare_rows.cuh"
#include "backends/cuda/acts/prepare_rows.h"
#include "backends/cuda/runtime/launch.h"

namespace nibble::cuda {
namespace {

constexpr int kMaxThreads = 512, kMaxPieces = 4;

// ---- Codes ----

__device__ void StoreSums(const PreparePart& part, int64_t token, int64_t at,
                          const CodeSums& sums) {
  if (part.bits != 16) {
    part.sums[at] = sums.lower;
  } else {
    part.sums[PlaneRow(token)] = sums.upper, part.sums[PlaneRow(token) + 8] = sums.lower;
  }
}

__device__ int StoreCodes(const PreparePart& part, int64_t row, int column, const uint2& words) {
  *reinterpret_cast<uint2*>(part.codes + row * part.stride + column) = words;
  const int sum = __dp4a(static_cast<int>(words.x), 0x01010101, 0);
  return __dp4a(static_cast<int>(words.y), 0x01010101, sum);
}

// Stores the codes of eight columns of a part, from `column` on; at: the index of their scale.
template <Grid kind>
__device__ CodeSums Quantize(const PreparePart& part, const ActGrid<kind>& grid, int64_t token,
                             int column, int64_t at, const float (&v)[8]) {
  const float4 first = {v[0], v[1], v[2], v[3]}, second = {v[4], v[5], v[6], v[7]};
  const bool leads = part.group == 0 ? column == 0 : column % part.group == 0;
  if (leads) part.scales[at] = grid.scale;
  if (leads && kind == Grid::kAsymmetric) part.zero_offsets[at] = grid.zero_offset;
  const uint2 words = {grid.Codes(first), grid.Codes(second)};
  if constexpr (kind != Grid::kPlanes) return {StoreCodes(part, token, column, words)};
  const uint2 upper = {grid.UpperCodes(first), grid.UpperCodes(second)};
  return {StoreCodes(part, PlaneRow(token) + 8, column, words),
          StoreCodes(part, PlaneRow(token), column, upper)};
}

// Stores eight columns as values and as pairs.
__device__ void StoreValues(const PreparePart& part, int64_t token, int column, const float (&v)[8],
                            float factor) {
  float x[8], rest[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = v[i] * factor;
  auto* const values = reinterpret_cast<float4*>(part.values + token * part.columns + column);
  values[0] = {x[0], x[1], x[2], x[3]}, values[1] = {x[4], x[5], x[6], x[7]};
  if (part.pairs == nullptr) return;
  uint16_t* const pairs = part.pairs + token * PairStride(part.columns) + column / 32 * 64;
  const uint4 rounded = PackBf16(x);
  UnpackBf16(rounded, rest);
#pragma unroll
  for (int i = 0; i < 8; ++i) rest[i] = x[i] - rest[i];
  *reinterpret_cast<uint4*>(pairs + column % 32) = rounded;
  *reinterpret_cast<uint4*>(pairs + column % 32 + 32) = PackBf16(rest);
}

// Zeros behind a part's last column.
__device__ void StorePadding(const PreparePart& part, int64_t token) {
  const auto clear = [](auto* row, int64_t first, int64_t end) {
    for (int64_t i = first + threadIdx.x; i < end; i += blockDim.x) row[i] = {};
  };
  if (part.codes != nullptr) {
    const auto row = [&](int64_t r) {
      return reinterpret_cast<uint2*>(part.codes + r * part.stride);
    };
    const int64_t first = part.columns / 8, end = part.stride / 8;
    clear(row(part.bits == 16 ? PlaneRow(token) : token), first, end);
    if (part.bits == 16) clear(row(PlaneRow(token) + 8), first, end);
  }
  if (part.pairs == nullptr) return;
  const int64_t stride = PairStride(part.columns);
  auto* const pairs = reinterpret_cast<uint4*>(part.pairs + token * stride);
  for (int64_t i = part.columns / 8 + threadIdx.x; i < stride / 16; i += blockDim.x) {
    pairs[i / 4 * 8 + i % 4] = pairs[i / 4 * 8 + i % 4 + 4] = {};
  }
}

// ---- The kernel ----

// The place of a piece.
struct Place {
  bool exists, in_tail;
  const PreparePart& part;
  int column;  // of the part

  __device__ Place(const PrepareArguments& a, const Block& block, int piece)
      : exists(block.Column(piece) < a.width),
        in_tail(block.Column(piece) >= a.main.columns),
        part(in_tail ? a.tail : a.main),
        column(block.Column(piece) - (in_tail ? a.main.columns : 0)) {}

  __device__ int lanes() const { return part.group / 8; }
  // The index of its scale.
  __device__ int64_t At(const PrepareArguments& a, int64_t token) const {
    return token + (part.group == 0 ? 0 : column / part.group * ScalePitch(a.tokens));
  }
  __device__ bool LeadsGroup() const {
    return exists && part.group != 0 && column % part.group == 0;
  }
};

// The results of a row's reductions over its threads.
struct RowExtents {
  Extent main, tail;
  float squares;

  // Reduces over a block.
  __device__ RowExtents(const PrepareArguments& a, const Words& words) {
    main = words.main.extent();
    if (a.tail.columns > 0) tail = words.tail.extent();
    squares = 0;
    if (a.source != Source::kRmsNorm) return;
    squares = __int_as_float(JoinWarps(words.squares, FloatSumOf()));
  }
  // Reduces over a cluster.
  __device__ void Join(const Block& block, Message (&all)[kRanks]) {
    const auto word = [](float v) { return __float_as_int(v); };
    Deliver(block,
            {word(main.low), word(main.high), word(tail.low), word(tail.high), word(squares)}, all);
    squares = 0;
#pragma unroll
    for (const Message& message : all) {
      const auto value = [&](int i) { return __int_as_float(message.words[i]); };
      main.Add({value(0), value(1)});
      tail.Add({value(2), value(3)});
      squares += value(4);
    }
  }
};

// Finds the extents that each piece's scale is made from, and returns the row's factor. All threads
// must call.
template <bool kSpread, int kPieces>
__device__ float FindExtents(const PrepareArguments& a, const Block& block,
                             const float (&v)[kPieces][8], float squares, Words& words,
                             Extent (&extents)[kPieces]) {
  Extent of_main, of_tail;
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    const Place place(a, block, p);
    if (place.exists) {
#pragma unroll
      for (int i = 0; i < 8; ++i) extents[p].Add({-v[p][i], v[p][i]});
    }
    (place.in_tail ? of_tail : of_main).Add(extents[p]);
    if (a.main.group + a.tail.group > 0) JoinLanes(place.lanes(), extents[p]);
  }
  words.main.Put(of_main);
  if (a.tail.columns > 0) words.tail.Put(of_tail);
  words.squares[threadIdx.x / 32] = FloatSumOf()(__float_as_int(squares));
  __syncthreads();
  RowExtents row(a, words);
  if constexpr (kSpread) row.Join(block, words.extents);
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    const Place place(a, block, p);
    if (place.part.group == 0) extents[p] = place.in_tail ? row.tail : row.main;
  }
  if (a.source != Source::kRmsNorm) return a.hadamard.scale;
  return a.hadamard.scale / sqrtf(row.squares / static_cast<float>(a.width) + a.eps);
}

template <int kPieces>
__device__ void StorePieces(const PrepareArguments& a, const Block& block,
                            const float (&v)[kPieces][8], const Extent (&extents)[kPieces],
                            float factor, Words& words) {
  const int64_t token = block.token;
  CodeSums of_main, of_tail;
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    const Place place(a, block, p);
    const PreparePart& part = place.part;
    CodeSums sums;
    const auto quantize = [&]<Grid kind>() {
      const ActGrid<kind> grid(part, extents[p].template range<kind>(), factor);
      return Quantize<kind>(part, grid, token, place.column, place.At(a, token), v[p]);
    };
    if (place.exists && part.values != nullptr) {
      StoreValues(part, token, place.column, v[p], factor);
    }
    if (place.exists && part.codes != nullptr) {
      sums = part.bits == 16 ? quantize.template operator()<Grid::kPlanes>()
                             : WithGrid(part, quantize);
    }
    (place.in_tail ? of_tail : of_main).Add(sums);
    if (a.main.group + a.tail.group == 0) continue;
    JoinLanes(place.lanes(), sums);
    if (place.LeadsGroup()) StoreSums(part, token, place.At(a, token), sums);
  }
  words.main.Put(of_main);
  if (a.tail.columns > 0) words.tail.Put(of_tail);
}

// Stores the sums of parts without groups.
template <bool kSpread>
__device__ void StoreRowSums(const PrepareArguments& a, const Block& block, Words& words) {
  CodeSums main = words.main.sums(), tail;
  if (a.tail.columns > 0) tail = words.tail.sums();
  if constexpr (kSpread) {
    Deliver(block, {main.lower, main.upper, tail.lower, tail.upper}, words.sums);
    main = tail = {};
    for (const auto& [sums] : words.sums) {
      main.Add({sums[0], sums[1]}), tail.Add({sums[2], sums[3]});
    }
  }
  if (block.rank > 0 || threadIdx.x > 0) return;
  const auto store = [&](const PreparePart& part, const CodeSums& sums) {
    if (part.codes != nullptr && part.group == 0) StoreSums(part, block.token, block.token, sums);
  };
  store(a.main, main);
  store(a.tail, tail);
}

// grid [tokens], or clusters of kRanks blocks for each
template <int kPieces, typename X, bool kSpread>
__global__ void __launch_bounds__(kMaxThreads)
    prepare_rows(const __grid_constant__ PrepareArguments a) {
#if __CUDA_ARCH__ < 900
  if constexpr (kSpread) return;  // never launched there
#endif
  extern __shared__ __align__(16) float row[];
  __shared__ Words words;
  AllowNextGrid();
  if constexpr (kSpread) ClusterArrive();
  const Block block(kSpread);
  float v[kPieces][8];
  const float squares = LoadPieces<X>(a, block, v);
  if (!kSpread && a.order != nullptr) Arrange(a, block, row, v);
  if constexpr (kSpread) ClusterWait();  // all of them are there to be told
  Extent extents[kPieces];
  const float factor = FindExtents<kSpread>(a, block, v, squares, words, extents);
  StorePieces(a, block, v, extents, factor, words);
  if (block.rank == 0) {
    StorePadding(a.main, block.token);
    if (a.tail.columns > 0) StorePadding(a.tail, block.token);
  }
  __syncthreads();
  StoreRowSums<kSpread>(a, block, words);
}

template <int kPieces, typename X, bool kSpread = false>
void Launch(const PrepareArguments& a, int threads, cudaStream_t stream) {
  const size_t row = a.order == nullptr ? 0 : static_cast<size_t>(a.width) * sizeof(float);
  constexpr unsigned kBlocks = kSpread ? kRanks : 1;
  LaunchDependent(prepare_rows<kPieces, X, kSpread>,
                  {.grid = static_cast<unsigned>(a.tokens) * kBlocks,
                   .block = static_cast<unsigned>(threads),
                   .shared_bytes = row,
                   .cluster = kBlocks},
                  stream, a);
}

bool Fits(const PreparePart& part, int first) {
  const auto lanes = static_cast<unsigned>(part.group / 8);
  return part.group == 0 || (std::has_single_bit(lanes) && lanes <= 32 && first % part.group == 0);
}

int WholeWarps(int threads) {
  return (threads + 31) / 32 * 32;
}

}  // namespace

bool FitsRows(const PrepareArguments& a) {
  const HadamardPlan& h = a.hadamard;
  const bool simple =
      !a.in_parts() && a.main.group == 0 && a.main.bits <= 8 && !a.main.keeps_values();
  return (simple || a.tokens <= kFewTokens) && h.sylvester == 1 && h.dense_factors == 0 &&
         h.fourier.points == 0 && a.scales == nullptr && a.width <= 8 * kMaxThreads * kMaxPieces &&
         Fits(a.main, 0) && Fits(a.tail, a.main.columns);
}

void PrepareRows(const PrepareArguments& a, cudaStream_t stream) {
  const Device device = Device::Current();
  const int pieces = a.width / 8, threads = std::min(WholeWarps(pieces), kMaxThreads);
  const bool spread = pieces > kMaxThreads && a.order == nullptr && device.major >= 9 &&
                      a.tokens * kRanks <= device.multiprocessors;
  WithReal(a.type, [&]<typename X>(X) {
    spread              ? Launch<1, X, true>(a, WholeWarps((pieces + kRanks - 1) / kRanks), stream)
    : pieces <= threads ? Launch<1, X>(a, threads, stream)
    : pieces <= 2 * threads ? Launch<2, X>(a, threads, stream)
                            : Launch<kMaxPieces, X>(a, threads, stream);
  });
}

}  // namespace nibble::cuda
