// SPDX-License-Identifier: Apache-2.0
// The usual case of RopeAppend: head_dim 64, 128 or 256, all of it turned, rotated by a Sylvester
// matrix or not, K and V of 4 or 8 bits with one scale a row. A lane has eight neighbours of a
// head's lower half and those they turn with: RoPE, most butterflies and packing need no exchange.
#include "backends/cuda/attention/kv_append.cuh"
#include "backends/cuda/attention/rope_rows.cuh"
#include "backends/cuda/runtime/launch.h"

namespace nibble::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kBlocksPerSm = 4;      // leave 64 registers; more warps hide more than loads ahead do
constexpr int kHalf = 8;             // elements of a lane in either half
constexpr float kRound = 0x1.8p23f;  // adding it rounds to even and leaves an integer in the bits

template <int D>
struct Head {
  static constexpr int kLanes = D / (2 * kHalf);
  float lower[kHalf], upper[kHalf];

  // RMS norm; weights of the lane's lower half, those of its upper half lie D / 2 behind.
  __device__ void Norm(const float* weight, float eps) {
    const double squares = SumOfSquares(lower) + SumOfSquares(upper);
    const float factor = NormFactor(squares, kLanes, D, eps);
    Scale(factor, weight, lower);
    Scale(factor, weight + D / 2, upper);
  }

  __device__ void Turn(const float* cos, const float* sin) {
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float a = lower[i], b = upper[i];
      lower[i] = __fsub_rn(__fmul_rn(a, cos[i]), __fmul_rn(b, sin[i]));
      upper[i] = __fadd_rn(__fmul_rn(b, cos[i]), __fmul_rn(a, sin[i]));
    }
  }

  __device__ void Rotate(float scale) {
    Sylvester(D / 2, 1, lower);
    Sylvester(D / 2, 1, upper);
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float a = lower[i], b = upper[i];
      lower[i] = (a + b) * scale;
      upper[i] = (a - b) * scale;
    }
  }

  // min(x, 0) and max(x, 0) of the head.
  __device__ float2 Range() const {
    float2 range = {};
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      range.x = fminf(range.x, fminf(lower[i], upper[i]));
      range.y = fmaxf(range.y, fmaxf(lower[i], upper[i]));
    }
#pragma unroll
    for (int distance = 1; distance < kLanes; distance *= 2) {
      range.x = fminf(range.x, __shfl_xor_sync(~0u, range.x, distance));
      range.y = fmaxf(range.y, __shfl_xor_sync(~0u, range.y, distance));
    }
    return range;
  }
};

// Codes of `kBits` that fill a word, as CacheGrid::Code gives them.
template <int kBits>
__device__ __forceinline__ uint32_t Word(const CacheGrid& grid, const float* x) {
  // The bits of kRound + n are those of kRound, plus n: taken out of all codes at once.
  constexpr uint32_t kOnes = ~0u / ((1u << kBits) - 1);
  const float lowest = __fsub_rn(kRound, grid.zero), highest = __fadd_rn(lowest, grid.top);
  uint32_t word = 0;
#pragma unroll
  for (int i = 32 / kBits - 1; i >= 0; --i) {
    const float steps = __fadd_rn(__fmul_rn(x[i], grid.inverse), kRound);
    word = (word << kBits) + __float_as_uint(fminf(fmaxf(steps, lowest), highest));
  }
  return word - __float_as_uint(lowest) * kOnes;
}

// A lane's eight neighbours, the `eight`-th of the row.
__device__ __forceinline__ void StoreCodes(const CacheGrid& grid, int bits, const float (&x)[kHalf],
                                           std::byte* row, int eight) {
  if (bits == 4) {
    reinterpret_cast<uint32_t*>(row)[eight] = Word<4>(grid, x);
  } else {
    reinterpret_cast<uint2*>(row)[eight] = {Word<8>(grid, x), Word<8>(grid, x + 4)};
  }
}

