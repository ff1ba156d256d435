// SPDX-License-Identifier: Apache-2.0
// PTX instructions that CUDA C++ has no name for, one function each, so that a kernel reads as an
// algorithm. In fragments of matrices, lane = 4 g + t.
//
// On older chips, instructions that sm_90 added do what suits a cluster of one block and an
// ordinary launch, so that kernels need no #if. Those that only kernels for sm_90a use are in
// ptx_sm90.h.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace nibble::cuda {

// An address in shared memory; a generic pointer into it becomes one by itself.
class SharedAddress {
 public:
  __device__ __forceinline__ SharedAddress(const void* p)  // NOLINT(google-explicit-constructor)
      : address_(static_cast<uint32_t>(__cvta_generic_to_shared(p))) {}
  __device__ __forceinline__ SharedAddress(uint32_t address)  // NOLINT(google-explicit-constructor)
      : address_(address) {}
  __device__ __forceinline__ operator uint32_t() const { return address_; }  // NOLINT

 private:
  uint32_t address_;
};

// Bytes of `low` and `high`, each chosen by the lower three bits of one of four nibbles; the sign
// of the byte in all its bits where the fourth is set.
__device__ __forceinline__ uint32_t PermuteBytes(uint32_t low, uint32_t high, uint32_t nibbles) {
  uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(nibbles));
  return bytes;
}

// ---- Memory ----

__device__ __forceinline__ uint4 LoadShared16(SharedAddress shared) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(uint32_t{shared})
               : "memory");
  return v;
}
__device__ __forceinline__ uint32_t LoadShared4(SharedAddress shared) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(uint32_t{shared}) : "memory");
  return v;
}
// Loads from memory that no longer changes, so that the compiler may reorder loads.
__device__ __forceinline__ uint32_t LookUp(SharedAddress shared) {
  uint32_t v;
  asm("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(uint32_t{shared}));
  return v;
}
__device__ __forceinline__ uint2 LoadShared8(SharedAddress shared) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
               : "=r"(v.x), "=r"(v.y)
               : "r"(uint32_t{shared})
               : "memory");
  return v;
}
__device__ __forceinline__ void StoreShared8(SharedAddress shared, uint2 v) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(uint32_t{shared}), "r"(v.x), "r"(v.y)
               : "memory");
}
__device__ __forceinline__ void StoreShared4(SharedAddress shared, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(uint32_t{shared}), "f"(v) : "memory");
}
__device__ __forceinline__ void StoreShared16(SharedAddress shared, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(uint32_t{shared}), "r"(v.x),
               "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

// Eight bf16 as numbers.
__device__ __forceinline__ void UnpackBf16(const uint4& eight, float (&x)[8]) {
  const uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = __uint_as_float(words[i] << 16);
    x[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000);
  }
}

__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ __forceinline__ uint4 PackBf16(const float (&x)[8]) {
  return {PackBf16(x[0], x[1]), PackBf16(x[2], x[3]), PackBf16(x[4], x[5]), PackBf16(x[6], x[7])};
}

// x rounded to 11 significant bits, those of fp16, and with fp32's range: what TF32 has.
__device__ __forceinline__ float HalfPrecision(float x) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return __uint_as_float(bits & 0xFFFFE000);
}

// Global to shared memory without registers, past L1. A group of copies is there after
// CopyAsyncWait; for other threads, after a barrier behind it.
__device__ __forceinline__ void CopyAsync16(SharedAddress shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(uint32_t{shared}), "l"(global)
               : "memory");
}
// The same, or zeros in place of what is not `inside`; `global` has to be an address all the same.
__device__ __forceinline__ void CopyAsync16OrZero(SharedAddress shared, const void* global,
                                                  bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(uint32_t{shared}), "l"(global),
               "r"(inside ? 16 : 0)
               : "memory");
}
// 4, 8 or whole 16 bytes.
template <int kBytes>
__device__ __forceinline__ void CopyAsync(SharedAddress shared, const void* global) {
  if constexpr (kBytes >= 16) {
    for (int i = 0; i < kBytes; i += 16) {
      CopyAsync16(uint32_t{shared} + i, static_cast<const char*>(global) + i);
    }
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(uint32_t{shared}), "l"(global),
                 "n"(kBytes)
                 : "memory");
  }
}
// Closes a group: all copies that this thread has started since the last one.
__device__ __forceinline__ void CopyAsyncCommit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Returns when all but the last `kGroups` groups of this thread are in shared memory.
template <int kGroups>
__device__ __forceinline__ void CopyAsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

