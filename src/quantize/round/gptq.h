// SPDX-License-Identifier: Apache-2.0
// GPTQ (Frantar et al. 2022) of the linears of one input: sums over its calibration tokens, then
// each matrix. What happens to columns that were never seen, damping, the order and the grids is
// decided here, and a machine (gptq_math.h) does the rest.
#pragma once

#include <memory>
#include <vector>

#include "compute/backend.h"
#include "compute/gptq_math.h"
#include "quantize/round/round.h"

namespace nibble {

struct GptqOptions {
  bool act_order = false;  // columns by falling diagonal of H
  double damp = 0.01;      // times the mean diagonal; ten times more until H can be factored
  double gptaq = 0;        // GptqRounding::correction, less where tokens are few
  double foem = 0;         // GptqRounding::pull
  int sweeps = 0;
  int64_t tail = 0;  // the last columns, which take up errors and are rounded to nearest at the end
  bool host = false;  // some weights become codewords that need BLAS and LAPACK (NeedsHost)
};

// Returns whether no machine but the host rounds to the format: sweeps over codewords, and
// codebooks for comparison.
inline bool NeedsHost(const FormatSpec& format, int sweeps) {
  return format.compared() || (format.lattice() && sweeps > 0);
}

class Gptq {
 public:
  // Sums lie in the backend's memory where it has math for GPTQ; else BLAS and LAPACK make them in
  // the program's. `groups`: of rows, each with a Hessian of its own, where every token has a
  // weight for each.
  Gptq(Backend& backend, int64_t width, const GptqOptions& options, int64_t groups = 1);
  Gptq(std::unique_ptr<GptqMath> math, const GptqOptions& options) : options_(options) {
    groups_.push_back({std::move(math)});
  }

  // x, the inputs as the quantized network sees them, and (with options.gptaq > 0) as they would be
  // without rounding; fp32 [tokens, width] in the backend's memory.
  void Add(const float* x, const float* exact, int64_t tokens) {
    for (Group& group : groups_) group.math->Add(x, exact, tokens, {});
    tokens_ += tokens;
  }
  // Adds with a weight for each token and each group of rows: the columns of weights [groups, ..]
  // from `first` on.
  void Add(const float* x, const float* exact, int64_t tokens, const Matrix<float>& weights,
           int64_t first);

  // Rounds w [rows, width], after all calls of Add; group g has the rows from g rows / groups on.
  // `tail`: the format of the last columns.
  Rounded Round(const Matrix<double>& w, const FormatSpec& format, const FormatSpec& tail = {});

 private:
  struct Group {
    std::unique_ptr<GptqMath> math;
    bool factored = false;
    std::vector<int64_t> unseen = {};  // columns whose input was 0 in all of calibration
    double damp = 0;
  };
  // Factors the Hessian that Add has summed, with as much damping as that takes.
  void Factor(Group& group) const;

  std::vector<Group> groups_;
  GptqOptions options_;
  int64_t tokens_ = 0;
};

}  // namespace nibble
