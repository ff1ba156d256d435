// SPDX-License-Identifier: Apache-2.0
// Rounding a float weight matrix to a format: to nearest, or (gptq.h) by GPTQ.
#pragma once

#include "models/plan.h"
#include "quantize/round/weight_grid.h"

namespace nibble {

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

// Rounds a matrix by itself, to codes or fp16.
PackedWeights RoundColumns(const Matrix<double>& w, const FormatSpec& format);

// Columns [first, first + count) of a matrix.
Matrix<double> Columns(const Matrix<double>& w, int64_t first, int64_t count);
// Decoded weights and, behind them, tail: fp32 [N, K].
Matrix<float> DecodeBoth(const PackedWeights& weights, const PackedWeights& tail);

}  // namespace nibble
