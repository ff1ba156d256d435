// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/dense_math.h"

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
  void PeakSlopes(int64_t count, int64_t group, float* values) const override;
  void Skew(const float* a, int64_t n, float* out) const override;
  void Combine(float keep, float factor, const float* a, int64_t count, float* out) const override;
  double Length(const float* a, int64_t count) const override;
};

}  // namespace nibble
