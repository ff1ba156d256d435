// SPDX-License-Identifier: Apache-2.0
// What learning a rotation (quantize/learn_rotation.h) or scales (quantize/learn_scales.h) asks of
// a machine: products of fp32 matrices, a few operations on their elements, and derivatives of the
// network's ops. Matrices are row-major, in this machine's memory; one operation sees what those
// before it wrote. On the host: quantize/host_math.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "base/aligned.h"
#include "formats/gate_spec.h"

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

// Of RoPE (transforms/rope.h), for positions 0, 1, ..; none: heads are not turned.
struct HeadAngles {
  const float *cos = nullptr, *sin = nullptr;  // [positions, count]
  int64_t count = 0;
};

// Keys that a block of queries sees: query r stands at position first + r, keys at 0, 1, ...
struct CausalBlock {
  int64_t first, rows;  // of the queries
  int64_t window;       // keys that a query sees at most, itself included; 0 = all
  int64_t keys() const { return first + rows; }
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

  // Derivatives of the network's ops. "Slopes" of a tensor are those of a loss by its elements.

  // Intermediate values of a backend (backends/interface/backend.h) as fp32.
  virtual void Widen(const std::byte* values, int64_t count, float* out) const = 0;
  // sums[c] = sum over rows r of a[r, c] b[r, c].
  virtual void ColumnDots(const float* a, const float* b, int64_t rows, int64_t cols,
                          float* sums) const = 0;
  // powers[g, r] = the mean of a[r, c]^2 in the g-th of `groups` runs of columns: those from
  // g cols / groups on. a [rows, cols], powers [groups, rows].
  virtual void RowPowers(const float* a, int64_t rows, int64_t cols, int64_t groups,
                         float* powers) const = 0;
  // Of y = x / sqrt(mean(x^2) + eps) * weight, [rows, cols], weight [cols] or null: out = keep *
  // out
  // + the slopes of x, given those of y; with keep = 0 `out` may hold anything, or be the latter.
  virtual void NormSlopes(const float* x, const float* weight, const float* slopes, int64_t rows,
                          int64_t cols, float eps, float keep, float* out) const = 0;
  // Of what gate lets through of up: its slopes become those of up; gate_slopes receives the
  // others.
  virtual void GateSlopes(const GateSpec& gating, const float* gate, const float* up, int64_t count,
                          float* slopes, float* gate_slopes) const = 0;
  // head [tokens, width] = that part of rows [tokens, stride], turned by the angles; PutHead turns
  // back and writes the part.
  virtual void TakeHead(const float* rows, int64_t tokens, int64_t stride, int64_t width,
                        const HeadAngles& angles, float* head) const = 0;
  virtual void PutHead(const float* head, int64_t tokens, int64_t stride, int64_t width,
                       const HeadAngles& angles, float* rows) const = 0;
  // Scores [rows, keys] become probabilities, 0 where a query does not see the key.
  virtual void Softmax(const CausalBlock& block, float* scores) const = 0;
  // Slopes of probabilities p become those of scores.
  virtual void SoftmaxSlopes(const CausalBlock& block, const float* p, float* slopes) const = 0;
  // Row by row, with q = softmax(target) and p = softmax(logits): divergences = sum q log(q / p),
  // and logits become its slopes p - q. [rows, cols]
  virtual void DivergenceSlopes(const float* target, int64_t rows, int64_t cols, float* logits,
                                float* divergences) const = 0;
  // Row by row, of -log p[label] with p = softmax(logits) and a label drawn from p: logits become
  // the slopes. draws: of each row a number in [0, 1) that decides which, in the program's memory;
  // logits [draws, cols].
  virtual void DrawnSlopes(std::span<const float> draws, int64_t cols, float* logits) const = 0;
};

}  // namespace nibble
