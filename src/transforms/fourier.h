// SPDX-License-Identifier: Apache-2.0
// The randomized Fourier transform of QuIP# (Tseng et al. 2024, appendix A.2), for any even order
// n.
//
// Neighbours are complex numbers z_j = x[2 j] + i x[2 j + 1], m = n / 2 of them; each is multiplied
// by a phase, and their discrete Fourier transform follows:
//   y_k = sum_j e^(-2 pi i j k / m) p_j z_j,  p_j = e^(2 pi i u_j)
//
// As a map of n real numbers it is a matrix with orthogonal rows of squared length m.
//
// The phases belong to the factor, for a gated product lets none pass into the weights: u_j are the
// first m numbers that Rng(n).Uniform() gives. A checkpoint stores the order alone, so they may not
// change without a new name.
#pragma once

#include <complex>
#include <cstdint>
#include <span>
#include <vector>

#include "transforms/transform_factor.h"

namespace nibble {

inline constexpr int64_t kMaxFourierOrder = 65536;

// p_j above, [order / 2].
std::vector<std::complex<double>> FourierPhases(int64_t order);

// The matrix [order, order], without the factor's `transposed`, for any even order.
std::vector<double> FourierMatrix(const TransformFactor& factor);

// Views x as [?, order, stride] and applies `scale` times the factor along the middle axis, in
// place. Sums are in fp64 for both types: KissFFT's code is scalar, so that fp32 is no faster.
// O(n log n) where the prime factors of m are small, O(n p) for a prime p. Thread-safe.
void ApplyFourier(const TransformFactor& factor, int64_t stride, double scale, std::span<double> x);
void ApplyFourier(const TransformFactor& factor, int64_t stride, double scale, std::span<float> x);

}  // namespace nibble
