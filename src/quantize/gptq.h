// SPDX-License-Identifier: Apache-2.0
// GPTQ (Frantar et al. 2022) of the linears of one input: sums over its calibration tokens, then
// each matrix. What happens to columns that were never seen, damping, the order and the grids is
// decided here, and a machine (gptq_math.h) does the rest.
#pragma once

#include <memory>
#include <vector>

#include "backends/interface/backend.h"
#include "backends/interface/gptq_math.h"
#include "quantize/round.h"

namespace nibble {

struct GptqOptions {
  bool act_order = false;  // columns by falling diagonal of H
  double damp = 0.01;      // times the mean diagonal; ten times more until H can be factored
  double gptaq = 0;        // GptqRounding::correction, less where tokens are few
  int sweeps = 0;
  int64_t tail = 0;  // the last columns, which take up errors and are rounded to nearest at the end
  bool lattice = false;  // some weights become points, whose sweeps need BLAS and LAPACK
};

class Gptq {
 public:
  // In the backend's memory, or with BLAS and LAPACK.
  Gptq(Backend& backend, int64_t width, const GptqOptions& options);
  Gptq(std::unique_ptr<GptqMath> math, const GptqOptions& options)
      : math_(std::move(math)), options_(options) {}

  // x, the inputs as the quantized network sees them, and (with options.gptaq > 0) as they would be
  // without rounding; fp32 [tokens, width] in the backend's memory.
  void Add(const float* x, const float* exact, int64_t tokens) {
    math_->Add(x, exact, tokens);
    tokens_ += tokens;
  }

  // After all calls of Add. w [rows, width]; tail: the format of the last columns.
  Rounded Round(const Matrix<double>& w, const FormatSpec& format, const FormatSpec& tail = {});

 private:
  // What Add has summed, with as much damping as that takes.
  void Factor();

  std::unique_ptr<GptqMath> math_;
  GptqOptions options_;
  int64_t tokens_ = 0;
  bool factored_ = false;
  std::vector<int64_t> unseen_;  // columns whose input was 0 in all of calibration
  double damp_ = 0;
};

}  // namespace nibble
