// SPDX-License-Identifier: Apache-2.0
// A block prepares one row at a time: it stays in shared memory as fp32 from the first load to the
// codes.
//
// For few tokens a row is spread over a cluster of 2^n blocks. Rank r takes columns [r, r + 1) *
// segment / 2^n of every segment, so that dense factors and the Sylvester factor's short strides
// stay inside a block. For the last n strides each block gets an equal share of the positions from
// all others.
#include <algorithm>

#include "backends/cuda/acts/fourier.cuh"
#include "backends/cuda/acts/gate.cuh"
#include "backends/cuda/acts/hadamard.cuh"
#include "backends/cuda/acts/prepare_acts.h"
#include "backends/cuda/acts/prepare_heads.h"
#include "backends/cuda/acts/prepare_rows.h"
#include "backends/cuda/acts/prepare_sm90.h"
#include "backends/cuda/acts/quantize_row.cuh"
#include "backends/cuda/runtime/launch.h"

namespace nibble::cuda {
namespace {

static_assert(sizeof(Scratch) <= kScratchBytes);

// Registers for dense factors of up to 16 * max_steps.
template <int max_steps>
struct Shape {
  static constexpr int kThreads = max_steps > 2 ? 256 : 512;  // at most
  static constexpr int kMinBlocks = 2;                        // per multiprocessor
};

// ---- Loading ----

struct Eight {
  float v[8];
};

__device__ Eight Load8(const float* p) {
  const float4 a = __ldcs(reinterpret_cast<const float4*>(p));
  const float4 b = __ldcs(reinterpret_cast<const float4*>(p) + 1);
  return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}
__device__ Eight Load8(const __nv_bfloat16* p) {
  Eight e;
  UnpackBf16(__ldcs(reinterpret_cast<const uint4*>(p)), e.v);
  return e;
}

__device__ void Scale(const float* scales, Eight& e) {
  const Eight by = Load8(scales);
#pragma unroll
  for (int i = 0; i < 8; ++i) e.v[i] *= by.v[i];
}

// Loads, applies the source op and the Sylvester strides 1, 2, 4 and between 8 and 4 * lanes (none
// if lanes is 0). Returns this thread's sum of squares (kRmsNorm).
template <Source source, typename X, bool spread>
__device__ float LoadRow(const PrepareArguments& a, const RowView<spread>& view, int64_t token,
                         int lanes, float* row) {
  constexpr int kBatch = 2;  // pieces of 8 under way at once
  const X* const x = static_cast<const X*>(a.x) + a.RowAt(token);
  const X* const up = static_cast<const X*>(a.up) + token * a.x_stride;
  const int pieces = view.width / 8, step = static_cast<int>(blockDim.x);
  float squares = 0;
  // Whole warps take part, for LaneButterflies.
  for (int warp_piece = threadIdx.x & ~31; warp_piece < pieces; warp_piece += kBatch * step) {
    Eight e[kBatch], u[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int piece = warp_piece + j * step + static_cast<int>(threadIdx.x % 32);
      const int at = view.Loaded(min(piece, pieces - 1) * 8);  // past the end: the last one again
      u[j] = {};
      e[j] = Load8(x + at);
      if constexpr (source == Source::kGated) u[j] = Load8(up + at);
      if constexpr (source == Source::kRmsNorm) {
        if (a.norm != nullptr) u[j] = Load8(a.norm + at);
      }
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int piece = warp_piece + j * step + static_cast<int>(threadIdx.x % 32);
      if constexpr (source == Source::kGated) GateTimes(a.gating, e[j].v, u[j].v);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if constexpr (source == Source::kRmsNorm) {
          if (piece < pieces) squares = fmaf(e[j].v[i], e[j].v[i], squares);
          if (a.norm != nullptr) e[j].v[i] *= u[j].v[i];
        }
      }
      if (a.scales != nullptr) Scale(a.scales + view.Loaded(min(piece, pieces - 1) * 8), e[j]);
      if (a.hadamard.halves) ToHalfPrecision(e[j].v);
      if (lanes > 0) {
        Butterflies<3>(e[j].v);
        LaneButterflies(e[j].v, lanes);
      }
      if (piece >= pieces) continue;
      float4* const to = reinterpret_cast<float4*>(row + view.layout.At(piece * 8));
      to[0] = {e[j].v[0], e[j].v[1], e[j].v[2], e[j].v[3]};
      to[1] = {e[j].v[4], e[j].v[5], e[j].v[6], e[j].v[7]};
    }
  }
  return squares;
}

// ---- The cluster's strides ----

// After every block has sent its share of positions to each peer: butterflies over the ranks.
template <int log2>
__device__ void RankButterflies(const RowView<true>& view, float* inbox) {
  for (int i = threadIdx.x; i < view.share; i += static_cast<int>(blockDim.x)) {
    float v[1 << log2];
    float* const x = inbox + view.InShare(i);
#pragma unroll
    for (int r = 0; r < 1 << log2; ++r) v[r] = x[r * view.inbox_pitch];
    Butterflies<log2>(v);
#pragma unroll
    for (int r = 0; r < 1 << log2; ++r) x[r * view.inbox_pitch] = v[r];
  }
}

__device__ void CrossRanks(const RowView<true>& view, const float* row, float* inbox,
                           uint32_t barrier) {
  FenceForBulkCopies();
  __syncthreads();
  if (const int peer = threadIdx.x; peer < view.ranks()) {
    const int first = view.layout.At(view.share * peer);
    const int bytes = (view.layout.At(view.share * (peer + 1)) - first) * 4;
    CopyBulkToPeer(PeerAddress(SharedAddress(inbox + view.rank * view.inbox_pitch), peer),
                   SharedAddress(row + first), bytes, PeerAddress(barrier, peer));
  }
  BarrierWaitForPeers(barrier, 0);
  view.ranks_log2 == 1   ? RankButterflies<1>(view, inbox)
  : view.ranks_log2 == 2 ? RankButterflies<2>(view, inbox)
                         : RankButterflies<3>(view, inbox);
  __syncthreads();
}

// ---- The kernel ----

template <bool spread>
__device__ void StoreValues(const PreparePart& a, const Columns<spread>& columns, int64_t token,
                            float factor) {
  const int end = spread ? columns.view.width : a.columns;
  for (int i = 4 * threadIdx.x; i < end; i += 4 * static_cast<int>(blockDim.x)) {
    const float4 v = columns.Four(i);
    *reinterpret_cast<float4*>(a.values + token * a.columns + columns.view.Result(i).index) = {
        v.x * factor, v.y * factor, v.z * factor, v.w * factor};
  }
}

// Stores a row of PreparePart::bf16.
template <bool spread>
__device__ void StoreBf16(const Columns<spread>& columns, float factor, uint16_t* row) {
  for (int i = 4 * threadIdx.x; i < columns.view.width; i += 4 * static_cast<int>(blockDim.x)) {
    const float4 v = columns.Four(i);
    *reinterpret_cast<uint2*>(row + columns.view.Result(i).index) = {
        PackBf16(v.x * factor, v.y * factor), PackBf16(v.z * factor, v.w * factor)};
  }
}

// Stores PreparePart::pairs, which only rows that are not spread have.
__device__ void StorePairs(const PreparePart& a, const Columns<false>& columns, int64_t token,
                           float factor) {
  uint16_t* const row = a.pairs + token * PairStride(a.columns);
  const int end = static_cast<int>(PairStride(a.columns) / 2);
  for (int i = 4 * threadIdx.x; i < end; i += 4 * static_cast<int>(blockDim.x)) {
    const float4 v = i < a.columns ? columns.Four(i) : float4{0, 0, 0, 0};
    const float x[] = {v.x * factor, v.y * factor, v.z * factor, v.w * factor};
    uint32_t first[2], second[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      first[j] = PackBf16(x[2 * j], x[2 * j + 1]);
      const float2 is = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(first[j]));
      second[j] = PackBf16(x[2 * j] - is.x, x[2 * j + 1] - is.y);
    }
    uint16_t* const to = row + i / 32 * 64 + i % 32;
    *reinterpret_cast<uint2*>(to) = {first[0], first[1]};
    *reinterpret_cast<uint2*>(to + 32) = {second[0], second[1]};
  }
}

