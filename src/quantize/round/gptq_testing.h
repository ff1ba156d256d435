// SPDX-License-Identifier: Apache-2.0
// Random weights and inputs, and GPTQ of one matrix with BLAS.
#pragma once

#include "quantize/round/gptq.h"
#include "quantize/round/host_gptq.h"
#include "tensor/random_testing.h"

namespace nibble {

inline Matrix<double> RandomMatrix(int64_t rows, int64_t cols, uint64_t seed) {
  Rng rng(seed);
  return RandomMatrix(rows, cols, rng);
}

inline double& At(Matrix<double>& m, int64_t row, int64_t column) {
  return m.row(row)[static_cast<size_t>(column)];
}

// Correlated: neighbours share most of their signal, as in a real network.
inline Matrix<float> CorrelatedInputs(int64_t width, int64_t tokens, uint64_t seed) {
  const Matrix<double> noise = RandomMatrix(tokens, width + 8, seed);
  Matrix<float> x(tokens, width);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t k = 0; k < width; ++k) {
      double sum = 0;
      for (int64_t j = 0; j < 8; ++j) sum += noise.row(t)[static_cast<size_t>(k + j)];
      x.row(t)[static_cast<size_t>(k)] = static_cast<float>(sum);
    }
  }
  return x;
}

// X^T X as HostGptq sums it, symmetric to the last bit, whatever order BLAS adds in.
inline Matrix<double> HessianOf(const Matrix<float>& x) {
  const auto backend = MakeBackend("cpu", true);
  Matrix<double> h(x.cols, x.cols);
  AddGram(backend->services(), x.data.data(), x.data.data(), x.rows, &h);
  for (int64_t i = 0; i < h.rows; ++i) {
    for (int64_t j = 0; j < i; ++j) {
      h.row(j)[static_cast<size_t>(i)] = h.row(i)[static_cast<size_t>(j)];
    }
  }
  return h;
}

// Turns [A | B] into [1 | A^-1 B].
inline void Eliminate(Matrix<double>& a) {
  for (int64_t i = 0; i < a.rows; ++i) {
    const double pivot = At(a, i, i);
    for (int64_t k = i; k < a.cols; ++k) At(a, i, k) /= pivot;
    for (int64_t j = 0; j < a.rows; ++j) {
      const double factor = At(a, j, i);
      if (j == i || factor == 0) continue;
      for (int64_t k = i; k < a.cols; ++k) At(a, j, k) -= factor * At(a, i, k);
    }
  }
}

// w [N, K], inputs x [tokens, K] and, for options.gptaq > 0, as they would be without rounding.
inline Rounded RoundGptq(const Matrix<double>& w, const Matrix<float>& x, const FormatSpec& format,
                         const GptqOptions& options = {}, const FormatSpec& tail = {},
                         const Matrix<float>* exact = nullptr) {
  const auto backend = MakeBackend("cpu", true);
  Gptq gptq(std::make_unique<HostGptq>(*backend, x.cols), options);
  gptq.Add(x.data.data(), exact == nullptr ? nullptr : exact->data.data(), x.rows);
  return gptq.Round(w, format, tail);
}

}  // namespace nibble
