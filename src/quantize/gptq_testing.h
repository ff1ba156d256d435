// SPDX-License-Identifier: Apache-2.0
// Random weights, and GPTQ of one matrix with BLAS.
#pragma once

#include "quantize/gptq.h"
#include "quantize/host_gptq.h"
#include "tensor/random_testing.h"

namespace nibble {

inline Matrix<double> RandomMatrix(int64_t rows, int64_t cols, uint64_t seed) {
  Rng rng(seed);
  return RandomMatrix(rows, cols, rng);
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
