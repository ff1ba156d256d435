// SPDX-License-Identifier: Apache-2.0
// Products by NVIDIA's own library, loaded when asked for since no other part of the program needs
// it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace nibble::cuda {

class CublasProduct {
 public:
  enum class Type { kBf16, kInt8, kFp8 };  // to bf16, int32, bf16

  // y [tokens, rows] = x [tokens, cols] w [rows, cols]^T with random values, `copies` times over
  // with other weights, recorded as one graph. Of the eight algorithms that cuBLASLt proposes the
  // fastest is taken. Throws if the library is not there or refuses.
  CublasProduct(Type type, int64_t tokens, int64_t rows, int64_t cols, int copies);
  ~CublasProduct();

  // Enqueues all copies once.
  void Run() const;
  // Waits until everything on the GPU is done.
  static void Wait();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nibble::cuda