template <bool spread>
__device__ void StorePart(const PreparePart& a, const Columns<spread>& columns, int64_t token,
                          int64_t pitch, float factor, Scratch& scratch) {
  if (a.values != nullptr) StoreValues(a, columns, token, factor);
  if constexpr (!spread) {
    if (a.pairs != nullptr) StorePairs(a, columns, token, factor);
  }
  if (a.codes == nullptr) return;
  if (a.bits == 16) return QuantizeRow<Grid::kPlanes>(a, columns, token, pitch, factor, scratch);
  WithGrid(a, [&]<Grid kind>() { QuantizeRow<kind>(a, columns, token, pitch, factor, scratch); });
}

template <typename X, bool spread>
__device__ float Load(const PrepareArguments& a, const RowView<spread>& view, int64_t token,
                      int lanes, float* row) {
  switch (a.source) {
    case Source::kRmsNorm:
      return LoadRow<Source::kRmsNorm, X>(a, view, token, lanes, row);
    case Source::kGated:
      return LoadRow<Source::kGated, X>(a, view, token, lanes, row);
    default:
      return LoadRow<Source::kPlain, X>(a, view, token, lanes, row);
  }
}

// Prefetches the row of `token`, the next one of this block.
template <typename X>
__device__ void PrefetchRow(const PrepareArguments& a, int64_t token) {
  if (threadIdx.x != 0 || token >= a.tokens) return;
  const uint32_t bytes = static_cast<uint32_t>(a.width * sizeof(X));
  PrefetchL2(static_cast<const X*>(a.x) + a.RowAt(token), bytes);
  if (a.source != Source::kGated) return;
  PrefetchL2(static_cast<const X*>(a.up) + token * a.x_stride, bytes);
}

