// SPDX-License-Identifier: Apache-2.0
#include "transforms/fourier.h"

#include <kissfft/kissfft.hh>
#include <map>
#include <numbers>

#include "base/rng.h"

namespace nibble {
namespace {

using Complex = std::complex<double>;

// What one thread needs of an order; kissfft has memory of its own even where it is constant.
struct ThreadFourier {
  explicit ThreadFourier(int64_t order)
      : fft(static_cast<size_t>(order / 2), false),
        phases(FourierPhases(order)),
        in(phases.size()),
        out(phases.size()) {}

  kissfft<double> fft;
  std::vector<Complex> phases, in, out;
};

ThreadFourier& OfThisThread(int64_t order) {
  thread_local std::map<int64_t, ThreadFourier> orders;  // a program uses a handful
  return orders.try_emplace(order, order).first->second;
}

// The transposed factor is the inverse of the transform, then of the phases. As F is symmetric,
// conj(F) x = conj(F conj(x)), and one table of angles serves both.
template <typename T>
void ApplyAlong(const TransformFactor& factor, int64_t stride, double scale, std::span<T> x) {
  ThreadFourier& f = OfThisThread(factor.order);
  const int64_t columns = static_cast<int64_t>(x.size()) / factor.order;
  for (int64_t c = 0; c < columns; ++c) {
    T* const column = x.data() + c / stride * factor.order * stride + c % stride;
    T* value = column;
    for (size_t j = 0; j < f.in.size(); ++j, value += 2 * stride) {
      const Complex z(value[0], value[stride]);
      f.in[j] = factor.transposed ? std::conj(z) : z * f.phases[j];
    }
    f.fft.transform(f.in.data(), f.out.data());
    value = column;
    for (size_t k = 0; k < f.out.size(); ++k, value += 2 * stride) {
      const Complex y = factor.transposed ? std::conj(f.out[k] * f.phases[k]) : f.out[k];
      value[0] = static_cast<T>(scale * y.real());
      value[stride] = static_cast<T>(scale * y.imag());
    }
  }
}

}  // namespace

std::vector<Complex> FourierPhases(int64_t order) {
  Rng rng(static_cast<uint64_t>(order));
  std::vector<Complex> phases(static_cast<size_t>(order / 2));
  for (Complex& phase : phases) phase = std::polar(1.0, 2 * std::numbers::pi * rng.Uniform());
  return phases;
}

std::vector<double> FourierMatrix(const TransformFactor& factor) {
  const auto n = static_cast<size_t>(factor.order), m = n / 2;
  const std::vector<Complex> phases = FourierPhases(factor.order);
  std::vector<Complex> roots;
  for (size_t j = 0; j < m; ++j) {
    roots.push_back(
        std::polar(1.0, -2 * std::numbers::pi * static_cast<double>(j) / static_cast<double>(m)));
  }
  std::vector<double> matrix(n * n);
  for (size_t k = 0; k < m; ++k) {
    for (size_t j = 0; j < m; ++j) {
      const Complex entry = roots[j * k % m] * phases[j];
      double* const block = matrix.data() + 2 * k * n + 2 * j;
      block[0] = block[n + 1] = entry.real();
      block[n] = entry.imag(), block[1] = -entry.imag();
    }
  }
  return matrix;
}

void ApplyFourier(const TransformFactor& factor, int64_t stride, double scale,
                  std::span<double> x) {
  ApplyAlong(factor, stride, scale, x);
}
void ApplyFourier(const TransformFactor& factor, int64_t stride, double scale, std::span<float> x) {
  ApplyAlong(factor, stride, scale, x);
}

}  // namespace nibble
