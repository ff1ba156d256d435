// SPDX-License-Identifier: Apache-2.0
// DenseMath on the host, and on a GPU where there is one, against loops in fp64.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "backends/backend.h"
#include "base/rng.h"
#include "quantize/host_math.h"

namespace nibble {
namespace {

using Transposed = DenseProduct::Transposed;

std::vector<float> Random(int64_t count, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = static_cast<float>(rng.Normal());
  return values;
}

class DenseMathTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!GetParam()) {
      math_ = std::make_unique<HostMath>();
      return;
    }
    try {
      backend_ = MakeBackend("cuda:0", false);
    } catch (const Error& e) {
      GTEST_SKIP() << e.what();
    }
    math_ = backend_->MakeDenseMath();
  }

  // In the machine's memory, a copy on the host too.
  Buffer<float> There(const std::vector<float>& values) const {
    const auto count = static_cast<int64_t>(values.size());
    Buffer<float> copy(math_->allocator()), buffer(math_->allocator());
    math_->Combine(0, 1, math_->Load(values, copy), count, buffer.Grow(count));
    return buffer;
  }
  std::vector<float> Back(const Buffer<float>& buffer, size_t count) const {
    std::vector<float> values(count, std::numeric_limits<float>::quiet_NaN());
    math_->Store(buffer.data(), values);
    return values;
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<DenseMath> math_;
};

TEST_P(DenseMathTest, Multiplies) {
  constexpr int64_t kRows = 150, kInner = 70, kCols = 33;
  const std::vector<float> a = Random(kRows * kInner, 1), b = Random(kInner * kCols, 2),
                           before = Random(kRows * kCols, 3);
  for (const Transposed transposed : {Transposed::kNone, Transposed::kA, Transposed::kB}) {
    for (const bool accumulate : {false, true}) {
      const Buffer<float> at = There(a), bt = There(b);
      Buffer<float> out = There(before);
      math_->Multiply({.a = at.data(),
                       .b = bt.data(),
                       .transposed = transposed,
                       .rows = kRows,
                       .inner = kInner,
                       .cols = kCols,
                       .factor = 0.5f,
                       .accumulate = accumulate,
                       .out = out.data()});
      const std::vector<float> ours = Back(out, before.size());
      for (int64_t i = 0; i < kRows; ++i) {
        for (int64_t j = 0; j < kCols; ++j) {
          const auto at_out = static_cast<size_t>(i * kCols + j);
          double sum = 0, size = 0;
          for (int64_t k = 0; k < kInner; ++k) {
            const int64_t ia = transposed == Transposed::kA ? k * kRows + i : i * kInner + k;
            const int64_t ib = transposed == Transposed::kB ? j * kInner + k : k * kCols + j;
            const double product = double{a[static_cast<size_t>(ia)]} * b[static_cast<size_t>(ib)];
            sum += product, size += std::abs(product);
          }
          const double kept = accumulate ? before[at_out] : 0;
          // Each product passes through at most kInner + 2 roundings.
          const double bound = (kInner + 2) * 0x1p-24 * (0.5 * size + std::abs(kept));
          ASSERT_NEAR(ours[at_out], 0.5 * sum + kept, bound) << i << ", " << j;
        }
      }
    }
  }
}

TEST_P(DenseMathTest, PeakSlopesAreDerivativesOfTheSquaredNorm) {
  constexpr int64_t kGroup = 45, kCount = 20 * kGroup;
  std::vector<float> values = Random(kCount, 4);
  std::fill_n(values.begin(), kGroup, 0.0f);
  for (int64_t i = kGroup; i < 2 * kGroup; ++i) values[static_cast<size_t>(i)] *= 1e4f;
  Buffer<float> buffer = There(values);
  math_->PeakSlopes(kCount, kGroup, buffer.data());
  const std::vector<float> ours = Back(buffer, values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t first = i - i % kGroup;
    double sum = 0;
    for (size_t k = first; k < first + kGroup; ++k) sum += std::pow(double{values[k]}, 10);
    const double slope = sum == 0 ? 0 : 2 * std::pow(double{values[i]}, 9) / std::pow(sum, 0.8);
    // Of each of the kGroup terms and the factor some 20 roundings, and a power.
    ASSERT_NEAR(ours[i], slope, (kGroup + 20) * 0x1p-24 * std::abs(slope)) << i;
  }
}

TEST_P(DenseMathTest, CombinesSubtractsAndMeasures) {
  constexpr int64_t kSize = 70, kCount = kSize * kSize;
  const std::vector<float> a = Random(kCount, 5), b = Random(kCount, 6);
  const Buffer<float> at = There(a);
  Buffer<float> out = There(b);
  math_->Combine(0.75f, -2, at.data(), kCount, out.data());
  const std::vector<float> combined = Back(out, b.size());
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double kept = 0.75 * b[i], added = -2.0 * a[i];
    ASSERT_NEAR(combined[i], kept + added, 0x1p-23 * (std::abs(kept) + std::abs(added)));
    squares += double{a[i]} * a[i];
  }
  out = There(std::vector<float>(a.size(), std::numeric_limits<float>::quiet_NaN()));
  math_->Combine(0, 3, at.data(), kCount, out.data());
  EXPECT_EQ(Back(out, a.size())[7], 3 * a[7]);

  EXPECT_NEAR(math_->Length(at.data(), kCount), std::sqrt(squares),
              kCount * 0x1p-24 * std::sqrt(squares));
  math_->Skew(at.data(), kSize, out.data());
  const std::vector<float> skew = Back(out, a.size());
  for (size_t i = 0; i < kSize; ++i) {
    for (size_t j = 0; j < kSize; ++j) {
      ASSERT_EQ(skew[i * kSize + j], a[i * kSize + j] - a[j * kSize + i]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Machines, DenseMathTest, testing::Bool(),
                         [](const auto& machine) { return machine.param ? "Gpu" : "Host"; });

}  // namespace
}  // namespace nibble
