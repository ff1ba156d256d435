// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "compute/backend.h"
#include "compute/gptq_math.h"
#include "quantize/round/gram.h"

namespace nibble {

// GptqMath with BLAS and LAPACK in host memory. Results do not depend on the number of
// threads. The Hessian of a wide input is larger than all weights, so there is one such matrix: H
// below the diagonal, U on and above it.
class HostGptq final : public GptqMath {
 public:
  HostGptq(Backend& backend, int64_t width)
      : backend_(backend), services_(backend.services()), hessian_(width, width) {}

  void Add(const float* x, const float* exact, int64_t tokens,
           std::span<const float> weights) override;
  std::vector<double> Diagonal() override;
  bool Factor(std::span<const int64_t> order, std::span<const double> added) override;
  GptqLoss Round(const GptqRounding& rounding) override;

 private:
  // These work on some rows from `first` on; `rows` is a working copy in rounding order.
  Matrix<double> Corrected(const GptqRounding& r, int64_t first, int64_t count) const;
  void RoundRows(const GptqRounding& r, int64_t first, Matrix<double>& rows) const;
  double RoundWeight(const GptqRounding& r, int64_t n, int64_t i, int64_t end, std::span<double> w,
                     uint32_t& kept) const;
  Matrix<double> DampedBlock(int64_t begin, int64_t end) const;
  void Sweep(const GptqRounding& r, int64_t first, Matrix<double>& errors) const;
  double Power(const Matrix<double>& m) const;

  Backend& backend_;
  MathServices& services_;
  Matrix<double> hessian_;                    // from Factor on with U
  std::vector<double> diagonal_;              // of H, from then on
  Matrix<double> correction_;                 // [width, width] or empty
  std::vector<float> difference_, weighted_;  // [tokens, width]
  std::vector<int64_t> order_;                // of Factor
  std::vector<double> added_;
};

}  // namespace nibble