template <int D, typename Real>
__global__ void __launch_bounds__(32 * kWarps, kBlocksPerSm)
    RopeAppendPackedKernel(const __grid_constant__ RopeAppendArguments a) {
  using H = Head<D>;
  constexpr int kHeads = 32 / H::kLanes;  // of a warp at a time
  const int64_t token = blockIdx.x;
  const int sequence = FindSequence(a, blockIdx.x);
  if (sequence < 0) return;
  const TokenPages pages(a, sequence, blockIdx.x);
  const int lane = Lane() % H::kLanes, element = lane * kHalf;
  const int64_t angles = int64_t{pages.position} * a.angles + element;
  float cos[kHalf], sin[kHalf];
  Load(a.cos + angles, cos);
  Load(a.sin + angles, sin);
  WaitForPreviousGrid();
  AllowNextGrid();
  const int heads = a.all_heads(), step = gridDim.y * kWarps * kHeads;
  const int first = (blockIdx.y * kWarps + threadIdx.x / 32) * kHeads + Lane() / H::kLanes;
  for (int h = first; __any_sync(~0u, h < heads); h += step) {
    H head = {};
    if (h < heads) {
      const Real* x = HeadOf<Real>(a, token, h) + element;
      Load(x, head.lower);
      Load(x + D / 2, head.upper);
    }
    const bool is_q = h < a.heads, turns = h < a.heads + a.kv.kv_heads;
    if (__any_sync(~0u, turns)) {  // the others take part in the exchange
      H turned = head;
      if (a.q_norm != nullptr) turned.Norm((is_q ? a.q_norm : a.k_norm) + element, a.norm_eps);
      turned.Turn(cos, sin);
      if (a.rotation.count != 0) turned.Rotate(a.rotation.scale);
      if (turns && !is_q && a.key_center != nullptr) {
        const float* center = a.key_center + (h - a.heads) * D + element;
        Subtract(center, turned.lower);
        Subtract(center + D / 2, turned.upper);
      }
      if (turns) head = turned;
    }
    float2 range = {};
    if (__any_sync(~0u, !is_q)) range = head.Range();
    if (h >= heads) continue;
    if (is_q) {
      Real* out = HeadOf<Real>(a, token, h) + element;
      Store(head.lower, out);
      Store(head.upper, out + D / 2);
      continue;
    }
    const int kv_head = h - a.heads - (turns ? 0 : a.kv.kv_heads);
    const auto append = [&](const KvLayout& kv, std::byte* page) {
      const KvPart& part = turns ? kv.k : kv.v;
      std::byte* block = page + int64_t{kv_head} * kv.block_bytes;
      const CacheGrid grid(part, range.x, range.y);
      std::byte* const row = block + part.codes + pages.slot * part.row_bytes;
      StoreCodes(grid, part.bits, head.lower, row, lane);
      StoreCodes(grid, part.bits, head.upper, row, H::kLanes + lane);
      if (lane == 0) reinterpret_cast<__half2*>(block + part.params)[pages.slot] = grid.Params();
    };
    append(a.kv, pages.page);
    if (pages.recent != nullptr) append(a.recent, pages.recent);
  }
}

template <int D>
void LaunchFor(const RopeAppendArguments& a, cudaStream_t stream) {
  constexpr int kTargetBlocks = 1024;  // fewer tokens than this share a token among several blocks
  const int heads = a.all_heads(), warp_heads = 32 / Head<D>::kLanes;
  const int max = (heads + kWarps * warp_heads - 1) / (kWarps * warp_heads);
  const LaunchShape shape = {.grid = dim3(a.rows, std::clamp(kTargetBlocks / a.rows, 1, max)),
                             .block = 32 * kWarps};
  WithReal(a.type, [&]<typename Real>(Real) {
    LaunchDependent(RopeAppendPackedKernel<D, Real>, shape, stream, a);
  });
}

}  // namespace

bool RopeAppendPacked(const RopeAppendArguments& a, cudaStream_t stream) {
  const int d = a.kv.head_dim;
  const HeadRotation::Factor& factor = a.rotation.factors[0];
  const bool rotates = a.rotation.count == 1 && factor.signs < 0 && factor.order == d;
  if (2 * a.angles != d || (a.rotation.count != 0 && !rotates)) return false;
  if (a.k != nullptr && (a.q_norm == nullptr) != (a.k_norm == nullptr)) return false;
  if (!a.kv.k.packs() || !a.kv.v.packs()) return false;
  if (d != 64 && d != 128 && d != 256) return false;
  d == 64    ? LaunchFor<64>(a, stream)
  : d == 128 ? LaunchFor<128>(a, stream)
             : LaunchFor<256>(a, stream);
  return true;
}

}  // namespace nibble::cuda
