// SPDX-License-Identifier: Apache-2.0
// A product by NVIDIA's own library, which is loaded when it is asked for: no part of the program
// but benchmarks needs it.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <span>

#include "base/aligned.h"
#include "measure/cublas_peer.h"

namespace nibble::cuda {

class CublasLinear {
 public:
  using Type = CublasProduct::Type;

  // Device memory: x [tokens, cols], w [rows, cols], y [tokens, rows].
  struct Tensors {
    const void *x, *w;
    void* y;
  };

  // y = x w^T, or y += x w^T. Throws if the library is not there or refuses.
  CublasLinear(Type type, int64_t tokens, int64_t rows, int64_t cols, bool accumulate);
  ~CublasLinear();

  // Takes the fastest on these tensors, in turn, of the eight algorithms that cuBLASLt proposes.
  void Choose(std::span<const Tensors> tensors, cudaStream_t stream);
  void Multiply(const Tensors& tensors, cudaStream_t stream) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Inputs in device memory: normal numbers of this deviation in bf16, any integers in 8 bits, any
// finite fp8.
AlignedBytes RandomValues(CublasProduct::Type type, int64_t count, float deviation);

}  // namespace nibble::cuda
