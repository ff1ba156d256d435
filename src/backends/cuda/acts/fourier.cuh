// SPDX-License-Identifier: Apache-2.0
// A Fourier factor (transforms/fourier.h) on one fp32 row in shared memory, by all threads of a
// block, with as much memory again: stages of Stockham's algorithm, for any order.
//
// Behind stages of radices whose product is L, place b L + k has frequency k of each L of the m
// points that are m / L apart, from b on.
//
// A stage of radix p takes p of those together:
//   y[b p L + k] = sum over q < p of e^(-2 pi i q k / (p L)) x[(b + q m / (p L)) L + k mod L]
#pragma once

#include "backends/cuda/acts/hadamard_plan.h"

namespace nibble::cuda {

// The radices of m = `points`: fours first, then prime factors, which rise.
inline FourierPlan FourierStages(int points) {
  FourierPlan plan = {.points = points};
  int rest = points;
  const auto take = [&](int radix) {
    for (; rest % radix == 0; rest /= radix) plan.radices[plan.stages++] = radix;
  };
  take(4);
  for (int prime = 2; rest > 1; ++prime) take(prime);
  return plan;
}

__host__ __device__ inline float2 ComplexProduct(float2 a, float2 b) {
  return {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x};
}
__host__ __device__ inline float2 Conjugate(float2 a) {
  return {a.x, -a.y};
}

// Place `at` of a stage's result, from x; `length` is L.
__host__ __device__ inline float2 FourierSum(const FourierPlan& f, const float2* x, int length,
                                             int radix, int at) {
  const int blocks = f.points / (length * radix), block = at / (length * radix);
  const int k = at - block * length * radix;
  const int from = block * length + k % length, stride = blocks * length, turn = k * blocks;
  float2 sum = x[from];
  for (int q = 1, angle = turn; q < radix; ++q) {
    const float2 root = f.inverse ? Conjugate(f.roots[angle]) : f.roots[angle];
    const float2 term = ComplexProduct(x[from + q * stride], root);
    sum = {sum.x + term.x, sum.y + term.y};
    angle += turn;
    if (angle >= f.points) angle -= f.points;
  }
  return sum;
}

#ifdef __CUDACC__
// Returns where the result is: row or spare. Barriers stand between the stages and behind them.
__device__ inline float* ApplyFourier(const FourierPlan& f, float* row, float* spare) {
  auto* x = reinterpret_cast<float2*>(row);
  auto* y = reinterpret_cast<float2*>(spare);
  const auto for_each = [&](const auto& work) {
    for (int i = threadIdx.x; i < f.points; i += static_cast<int>(blockDim.x)) work(i);
    __syncthreads();
  };
  if (!f.inverse) for_each([&](int i) { x[i] = ComplexProduct(x[i], f.phases[i]); });
  for (int stage = 0, length = 1; stage < f.stages; ++stage) {
    const int radix = f.radices[stage];
    for_each([&](int i) { y[i] = FourierSum(f, x, length, radix, i); });
    length *= radix;
    float2* const before = x;
    x = y, y = before;
  }
  if (f.inverse) for_each([&](int i) { x[i] = ComplexProduct(x[i], Conjugate(f.phases[i])); });
  return reinterpret_cast<float*>(x);
}
#endif

}  // namespace nibble::cuda