// Asks for `bytes` (a multiple of 16) at p, 16-byte aligned, to be brought into L2.
__device__ __forceinline__ void PrefetchL2(const void* p, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
#endif
}

// Adds and returns the old value. Writes of the block before a barrier in front of this are seen by
// those who add later, after a barrier behind it.
__device__ __forceinline__ uint32_t AddReleaseAcquire(uint32_t* counter, uint32_t value) {
  uint32_t old;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;"
               : "=r"(old)
               : "l"(counter), "r"(value)
               : "memory");
  return old;
}

// ---- 8 x 8 matrices of 16-bit elements (or 8 x 16 of bytes). Lanes 8 m to 8 m + 7 give the
// addresses of the rows of matrix m, 16 bytes each. ----

// A lane gets elements (g, 2 t) and (g, 2 t + 1) of each: bytes 4 t to 4 t + 3 of row g.
__device__ __forceinline__ void LoadMatrices(SharedAddress row, uint32_t (&m)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(uint32_t{row})
               : "memory");
}
// Transposed: a lane gets elements (2 t, g) and (2 t + 1, g).
__device__ __forceinline__ void LoadTransposed(SharedAddress row, uint32_t (&m)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(uint32_t{row})
               : "memory");
}
// A matrix in registers.
__device__ __forceinline__ uint32_t Transpose(uint32_t matrix) {
  uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(matrix));
  return transposed;
}

// ---- Products of a warp ----

// d[16, 8] += a[16, 16] b[16, 8] of 16-bit floats, fp32 sums.
//   a  {(g, 2t), (g, 2t+1)}, {(g+8, ..)}, {(g, 2t+8), (g, 2t+9)}, {(g+8, ..)}
//   b  {(2t, g), (2t+1, g)}, {(2t+8, g), (2t+9, g)}
//   d  (g, 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1)
//
// Of bytes, d[16, 8] += a[16, 32] b[32, 8], exact: four, 4t .. 4t+3 of 16 at a time, in place of
// two halves. Of nibbles, d[16, 8] += a[16, 64] b[64, 8]: eight, 8t .. 8t+7 of 32; native on GPUs
// of compute capability 8, emulated on newer ones.
#define NIBBLE_MMA(name, instruction, Sum, constraint)                                           \
  __device__ __forceinline__ void name(Sum(&d)[4], const uint32_t(&a)[4], uint32_t b0,           \
                                       uint32_t b1) {                                            \
    asm("mma.sync.aligned." instruction                                                          \
        " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                       \
        : "+" constraint(d[0]), "+" constraint(d[1]), "+" constraint(d[2]), "+" constraint(d[3]) \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                         \
  }
NIBBLE_MMA(MmaF16, "m16n8k16.row.col.f32.f16.f16.f32", float, "f")
NIBBLE_MMA(MmaBf16, "m16n8k16.row.col.f32.bf16.bf16.f32", float, "f")
NIBBLE_MMA(MmaS8, "m16n8k32.row.col.s32.s8.s8.s32", int32_t, "r")
NIBBLE_MMA(MmaU8S8, "m16n8k32.row.col.s32.u8.s8.s32", int32_t, "r")
NIBBLE_MMA(MmaU8, "m16n8k32.row.col.s32.u8.u8.s32", int32_t, "r")
NIBBLE_MMA(MmaS4, "m16n8k64.row.col.s32.s4.s4.s32", int32_t, "r")
#undef NIBBLE_MMA
// Of bytes, d[16, 8] += a[16, 64] b[64, 8], where two of every four in a row of a are not 0: `a`
// has these as a[16, 32] above, b[i] has inputs 16 i + 4t and three more.
//
// places: of output g + 8 (t % 2), inputs 32 (t / 2) .. + 31, where codes stand in their fours, two
// bits each, rising.
__device__ __forceinline__ void MmaSparseS8(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                            uint32_t b1, uint32_t b2, uint32_t b3,
                                            uint32_t places) {
  asm("mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, "
      "{%4, %5, %6, %7}, {%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, 0;"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(b2), "r"(b3),
        "r"(places));
}
// d = a b + c of bytes.
__device__ __forceinline__ void MmaS8(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                      uint32_t b1, const int4& c) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%10, %11, %12, %13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c.x), "r"(c.y), "r"(c.z),
        "r"(c.w));
}