// grid: clusters of 2^ranks_log2 blocks with a token each if spread, any number of blocks if not
template <int max_steps, typename X, bool spread>
__global__ void __launch_bounds__(Shape<max_steps>::kThreads, Shape<max_steps>::kMinBlocks)
    PrepareActsKernel(const PrepareArguments a, int ranks_log2) {
#if __CUDA_ARCH__ < 900
  if constexpr (spread) return;  // never launched there (Run), and long to compile
#endif
  extern __shared__ __align__(16) float row[];
  __shared__ Scratch scratch;
  AllowNextGrid();
  const RowView<spread> view(a.width, a.hadamard.segment, ranks_log2, blockIdx.x);
  if constexpr (spread) {
    if (threadIdx.x == 0) scratch.ExpectPeers(view);
    ClusterArrive();
  }
  WaitForPreviousGrid();
  if constexpr (spread) ClusterWait();

  const HadamardPlan& h = a.hadamard;
  // The first strides run while loading: few enough, since each costs as much as half a pass over
  // shared memory, but so many that one pass does the rest where possible.
  const int bits = 31 - __clz(h.sylvester) - view.ranks_log2;
  const bool early = h.inner == 1 && bits >= 3;
  const int lanes = !early ? 0 : bits <= 6 ? 1 << (bits - 3) : 1 << min(max(bits - 7, 2), 5);
  const int clusters = gridDim.x >> view.ranks_log2;
  for (int64_t token = blockIdx.x >> view.ranks_log2; token < a.tokens; token += clusters) {
    PrefetchRow<X>(a, token + clusters);
    const float squares = Load<X>(a, view, token, lanes, row);
    __syncthreads();
    Sylvester(row, view.layout, view.width, early ? 8 * lanes : h.inner, view.segment);
    if constexpr (max_steps > 0) {
      for (int i = 0; i < h.dense_factors; ++i) {
        DenseFactor factor = h.dense[i];
        factor.after >>= view.ranks_log2;
        ApplyDenseUpTo<max_steps>(row, view.layout, view.width, factor);
        __syncthreads();
      }
    }
    float* transformed = row;
    if constexpr (max_steps == 0 && !spread) {
      if (h.fourier.points > 0) transformed = ApplyFourier(h.fourier, row, row + a.width);
    }
    if (h.halves) {
      for (int i = threadIdx.x; i < view.width; i += static_cast<int>(blockDim.x)) {
        float& value = transformed[view.layout.At(i)];
        value = HalfPrecision(value);
      }
      __syncthreads();
    }
    const float* values = transformed;
    if constexpr (spread) {
      float* const inbox = row + view.layout.At(view.width);
      CrossRanks(view, row, inbox, scratch.rows_barrier());
      values = inbox;
    }
    float factor = h.scale;
    if (a.source == Source::kRmsNorm) {
      const int sum = ReduceBlock(__float_as_int(squares), FloatSumOf(), scratch.squares);
      factor *= 1.0f / sqrtf(__int_as_float(sum) / static_cast<float>(a.width) + a.eps);
    }
    if (a.main.bf16 != nullptr) {
      StoreBf16<spread>({view, values, nullptr, 0}, factor, a.main.bf16 + a.RowAt(token));
      __syncthreads();
      continue;
    }
    const int64_t pitch = ScalePitch(a.tokens);
    for (int first = 0; first < a.width;) {
      const PreparePart& part = first == 0 ? a.main : a.tail;
      StorePart<spread>(part, {view, values, a.order, first}, token, pitch, factor, scratch);
      first += part.columns;
      __syncthreads();  // what comes next may overwrite the row and the scratch
    }
  }
}

// ---- Launch ----

// The size of blocks that puts the most threads to work, and how many of them a multiprocessor
// holds; small blocks overlap each other's phases.
struct Occupancy {
  int threads = 0, blocks = 0;
};

