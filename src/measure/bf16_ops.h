// SPDX-License-Identifier: Apache-2.0
// Operations of a 16-bit layer between its products, for the peer of benchmarks (bf16_peer.h). Rows
// are contiguous bf16 in device memory, 16-byte aligned; widths are multiples of 8.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace nibble::cuda {

// y = x / sqrt(mean(x^2) + 1e-5), up to 8192 columns.
void Bf16Norm(const __nv_bfloat16* x, int64_t tokens, int width, __nv_bfloat16* y,
              cudaStream_t stream);

struct Bf16RopeArguments {
  const __nv_bfloat16* qkv;  // [sequences, tokens, (heads + 2 kv_heads) head_dim]
  __nv_bfloat16* q;          // [sequences, tokens, heads, head_dim]
  __nv_bfloat16 *k, *v;      // [sequences, kv_heads, context + tokens, head_dim]
  const float *cos, *sin;    // [context + tokens, head_dim / 2]
  int sequences, tokens, context;
  int heads, kv_heads, head_dim;  // head_dim: a multiple of 16
};
// Rotates q and k, and writes k and v behind the `context` tokens of the cache.
void Bf16RopeAppend(const Bf16RopeArguments& arguments, cudaStream_t stream);

// y [tokens, width] = silu(gate) * up of gate_up [tokens, 2 width].
void Bf16SiluMul(const __nv_bfloat16* gate_up, int64_t tokens, int width, __nv_bfloat16* y,
                 cudaStream_t stream);

// Reads a multiple of 16 bytes once; `sink` is where it could write.
void ReadMemory(const void* memory, size_t bytes, uint32_t* sink, cudaStream_t stream);

}  // namespace nibble::cuda
