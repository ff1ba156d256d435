// SPDX-License-Identifier: Apache-2.0
// The stages of the kernel, on the host, against the transform in fp64.
#include "backends/cuda/acts/fourier.cuh"

#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <numbers>

#include "backends/backend_testing.h"
#include "transforms/fourier.h"

namespace nibble::cuda {
namespace {

// Roots of the plan from the definition; the tables of the device come from device_hadamard.cc.
std::vector<float2> Roots(int points) {
  std::vector<float2> roots;
  for (int j = 0; j < points; ++j) {
    const double angle = -2 * std::numbers::pi * j / points;
    roots.push_back({static_cast<float>(std::cos(angle)), static_cast<float>(std::sin(angle))});
  }
  return roots;
}

TEST(FourierStagesTest, RadicesHaveTheProduct) {
  for (int points = 1; points <= kMaxFourierOrder / 2; ++points) {
    const FourierPlan plan = FourierStages(points);
    ASSERT_LE(plan.stages, kMaxFourierStages);
    int product = 1;
    for (int i = 0; i < plan.stages; ++i) product *= plan.radices[i];
    ASSERT_EQ(product, points);
  }
}

// A sum in fp32 has at most `radix` roundings of a product, a root and an addition in each stage,
// which add as random numbers do; 2^-24 each, of the size of a whole row.
TEST(FourierStagesTest, StagesAreTheTransform) {
  Rng rng(3);
  for (const int points : {1, 2, 3, 4, 6, 12, 43, 86, 288, 320, 1003, 2560, 5504, 7168, 14336}) {
    for (const bool inverse : {false, true}) {
      FourierPlan plan = FourierStages(points);
      const std::vector<float2> roots = Roots(points);
      plan.inverse = inverse, plan.roots = roots.data();
      const auto phases = FourierPhases(2 * points);
      std::vector<double> exact(static_cast<size_t>(2 * points));
      for (double& value : exact) value = static_cast<float>(rng.Normal());
      std::vector<float2> x, y(static_cast<size_t>(points));
      for (size_t i = 0; i < y.size(); ++i) {
        const std::complex<double> z(exact[2 * i], exact[2 * i + 1]);
        const auto turned = inverse ? z : z * phases[i];
        x.push_back({static_cast<float>(turned.real()), static_cast<float>(turned.imag())});
      }
      for (int stage = 0, length = 1; stage < plan.stages; length *= plan.radices[stage++]) {
        for (int i = 0; i < points; ++i) {
          y[static_cast<size_t>(i)] = FourierSum(plan, x.data(), length, plan.radices[stage], i);
        }
        std::swap(x, y);
      }
      ApplyFourier({2 * points, FactorKind::kFourier, inverse}, 1, 1, std::span(exact));
      double errors = 0, squares = 0, roundings = 2;
      for (int i = 0; i < plan.stages; ++i) roundings += 3.0 * plan.radices[i];
      for (size_t i = 0; i < x.size(); ++i) {
        std::complex<double> z(x[i].x, x[i].y);
        if (inverse) z *= std::conj(phases[i]);
        const std::complex<double> expected(exact[2 * i], exact[2 * i + 1]);
        errors += std::norm(z - expected), squares += std::norm(expected);
      }
      ASSERT_LE(std::sqrt(errors / squares), std::sqrt(roundings) * 0x1p-24) << points;
    }
  }
}

}  // namespace
}  // namespace nibble::cuda
