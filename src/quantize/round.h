// SPDX-License-Identifier: Apache-2.0
// Rounding a float weight matrix to a format: to nearest, or by GPTQ.
#pragma once

#include <vector>

#include "models/plan.h"
#include "quantize/weight_grid.h"

namespace nibble {

struct GptqOptions {
  bool act_order = false;
  double damp = 0.01;
  double gptaq = 0;
  int sweeps = 0;  // passes of SweepCodes behind it (sweep.h)
  TailPlan tail;   // the last columns: they take up errors, and are rounded to nearest at the end
};

struct Rounded {
  PackedWeights weights;
  PackedWeights tail;  // cols = 0: none
  // tr(E H E^T) / tr(W H W^T): squared output error over squared output on the calibration data
  // (H = identity for rounding to nearest).
  double relative_error = 0;
  double damp = 0;  // GPTQ: the damping that made H factorable
};

// Every weight to its nearest code, the smaller two of four to 0 in a sparse format; those of the
// last columns in the tail's format, where 16 bits mean fp16.
Rounded RoundNearest(const Matrix<double>& w, const FormatSpec& format, const TailPlan& tail = {});

// The same for a matrix by itself, codes or fp16.
PackedWeights RoundColumns(const Matrix<double>& w, const FormatSpec& format);

// Columns [first, first + count) of a matrix.
Matrix<double> Columns(const Matrix<double>& w, int64_t first, int64_t count);
// Decoded weights and, behind them, tail: fp32 [N, K].
Matrix<float> DecodeBoth(const PackedWeights& weights, const PackedWeights& tail);

// GPTQ (Frantar et al. 2022, algorithm 1). w [N, K]; hessian [K, K] = X^T X up to a factor, X
// [tokens, K]. The error of each column is spread over the columns that are not rounded yet, with
// the Cholesky factor of the inverse Hessian; damping grows tenfold until the factorization works.
// Of a sparse format, the two of four columns that cost least are pruned when the first of them is
// due (SparseGPT, Frantar and Alistarh 2023); act_order must be off.
// correction [K, K] = (X_fp - X)^T X by the same factor, or null (GPTAQ, Li et al. 2025).
Rounded RoundGptq(Matrix<double> w, const Matrix<double>& hessian, const Matrix<double>* correction,
                  const FormatSpec& format, const GptqOptions& options);

}  // namespace nibble
