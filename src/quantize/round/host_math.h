// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "compute/dense_math.h"

namespace nibble {

// BLAS and plain loops. Results do not depend on the number of threads.
class HostMath final : public DenseMath {
 public:
  Allocator allocator() const override { return AllocateBytes; }
  void ForEach(size_t count, const std::function<void(size_t)>& task) const override;
  const float* Load(std::span<const float> values, Buffer<float>&) const override {
    return values.data();
  }
  void Store(const float* values, std::span<float> target) const override;
  void Multiply(const DenseProduct& product) const override;
  void PeakGradients(int64_t count, int64_t group, float* values) const override;
  void Skew(const float* a, int64_t n, float* out) const override;
  void Combine(float keep, float factor, const float* a, int64_t count, float* out) const override;
  double Length(const float* a, int64_t count) const override;

  void Widen(const std::byte* values, int64_t count, float* out) const override;
  void ColumnDots(const float* a, const float* b, int64_t rows, int64_t cols,
                  float* sums) const override;
  void RowPowers(const float* a, int64_t rows, int64_t cols, int64_t groups,
                 float* powers) const override;
  void NormGradients(const float* x, const float* weight, const float* gradients, int64_t rows,
                     int64_t cols, float eps, float keep, float* out) const override;
  void GateGradients(const GateSpec& gating, const float* gate, const float* up, int64_t count,
                     float* gradients, float* gate_gradients) const override;
  void TakeHead(const float* rows, int64_t tokens, int64_t stride, int64_t width,
                const HeadAngles& angles, float* head) const override;
  void PutHead(const float* head, int64_t tokens, int64_t stride, int64_t width,
               const HeadAngles& angles, float* rows) const override;
  void Softmax(const CausalBlock& block, float* scores) const override;
  void SoftmaxGradients(const CausalBlock& block, const float* p, float* gradients) const override;
  void DivergenceGradients(const float* target, int64_t rows, int64_t cols, float* logits,
                           float* divergences) const override;
  void DrawnGradients(std::span<const float> draws, int64_t cols, float* logits) const override;
};

}  // namespace nibble
