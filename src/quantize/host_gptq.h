// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "backends/interface/gptq_math.h"
#include "quantize/gram.h"

namespace nibble {

// With BLAS and LAPACK. Results do not depend on the number of threads.
class HostGptq final : public GptqMath {
 public:
  HostGptq(Backend& backend, int64_t width) : backend_(backend), hessian_(backend, width) {}

  void Add(const float* x, const float* exact, int64_t tokens) override;
  std::vector<double> Diagonal() override;
  bool Factor(std::span<const int64_t> order, std::span<const double> added) override;
  GptqLoss Round(const GptqRounding& rounding) override;

 private:
  Matrix<double> Corrected(const GptqRounding& r) const;
  // Rows from `first` on; `rows` is their working copy, in rounding order.
  void RoundRows(const GptqRounding& r, int64_t first, Matrix<double>& rows) const;
  double RoundWeight(const GptqRounding& r, int64_t n, int64_t i, int64_t end, std::span<double> w,
                     uint32_t& kept) const;
  void Sweep(const GptqRounding& r, Matrix<double>& errors) const;
  double Power(const Matrix<double>& m) const;

  Backend& backend_;
  Gram hessian_;
  std::optional<Gram> correction_;
  std::vector<float> difference_;  // [tokens, width]
  std::vector<int64_t> order_;     // of Factor
  std::vector<double> added_;
  Matrix<double> u_;
};

}  // namespace nibble
