// SPDX-License-Identifier: Apache-2.0
// More of ptx.h: what only sm_90a has, for kernels that are compiled for nothing else.
#pragma once

#include <cuda.h>

#include "backends/cuda/ptx/ptx.h"

namespace nibble::cuda {

// ---- Barriers of ptx.h ----

__device__ __forceinline__ void BarrierArrive(SharedAddress barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(uint32_t{barrier}) : "memory");
}
// One arrival at a barrier of PeerAddress.
__device__ __forceinline__ void BarrierArriveAtPeer(uint32_t peer_barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(peer_barrier) : "memory");
}

// A cheaper BarrierWaitForPeers: only what this block and bulk copies have written is visible.
__device__ __forceinline__ void BarrierWait(SharedAddress barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "wait:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra wait;\n"
      "}" ::"r"(uint32_t{barrier}),
      "r"(parity)
      : "memory");
}

// ---- Bulk copies from global to shared memory; they report their bytes to a barrier ----

// `bytes` contiguous bytes, a multiple of 16, both ends aligned to 16.
__device__ __forceinline__ void BulkLoad(SharedAddress shared, const void* global, int bytes,
                                         SharedAddress barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(uint32_t{shared}),
      "l"(global), "r"(bytes), "r"(uint32_t{barrier})
      : "memory");
}
// The box of `map` at (column, row), to the same place in every block of the cluster named by
// `blocks` (a bit each); every one of them counts the bytes at its own barrier.
__device__ __forceinline__ void TensorLoad(SharedAddress shared, const CUtensorMap& map, int column,
                                           int row, SharedAddress barrier, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(uint32_t{shared}),
      "l"(&map), "r"(column), "r"(row), "r"(uint32_t{barrier}), "h"(blocks)
      : "memory");
}
// Asks for a tensor map itself to be near when the copies need it.
__device__ __forceinline__ void PrefetchMap(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// ---- Clusters and groups of warps ----

// Sends 16 bytes to a peer's shared memory and counts them there.
__device__ __forceinline__ void SendPeer16(uint32_t peer, const uint4& v, uint32_t peer_barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(peer),
      "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(peer_barrier)
      : "memory");
}

__device__ __forceinline__ int ClusterRank() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// Barriers 1..15 of the block, among `threads` threads; 0 is __syncthreads.
__device__ __forceinline__ void NamedSync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// Moves registers between the warpgroups of a block.
template <int kRegisters>
__device__ __forceinline__ void ReleaseRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void ClaimRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- Stores ----

// Four 8 x 8 matrices of 16-bit values, each stored transposed. Of matrix i a lane holds row
// lane / 4, columns 2 (lane % 4) and the next, in m[i]; lane 8 i + c has the address of column c.
__device__ __forceinline__ void StoreMatricesTransposed(SharedAddress column,
                                                        const uint32_t (&m)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   uint32_t{column}),
               "r"(m[0]), "r"(m[1]), "r"(m[2]), "r"(m[3])
               : "memory");
}
// 16 bytes to global memory. An assignment of a uint4 may become four stores.
__device__ __forceinline__ void StoreGlobal(void* y, const uint4& v) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(y), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}
// y[0..3] += v, four floats, in global memory without waiting for the old values; subnormals become
// 0.
__device__ __forceinline__ void AddToGlobal(float* y, const uint4& v) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(y), "f"(__uint_as_float(v.x)),
               "f"(__uint_as_float(v.y)), "f"(__uint_as_float(v.z)), "f"(__uint_as_float(v.w))
               : "memory");
}

}  // namespace nibble::cuda