// ---- Arithmetic ----

// a & b | c in one instruction (with two constants the compiler takes two).
__device__ __forceinline__ uint32_t AndOr(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
// Bits of a where the mask has ones, of b where it has zeros.
__device__ __forceinline__ uint32_t Select(uint32_t mask, uint32_t a, uint32_t b) {
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0xE4;" : "=r"(d) : "r"(a), "r"(b), "r"(mask));
  return d;
}

// Approximations to about 2^-22, relative (of the logarithm absolute).
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float Log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float Reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// ---- Dependent launches: a kernel of LaunchDependent (launch.h) may start before the one in front
// of it has ended ----

// Returns when every kernel in front has ended and its writes are visible.
__device__ __forceinline__ void WaitForPreviousGrid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The kernel behind may start, where there is room, once all blocks of this one have called this or
// ended.
__device__ __forceinline__ void AllowNextGrid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- Barriers in shared memory: a phase ends when `count` arrivals and all expected bytes are in;
// the next one follows, of the other parity. Nothing before sm_90. ----

__device__ __forceinline__ void BarrierInit(SharedAddress barrier, int count) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(uint32_t{barrier}), "r"(count)
               : "memory");
#endif
}
// Makes initialized barriers visible to the cluster and to bulk copies.
__device__ __forceinline__ void BarrierInitFence() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
// One arrival; the phase also waits for `bytes` that are copied or sent to this block.
__device__ __forceinline__ void BarrierArriveExpect(SharedAddress barrier, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(uint32_t{barrier}),
               "r"(bytes)
               : "memory");
#endif
}
// Returns once the phase of this parity has ended (the phase before the first has parity 1) and
// what peers of the cluster have sent is visible.
__device__ __forceinline__ void BarrierWaitForPeers(SharedAddress barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "wait:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra wait;\n"
      "}" ::"r"(uint32_t{barrier}),
      "r"(parity)
      : "memory");
#endif
}

// ---- Clusters ----

// A barrier of all threads of the cluster in two halves. It orders the initialization of barriers
// and nothing else.
__device__ __forceinline__ void ClusterArrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void ClusterWait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
// ClusterArrive and ClusterWait at once; orders all that the threads have written.
__device__ __forceinline__ void ClusterSync() {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "barrier.cluster.arrive.aligned;\n"
      "barrier.cluster.wait.aligned;" ::
          : "memory");
#endif
}

// The address of block `rank`'s copy of a shared variable of this block.
__device__ __forceinline__ uint32_t PeerAddress(SharedAddress shared, int rank) {
#if __CUDA_ARCH__ >= 900
  uint32_t peer;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(peer) : "r"(uint32_t{shared}), "r"(rank));
  return peer;
#else
  return shared;
#endif
}
// To a peer's shared memory; ClusterSync makes it visible there.
__device__ __forceinline__ void StorePeer(uint32_t peer, const uint4& v) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.shared::cluster.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(peer), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
#endif
}
// Copies `bytes` (a multiple of 16) from this block's shared memory to a peer's; counts there.
__device__ __forceinline__ void CopyBulkToPeer(uint32_t peer, SharedAddress shared, uint32_t bytes,
                                               uint32_t peer_barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(peer),
      "r"(uint32_t{shared}), "r"(bytes), "r"(peer_barrier)
      : "memory");
#endif
}
// Sends 8 bytes to a peer's shared memory and counts them there.
__device__ __forceinline__ void SendPeer(uint32_t peer, int2 v, uint32_t peer_barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.s32 [%0], {%1, %2}, [%3];" ::"r"(
          peer),
      "r"(v.x), "r"(v.y), "r"(peer_barrier)
      : "memory");
#endif
}
// Makes this thread's writes to shared memory visible to bulk copies, once a barrier has followed.
__device__ __forceinline__ void FenceForBulkCopies() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

}  // namespace nibble::cuda
