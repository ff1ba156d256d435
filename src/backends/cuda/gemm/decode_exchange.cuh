// SPDX-License-Identifier: Apache-2.0
// The exchange in which the warps of a cluster add up their sums for decode linears
// (gemm_decode.cu).
#pragma once

#include "backends/cuda/gemm/decode_products.cuh"

namespace nibble::cuda::decode {

// Sums from one output to the next in the buffer; two more than needed avoid most bank conflicts.
template <typename S>
inline constexpr int kSumPitch = 8 * S::kTiles + 2;

// The sums of kRows outputs: [owner][split][kRows / ranks][kSumPitch] in the block that computes
// them, [rank][split][..][..] in the owner's.
template <typename S>
using SumBuffer = typename S::Sum[S::kSplits * S::kRows * kSumPitch<S>];

// Shared memory of a block. The table of codewords follows, in a cluster a SumBuffer to send, then
// the activations.
template <typename S>
struct Shared {
  uint8_t rings[S::kWarps][S::kStages * S::kStageBytes];
  SumBuffer<S> received;
  TokenParameters<S> tokens;
  uint64_t barrier[2];  // the second is padding

  __device__ uint8_t* table() { return reinterpret_cast<uint8_t*>(this + 1); }
  __device__ typename S::Sum* sent() {
    return reinterpret_cast<typename S::Sum*>(table() + CodewordsOf<S>::kTableBytes);
  }
  __device__ uint32_t activations() {
    const int sent_bytes = gridDim.x > 1 ? static_cast<int>(sizeof(SumBuffer<S>)) : 0;
    return SharedAddress(sent()) + sent_bytes;
  }
};

// Each output belongs to one block of the cluster; the others send it their sums.
template <typename S>
class Exchange {
 public:
  __device__ Exchange(Shared<S>& shared, int rank, int ranks_log2)
      : shared_(shared),
        barrier_(SharedAddress(shared.barrier)),
        rank_(rank),
        ranks_(1 << ranks_log2),
        owned_log2_(FloorLog2(S::kRows) - ranks_log2) {
    if (ranks_ == 1) return;
    if (threadIdx.x == 0) {
      BarrierInit(barrier_, 1);
      BarrierInitFence();
      BarrierArriveExpect(barrier_, sizeof(SumBuffer<S>));
    }
    ClusterArrive();
  }

  // Returns when the sums of all blocks are in `received`.
  __device__ void Run(const Sums<S>& sums, int row_warp, int split) {
    // Waits until all blocks have read, and so received, the sums of the exchange before.
    ranks_ == 1 ? __syncthreads() : ClusterWait();
    typename S::Sum* const buffer = ranks_ == 1 ? shared_.received : shared_.sent();
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_warp * 16 + half * 8 + lane / 4;
      const int part = (row >> owned_log2_) * S::kSplits + split;
      const int slot = (part << owned_log2_) + (row & ((1 << owned_log2_) - 1));
#pragma unroll
      for (int tile = 0; tile < S::kTiles; ++tile) {
        // Tokens 2 q, 2 q + 1 of the tile for row g + 8 half.
        struct alignas(8) Pair {
          typename S::Sum first, second;
        };
        const int at = slot * kSumPitch<S> + tile * 8 + lane % 4 * 2;
        *reinterpret_cast<Pair*>(buffer + at) = {sums.Total(tile, 2 * half),
                                                 sums.Total(tile, 2 * half + 1)};
      }
    }
    if (ranks_ > 1) FenceForBulkCopies();
    __syncthreads();
    if (ranks_ == 1) return;
    constexpr uint32_t kBytes = sizeof(SumBuffer<S>);
    if (const int peer = threadIdx.x; peer < ranks_) {
      CopyBulkToPeer(PeerAddress(SharedAddress(shared_.received) + kBytes / ranks_ * rank_, peer),
                     SharedAddress(shared_.sent()) + kBytes / ranks_ * peer, kBytes / ranks_,
                     PeerAddress(barrier_, peer));
    }
    BarrierWaitForPeers(barrier_, phase_);
    phase_ ^= 1;
  }

  // D of the owned output `own` or, with groups, the sum that the law is applied to. Sums come as
  // 2^shift times their values.
  __device__ typename S::Sum Total(int own, int column, int shift) const {
    typename S::Sum d = 0;
#pragma unroll 4
    for (int i = 0; i < ranks_ * S::kSplits; ++i) {
      d += shared_.received[((i << owned_log2_) + own) * kSumPitch<S> + column];
    }
    if constexpr (S::kGroups) {
      return shift == 0 ? d : d * (1.0f / 16);
    } else {
      return d >> shift;
    }
  }

  __device__ void DoneReading() const {
    if (ranks_ == 1) return;
    if (threadIdx.x == 0) BarrierArriveExpect(barrier_, sizeof(SumBuffer<S>));
    ClusterArrive();
  }

  // A block must not end while others may still send to it.
  __device__ void Finish() const {
    if (ranks_ > 1) ClusterWait();
  }

 private:
  Shared<S>& shared_;
  const uint32_t barrier_;
  const int rank_, ranks_, owned_log2_;
  int phase_ = 0;
};

}  // namespace nibble::cuda::decode
