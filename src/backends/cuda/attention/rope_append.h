// SPDX-License-Identifier: Apache-2.0
// Backend::RopeAndAppend: norm and RoPE of q and k, then the rotation of each head; q is written
// back, k and v go into the cache, quantized as formats/quantizer.h says. Operations have the order
// of backends/ref, so q and the pages get the same bits (except the sign of an unquantized zero).
#pragma once

#include "backends/cuda/attention/kv_layout.h"
#include "backends/cuda/runtime/real_type.h"

namespace nibble {
struct TransformSpec;
}

namespace nibble::cuda {

// A TransformSpec of one head as a kernel argument: factors are applied one after the other, each
// along its axis of x seen as [.., order, stride].
struct HeadRotation {
  static constexpr int kMaxFactors = 3, kMaxSigns = 64;
  struct Factor {
    int order, stride;
    int signs;  // first of its rows in `negative`; -1: Sylvester
  };
  int count = 0;  // 0: identity
  float scale = 1;
  Factor factors[kMaxFactors];
  uint64_t negative[kMaxSigns];  // of the dense factors: bit i of row f means H[f, i] = -1
};

// Aborts on dense factors of more than 64 rows in all and on a Sylvester stride that is no power of
// two; no rotation of a head up to 512 needs either. Throws nibble::Error where a factor is no
// Hadamard matrix.
HeadRotation RotationOf(const TransformSpec& spec);

// Pointers are device memory; rows of q, k and v are aligned to 16 bytes.
struct RopeAppendArguments {
  void* q = nullptr;        // [rows, q_stride], heads * head_dim of them; rotated in place
  const void* k = nullptr;  // [rows, k_stride], kv_heads * head_dim; or null with v: q alone
  const void* v = nullptr;  // [rows, v_stride]
  RealType type = RealType::kFloat32;
  int64_t q_stride = 0, k_stride = 0, v_stride = 0;  // elements
  int heads = 0;
  KvLayout kv = {};
  HeadRotation rotation = {};
  const float* cos = nullptr;  // [positions, angles], RopeTable
  const float* sin = nullptr;
  int angles = 0;  // at most head_dim / 2; the dimensions behind 2 * angles stay
  const float *q_norm = nullptr, *k_norm = nullptr;  // [head_dim], or null: no norm
  float norm_eps = 0;
  const float* key_center = nullptr;        // [kv_heads, head_dim], subtracted from k last, or null
  const SequenceOnDevice* batch = nullptr;  // [sequences]
  int sequences = 0;
  // The recent form of the cache and the same batch with its pages, or null where there is none.
  KvLayout recent = {};
  const SequenceOnDevice* recent_batch = nullptr;
  int rows = 0;  // of all sequences; rows that belong to none are left alone

  // Heads of q, k and v.
  __host__ __device__ int all_heads() const { return heads + (k == nullptr ? 0 : 2 * kv.kv_heads); }
};

// Enqueues the op. The batch and the tables are read before the kernel in front has ended: that
// kernel must not write them. Throws nibble::Error if the launch is refused.
void RopeAppend(const RopeAppendArguments& arguments, cudaStream_t stream);

}  // namespace nibble::cuda
