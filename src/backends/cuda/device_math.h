// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/device.h"
#include "backends/cuda/linear_algebra.h"

namespace nibble::cuda {

// DenseMath in a GPU's memory, products by cuBLAS in fp32. `algebra` and its stream must live as
// long.
class DeviceMath final : public DenseMath {
 public:
  DeviceMath(const LinearAlgebra& algebra, cudaStream_t stream)
      : algebra_(algebra), stream_(stream) {}

  Allocator allocator() const override { return AllocateDevice; }
  // One after the other: a task has work for the whole GPU.
  void ForEach(size_t count, const std::function<void(size_t)>& task) const override {
    for (size_t i = 0; i < count; ++i) task(i);
  }
  const float* Load(std::span<const float> values, Buffer<float>& copy) const override;
  void Store(const float* values, std::span<float> target) const override;
  void Multiply(const DenseProduct& product) const override { algebra_.Multiply(product); }
  void PeakSlopes(int64_t count, int64_t group, float* values) const override;
  void Skew(const float* a, int64_t n, float* out) const override;
  void Combine(float keep, float factor, const float* a, int64_t count, float* out) const override;
  double Length(const float* a, int64_t count) const override { return algebra_.Length(a, count); }

 private:
  const LinearAlgebra& algebra_;
  cudaStream_t stream_;
};

}  // namespace nibble::cuda
