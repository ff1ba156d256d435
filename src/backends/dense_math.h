// SPDX-License-Identifier: Apache-2.0
// What learning a rotation (quantize/learn_rotation.h) asks of a machine: products of fp32 matrices
// and a few operations on their elements. Matrices are row-major, in this machine's memory; one
// operation sees what those before it wrote. On the host: quantize/host_math.h.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "base/aligned.h"

namespace nibble {

// out [rows, cols] = factor * a b (+ out), with the operand that `transposed` names stored the
// other way round.
struct DenseProduct {
  enum class Transposed { kNone, kA, kB };
  const float *a, *b;  // [rows, inner], [inner, cols]
  Transposed transposed = Transposed::kNone;
  int64_t rows, inner, cols;
  float factor = 1;
  bool accumulate = false;
  float* out;
};

class DenseMath {
 public:
  virtual ~DenseMath() = default;

  virtual Allocator allocator() const = 0;
  // Calls task(0) to task(count - 1), at the same time where there are cores for it.
  virtual void ForEach(size_t count, const std::function<void(size_t)>& task) const = 0;
  // Values of the program's memory where the operations read them: themselves, or a copy.
  virtual const float* Load(std::span<const float> values, Buffer<float>& copy) const = 0;
  // To the program's memory.
  virtual void Store(const float* values, std::span<float> target) const = 0;

  virtual void Multiply(const DenseProduct& product) const = 0;
  // Of every run of `group` values v the derivatives of |v|_10^2, in place.
  virtual void PeakSlopes(int64_t count, int64_t group, float* values) const = 0;
  // out = a - a^T, [n, n].
  virtual void Skew(const float* a, int64_t n, float* out) const = 0;
  // out = keep * out + factor * a, [count]; with keep = 0 `out` may hold anything.
  virtual void Combine(float keep, float factor, const float* a, int64_t count,
                       float* out) const = 0;
  // sqrt(sum of squares), [count].
  virtual double Length(const float* a, int64_t count) const = 0;
};

}  // namespace nibble
