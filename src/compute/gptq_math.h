// SPDX-License-Identifier: Apache-2.0
// The operations that GPTQ (quantize/round/gptq.h) needs: sums over calibration tokens in the
// machine's memory, a factorization of them, and the loop over columns. One object serves the
// linears of one input.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "formats/format_spec.h"
#include "tensor/tensor.h"

namespace nibble {

// One matrix to round to scale * (code - zero); a grid belongs to `group` columns of a row.
struct GptqRounding {
  const Matrix<double>& weights;  // W [rows, width]
  // The matrix to round is W + correction W C (H + diag(added))^-1: with 1, the weights whose
  // outputs for the inputs `x` of Add come closest to W's for `exact` (the objective of GPTAQ, Li
  // et al. 2025).
  double correction;
  // Before a column is rounded, w -= pull (w - W): a share of what the errors of other columns made
  // of it is taken back (the first-order term of FOEM, Zheng et al. 2025). Ignored with codewords.
  double pull;
  int64_t columns;  // the first ones of W, to be rounded to codes
  int bits;
  int64_t group;  // divides columns
  // Keeps of every four codes the two whose pruning would cost most; the others mean 0 (SparseGPT,
  // Frantar and Alistarh 2023). For the order 0, 1, 2, ... only.
  bool sparse;
  std::span<float> scales;   // [rows, columns / group]
  std::span<int32_t> zeros;  // [rows, columns / group], of signed codes
  int sweeps;                // passes over all codes at the end, with H + diag(added) of Factor
  std::span<int8_t> codes;   // [rows, columns], written
  // Writes the grids of group g for some rows from `row` on, given the group's columns [.., group]
  // as they are once all columns before them have been rounded. For the order 0, 1, 2, ... only;
  // several calls may run at the same time. Empty: `scales` and `zeros` are given.
  std::function<void(int64_t g, int64_t row, std::span<const double> columns)> find_grids;
  // Written: eight columns at a time become the codeword of LatticeCode(bits) near them,
  // [rows, columns / 8], for the order 0, 1, 2, ... only. Empty: each column is rounded by itself.
  std::span<uint32_t> codewords;
  // Of the codewords; only BLAS and LAPACK have others than kE8p, with as many columns as they say.
  Codebook codebook = Codebook::kE8p;
  // Rounds the other columns, last in any order, once they have taken up the errors of all codes:
  // [rows, width - columns]. Empty: there are none.
  std::function<void(std::span<double> tail)> round_tail;
};

// Squared output error and output over the calibration tokens; E = what the codes mean (in fp32),
// or the rounded tail, minus the weights.
struct GptqLoss {
  double error;  // tr(E H E^T)
  double power;  // tr(W H W^T)
};

class GptqMath {
 public:
  virtual ~GptqMath() = default;

  // H += x^T w x and, where `exact` is given, C += (exact - x)^T w x; fp32 [tokens, width] in the
  // backend's memory. w = diag(weights), [tokens] in host memory; empty: 1. All inputs may be
  // rounded to bf16 (docs/numerics.md, "Offline arithmetic"). Sums are fp32 within a call and fp64
  // over calls.
  virtual void Add(const float* x, const float* exact, int64_t tokens,
                   std::span<const float> weights) = 0;

  // The diagonal of H, [width].
  virtual std::vector<double> Diagonal() = 0;

  // Computes the upper triangular U with (H + diag(added))^-1 = U^T U, rows and columns taken in
  // `order`. order[i] is the column that is rounded as the i-th; added [width] is in the columns'
  // own order. Returns false if H + diag(added) is not positive definite.
  virtual bool Factor(std::span<const int64_t> order, std::span<const double> added) = 0;

  // Rounds in the order of the last Factor; the error of each column moves to those behind it
  // (Frantar et al. 2022, algorithm 1). A sweep then sets each code, in the columns' own order, to
  // the one with the smallest tr(E (H + diag(added)) E^T) while the others stay; E here is what
  // codes mean minus the corrected weights.
  virtual GptqLoss Round(const GptqRounding& rounding) = 0;
};

}  // namespace nibble
