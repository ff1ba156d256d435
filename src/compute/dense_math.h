// SPDX-License-Identifier: Apache-2.0
// The operations with which quantization learns a rotation (quantize/learn/learn_rotation.h) or
// scales (quantize/learn/learn_scales.h): products of fp32 matrices, a few operations on their
// elements, and gradients of the network's ops. Matrices are row-major, in the memory of the
// machine that computes; each operation sees the results of those before it.
// quantize/round/host_math.h implements them on the host.
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

// RoPE tables (transforms/rope.h) for positions 0, 1, ...; null: heads are not turned.
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
  // Returns values of host memory where the operations can read them: the values
  // themselves, or `copy`, filled with them.
  virtual const float* Load(std::span<const float> values, Buffer<float>& copy) const = 0;
  // Copies values to host memory.
  virtual void Store(const float* values, std::span<float> target) const = 0;

  virtual void Multiply(const DenseProduct& product) const = 0;
  // Replaces every run v of `group` values by the gradient of |v|_10^2.
  virtual void PeakGradients(int64_t count, int64_t group, float* values) const = 0;
  // out = a - a^T, [n, n].
  virtual void Skew(const float* a, int64_t n, float* out) const = 0;
  // out = keep * out + factor * a, [count]; with keep = 0 `out` may hold anything.
  virtual void Combine(float keep, float factor, const float* a, int64_t count,
                       float* out) const = 0;
  // sqrt(sum of squares), [count].
  virtual double Length(const float* a, int64_t count) const = 0;

  // Gradients of the network's ops. "Gradients" of a tensor are the gradient of a loss with respect
  // to that tensor.

  // Intermediate values of a backend (compute/backend.h) as fp32.
  virtual void Widen(const std::byte* values, int64_t count, float* out) const = 0;
  // sums[c] = sum over rows r of a[r, c] b[r, c].
  virtual void ColumnDots(const float* a, const float* b, int64_t rows, int64_t cols,
                          float* sums) const = 0;
  // powers[g, r] = the mean of a[r, c]^2 in the g-th of `groups` runs of columns: those from
  // g cols / groups on. a [rows, cols], powers [groups, rows].
  virtual void RowPowers(const float* a, int64_t rows, int64_t cols, int64_t groups,
                         float* powers) const = 0;
  // For y = x / sqrt(mean(x^2) + eps) * weight, [rows, cols], weight [cols] or null: out = keep *
  // out + the gradients of x, where `gradients` are those of y; with keep = 0 `out` may hold
  // anything, or be `gradients`.
  virtual void NormGradients(const float* x, const float* weight, const float* gradients,
                             int64_t rows, int64_t cols, float eps, float keep,
                             float* out) const = 0;
  // Turns `gradients` from those of the GLU output of gate and up into those of up; gate_gradients
  // receives those of gate.
  virtual void GateGradients(const GateSpec& gating, const float* gate, const float* up,
                             int64_t count, float* gradients, float* gate_gradients) const = 0;
  // head [tokens, width] = the first `width` columns of rows [tokens, stride], turned by the
  // angles; PutHead turns back and writes those columns.
  virtual void TakeHead(const float* rows, int64_t tokens, int64_t stride, int64_t width,
                        const HeadAngles& angles, float* head) const = 0;
  virtual void PutHead(const float* head, int64_t tokens, int64_t stride, int64_t width,
                       const HeadAngles& angles, float* rows) const = 0;
  // Scores [rows, keys] become probabilities, 0 where a query does not see the key.
  virtual void Softmax(const CausalBlock& block, float* scores) const = 0;
  // Gradients of probabilities p become those of scores.
  virtual void SoftmaxGradients(const CausalBlock& block, const float* p,
                                float* gradients) const = 0;
  // For each row, with q = softmax(target) and p = softmax(logits): divergences = sum q log(q / p),
  // and logits become its gradients p - q. [rows, cols]
  virtual void DivergenceGradients(const float* target, int64_t rows, int64_t cols, float* logits,
                                   float* divergences) const = 0;
  // For each row: draws a label from p = softmax(logits), and logits become the gradients of -log
  // p[label]. draws: a number in [0, 1) for each row, which decides the label, in the program's
  // memory; logits [draws, cols].
  virtual void DrawnGradients(std::span<const float> draws, int64_t cols, float* logits) const = 0;
};

}  // namespace nibble
