// SPDX-License-Identifier: Apache-2.0
// The kernels of GPTQ besides matrix products (device_gptq.cc). Device pointers, matrices
// row-major; everything is enqueued, and nibble::Error is thrown if a launch is refused.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "formats/lattice_words.h"

namespace nibble::cuda {

// x - minus (or x, if that is null), each row times the root of its weight (or 1), as the sum of
// two bf16 terms; 2^-18 of it is lost.
struct SplitArguments {
  const float *x, *minus, *weights;  // [rows, width]; weights [rows]
  int64_t rows, width;
  __nv_bfloat16 *high, *low;
};
void SplitTerms(const SplitArguments& arguments, cudaStream_t stream);

// sum += product, element by element.
void AddProduct(const float* product, int64_t count, double* sum, cudaStream_t stream);

// Rows and columns of [n, n] in another order, backwards: out[n-1-i, n-1-j] = m[order[i],
// order[j]], of the mean m of `in` and its transpose with `added` on the diagonal.
struct PermuteArguments {
  const double* in;
  const int32_t* order;  // [n]
  const double* added;   // [n]
  int64_t n;
  double* out;
};
void PermuteSquare(const PermuteArguments& arguments, cudaStream_t stream);

// out[r, i] = in[r, order[i]]; [rows, n].
void PermuteColumns(const double* in, const int32_t* order, int64_t rows, int64_t n, double* out,
                    cudaStream_t stream);

// The identity, [n, n].
void SetIdentity(int64_t n, double* out, cudaStream_t stream);
// x[i] <-> x[count - 1 - i]
void Reverse(double* x, int64_t count, cudaStream_t stream);

constexpr int kGptqChunk = 128;  // most columns of one RoundColumns

// Codes of the first columns of a matrix and their grids, in the columns' own order.
struct CodesOnDevice {
  int8_t* codes;         // [rows, columns]
  const float* scales;   // [rows, columns / group]
  const int32_t* zeros;  // the same
  int64_t columns, group;
  int bits;
  bool sparse;                // GptqRounding::sparse
  uint32_t* codewords;        // [rows, columns / 8], or null: each column is rounded by itself
  const LatticeWords* words;  // of the codewords
};

struct RoundArguments {
  double* w;                       // [rows, cols], columns in rounding order
  int64_t rows, cols, begin, end;  // rounds columns [begin, end) and changes no other
  const double* u;                 // [cols, cols]
  const int32_t* order;            // [cols]
  const double* original;          // [rows, cols], columns in their own order
  double pull;                     // GptqRounding::pull
  CodesOnDevice to;
  double* errors;  // [rows, kGptqChunk]: (value - meaning) / u[i, i]
};
void RoundColumns(const RoundArguments& arguments, cudaStream_t stream);

struct SweepArguments {
  const double* gradients;         // [rows, kGptqChunk]: errors times columns [begin, end) of H
  int64_t rows, cols, begin, end;  // chooses the codes of these columns anew
  const double* hessian;           // [cols, cols]
  CodesOnDevice of;
  double* errors;  // [rows, cols]: what the codes mean minus the weights
};
void SweepColumns(const SweepArguments& arguments, cudaStream_t stream);

// error = rounded - w, where `rounded` is what the codes mean in fp32, followed by the tail; [rows,
// cols], columns in their own order.
struct ErrorArguments {
  CodesOnDevice of;
  const double* tail;  // [rows, cols - of.columns]
  const double* w;
  int64_t rows, cols;
  double* error;
};
void RoundingError(const ErrorArguments& arguments, cudaStream_t stream);

}  // namespace nibble::cuda