template <typename Kernel>
Occupancy BestOccupancy(Kernel kernel, int max_threads, size_t shared_bytes) {
  AllowShared(kernel, shared_bytes);
  Occupancy best;
  for (int threads = 128; threads <= max_threads; threads *= 2) {
    int blocks = 0;
    CheckCuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared_bytes),
              "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    if (threads * blocks > best.threads * best.blocks) best = {threads, blocks};
  }
  return best;
}

template <int max_steps, typename X, bool spread>
void Launch(const PrepareArguments& a, int ranks_log2, const Device& device, cudaStream_t stream) {
  const RowView<spread> view(a.width, a.hadamard.segment, ranks_log2, 0);
  const int beside = spread                          ? view.inbox_pitch * view.ranks()
                     : a.hadamard.fourier.points > 0 ? a.width
                                                     : 0;
  const int floats = view.layout.At(view.width) + beside;
  const size_t shared_bytes = static_cast<size_t>(floats) * sizeof(float);
  if (shared_bytes + sizeof(Scratch) > static_cast<size_t>(device.shared_bytes)) {
    throw Error(ErrorCode::kFailed, "a row of " + std::to_string(a.width) +
                                        " activations does not fit into shared memory");
  }
  const auto kernel = PrepareActsKernel<max_steps, X, spread>;
  Occupancy occupancy = {.threads = Shape<max_steps>::kThreads, .blocks = 1};
  if (a.tokens >= 2 * device.multiprocessors) {
    occupancy = BestOccupancy(kernel, occupancy.threads, shared_bytes);
  }
  const int64_t blocks =
      spread ? a.tokens << view.ranks_log2
             : std::min<int64_t>(a.tokens, int64_t{occupancy.blocks} * device.multiprocessors);
  LaunchDependent(kernel,
                  {.grid = static_cast<unsigned>(blocks),
                   .block = static_cast<unsigned>(occupancy.threads),
                   .shared_bytes = shared_bytes,
                   .cluster = 1u << view.ranks_log2},
                  stream, a, ranks_log2);
}

template <int max_steps, typename X>
void Run(const PrepareArguments& a, cudaStream_t stream) {
  const Device device = Device::Current();
  int ranks_log2 = 0;
  while (device.major >= 9 && CanSpread(a, ranks_log2 + 1) &&
         a.tokens << (ranks_log2 + 1) <= device.multiprocessors) {
    ++ranks_log2;
  }
  ranks_log2 > 0 ? Launch<max_steps, X, true>(a, ranks_log2, device, stream)
                 : Launch<max_steps, X, false>(a, 0, device, stream);
}

// Few rows are transformed by many blocks, which do not know their groups or parts: these become
// codes in another launch.
bool PrepareInTwo(const PrepareArguments& args, cudaStream_t stream) {
  PrepareArguments transform = args, rest = {.x = args.transformed,
                                             .tokens = args.tokens,
                                             .x_stride = args.width,
                                             .width = args.width,
                                             .order = args.order,
                                             .main = args.main,
                                             .tail = args.tail};
  transform.transformed = nullptr, transform.order = nullptr;
  transform.main = {.columns = args.width, .values = args.transformed}, transform.tail = {};
  const Device device = Device::Current();
  const bool spreads = device.major >= 9 && 2 * args.tokens <= device.multiprocessors &&
                       CanSpread(transform, 1) && !CanSpread(args, 1);
  constexpr int kWide = 4096;  // others are not worth two launches
  const bool codes =
      args.transformed != nullptr && args.main.codes != nullptr && args.width > kWide;
  if (!codes || !spreads || !FitsRows(rest)) return false;
  PrepareActs(transform, stream);
  PrepareRows(rest, stream);
  return true;
}

}  // namespace

void PrepareActs(const PrepareArguments& args, cudaStream_t stream) {
  if (FitsSm90(args) && Device::Current().major == 9) return PrepareActsSm90(args, stream);
  if (FitsRows(args)) return PrepareRows(args, stream);
  if (FitsHeads(args)) return PrepareHeads(args, stream);
  if (PrepareInTwo(args, stream)) return;
  int steps = 0;
  for (const DenseFactor& factor : args.hadamard.dense) {
    steps = std::max(steps, factor.k_steps);
  }
  WithReal(args.type, [&]<typename X>(X) {
    steps == 0   ? Run<0, X>(args, stream)
    : steps <= 2 ? Run<2, X>(args, stream)
    : steps <= 4 ? Run<4, X>(args, stream)
    : steps <= 7 ? Run<7, X>(args, stream)
                 : Run<11, X>(args, stream);
  });
}

}  // namespace nibble::cuda
