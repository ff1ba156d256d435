// SPDX-License-Identifier: Apache-2.0
// Large matrix products and factorizations by cuBLAS and cuSOLVER, which are loaded when
// calibration asks for them. Device pointers, matrices row-major; everything is enqueued except
// functions that return a value. Throws nibble::Error if a library is missing or refuses.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <memory>

#include "compute/dense_math.h"

namespace nibble::cuda {

class LinearAlgebra {
 public:
  explicit LinearAlgebra(cudaStream_t stream);
  ~LinearAlgebra();

  // out [width, width] = factor * left^T right (+ out); left, right [tokens, width].
  void MultiplyTerms(const __nv_bfloat16* left, const __nv_bfloat16* right, int64_t tokens,
                     int64_t width, float factor, bool accumulate, float* out) const;

  // A block of a matrix whose rows are `stride` elements apart.
  struct Block {
    const double* data;
    int64_t stride;
  };
  // out [rows, cols], `stride` elements between rows, = factor * a b (+ out), or a b^T.
  struct Product {
    Block a;  // [rows, inner]
    Block b;  // [inner, cols], or [cols, inner] if transposed
    bool transposed = false;
    int64_t rows, inner, cols;
    double factor = 1;
    bool accumulate = false;
    double* out;
    int64_t stride;
  };
  void Multiply(const Product& product) const;
  void Multiply(const DenseProduct& product) const;  // in fp32

  // sqrt(sum of squares), in fp32; [count].
  double Length(const float* a, int64_t count) const;
  // Sum of products, [count].
  double Dot(const double* a, const double* b, int64_t count) const;

  // The lower L with a = L L^T in place; above the diagonal `a` is left as it is. False if a [n, n]
  // is not positive definite.
  bool Factor(double* a, int64_t n);

  // x = L^-1 from the identity in x; both [n, n], L lower, what lies above its diagonal is not
  // read.
  void InvertLower(const double* l, int64_t n, double* x) const;

 private:
  struct Handles;
  std::unique_ptr<Handles> handles_;
};

}  // namespace nibble::cuda
