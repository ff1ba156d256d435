// SPDX-License-Identifier: Apache-2.0
// cuDNN's fused attention on bf16 tensors. The library is loaded when it is asked for; without
// it, or in a build without its headers and its C++ frontend, Build returns false.
#pragma once

#include <cuda_runtime.h>

#include <compare>
#include <cstdint>
#include <memory>

namespace nibble::cuda {

// The shape that a kernel is built for.
struct CudnnShape {
  int sequences = 1, heads = 0, kv_heads = 0, head_dim = 0;
  int queries = 0, keys = 0;  // per sequence, as many as the tensors have
  float scale = 1;
  // If causal, query i of a sequence with m queries and n keys sees the keys up to n - m + i and,
  // if there is a window, only the last `sliding_window` of them. Otherwise it sees all keys.
  bool causal = false;
  int sliding_window = 0;
  // If ragged, tensors give m, n and the beginning of each sequence's rows of q and out. Otherwise
  // m and n are `queries` and `keys`, and sequences lie one behind the other.
  bool ragged = false;

  auto operator<=>(const CudnnShape&) const = default;
};

// Device memory, contiguous, 16-byte aligned.
struct CudnnTensors {
  // [sequences, queries, heads, head_dim] or, if ragged, [rows, heads, head_dim]
  const void* q = nullptr;
  const void *k = nullptr, *v = nullptr;  // [sequences, kv_heads, keys, head_dim]; finite numbers
  void* out = nullptr;                    // as q
  const int32_t *queries = nullptr, *keys = nullptr;  // [sequences] lengths
  const int32_t* offsets = nullptr;                   // [sequences + 1] elements, the last an end
};

class CudnnAttention {
 public:
  CudnnAttention();
  ~CudnnAttention();

  // Builds the kernel for a shape, which takes 40 to 900 ms of the CPU, unless it is there already.
  // False if cuDNN is missing or has none.
  bool Build(const CudnnShape& shape);
  // Enqueues the kernel of a shape that Build said yes to. Throws nibble::Error if cuDNN refuses.
  void Run(const CudnnShape& shape, const CudnnTensors& tensors, cudaStream_t stream);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nibble::cuda
