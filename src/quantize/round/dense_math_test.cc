// SPDX-License-Identifier: Apache-2.0
// DenseMath on the host, and on a GPU where there is one, against loops in fp64.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "base/rng.h"
#include "compute/backend.h"
#include "compute/gpu_testing.h"
#include "compute/math_services.h"
#include "quantize/round/host_math.h"
#include "transforms/rope.h"

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
    if (!(backend_ = GpuOrNull())) GTEST_SKIP() << "needs a GPU";
    math_ = backend_->services().MakeDense();
  }

  // A copy of `values` in the machine's memory, also on the host.
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

TEST_P(DenseMathTest, PeakGradientsAreDerivativesOfTheSquaredNorm) {
  constexpr int64_t kGroup = 45, kCount = 20 * kGroup;
  std::vector<float> values = Random(kCount, 4);
  std::fill_n(values.begin(), kGroup, 0.0f);
  for (int64_t i = kGroup; i < 2 * kGroup; ++i) values[static_cast<size_t>(i)] *= 1e4f;
  Buffer<float> buffer = There(values);
  math_->PeakGradients(kCount, kGroup, buffer.data());
  const std::vector<float> ours = Back(buffer, values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t first = i - i % kGroup;
    double sum = 0;
    for (size_t k = first; k < first + kGroup; ++k) sum += std::pow(double{values[k]}, 10);
    const double gradient = sum == 0 ? 0 : 2 * std::pow(double{values[i]}, 9) / std::pow(sum, 0.8);
    // The bound is for the sum of kGroup terms and some 20 roundings of a term, the factor and the
    // power.
    ASSERT_NEAR(ours[i], gradient, (kGroup + 20) * 0x1p-24 * std::abs(gradient)) << i;
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

// d loss / d values[i], by central differences in fp64.
double GradientOf(std::vector<double> values, size_t i,
                  const std::function<double(const std::vector<double>&)>& loss) {
  constexpr double kStep = 1e-5;
  const double at = values[i];
  values[i] = at + kStep;
  const double above = loss(values);
  values[i] = at - kStep;
  return (above - loss(values)) / (2 * kStep);
}

std::vector<double> Wide(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

constexpr double kUlp = 0x1p-24, kDifference = 1e-8;  // of one rounding; of central differences

TEST_P(DenseMathTest, WidensIntermediatesAndSumsColumns) {
  constexpr int64_t kRows = 37, kCols = 45;
  const bool narrow = GetParam();  // bf16 on a GPU
  std::vector<float> values = Random(kRows * kCols, 7);
  std::vector<std::byte> bytes;
  for (float& v : values) {
    uint32_t bits = std::bit_cast<uint32_t>(v);
    if (narrow) v = std::bit_cast<float>(bits &= 0xFFFF0000);
    for (int i = narrow ? 2 : 0; i < 4; ++i) {
      bytes.push_back(static_cast<std::byte>(bits >> (8 * i) & 0xFF));
    }
  }
  const Allocator allocate = math_->allocator();
  AlignedBytes there = allocate(bytes.size());
  if (narrow) {
    backend_->Write(bytes.data(), bytes.size(), there.get());
  } else {
    std::ranges::copy(bytes, there.get());
  }
  Buffer<float> wide = There(Random(kRows * kCols, 8));
  math_->Widen(there.get(), kRows * kCols, wide.data());
  EXPECT_EQ(Back(wide, values.size()), values);

  const std::vector<float> b = Random(kRows * kCols, 9);
  Buffer<float> sums = There(Random(kCols, 10));
  math_->ColumnDots(wide.data(), There(b).data(), kRows, kCols, sums.data());
  const std::vector<float> ours = Back(sums, kCols);
  for (size_t c = 0; c < kCols; ++c) {
    double sum = 0, size = 0;
    for (size_t r = 0; r < kRows; ++r) {
      const double product = double{values[r * kCols + c]} * b[r * kCols + c];
      sum += product, size += std::abs(product);
    }
    ASSERT_NEAR(ours[c], sum, (kRows + 1) * kUlp * size) << c;
  }
}

TEST_P(DenseMathTest, RowPowersAreMeansOfSquares) {
  constexpr size_t kRows = 5, kCols = 700, kGroups = 3;
  const std::vector<float> a = Random(kRows * kCols, 31);
  Buffer<float> powers = There(Random(kGroups * kRows, 32));
  math_->RowPowers(There(a).data(), kRows, kCols, kGroups, powers.data());
  const std::vector<float> ours = Back(powers, kGroups * kRows);
  for (size_t g = 0; g < kGroups; ++g) {
    const size_t begin = g * kCols / kGroups, end = (g + 1) * kCols / kGroups;
    for (size_t r = 0; r < kRows; ++r) {
      double sum = 0;
      for (size_t c = begin; c < end; ++c) sum += double{a[r * kCols + c]} * a[r * kCols + c];
      const double mean = sum / static_cast<double>(end - begin);
      ASSERT_NEAR(ours[g * kRows + r], mean, kCols * kUlp * mean) << g << ", " << r;
    }
  }
}

TEST_P(DenseMathTest, NormGradientsAreDerivatives) {
  constexpr int64_t kRows = 3, kCols = 45;
  constexpr float kEps = 0.01f, kKeep = 0.5f;
  const std::vector<float> x = Random(kRows * kCols, 11), s = Random(kRows * kCols, 12),
                           before = Random(kRows * kCols, 13), weight = Random(kCols, 18);
  for (const float keep : {0.0f, kKeep}) {  // and then with weights
    Buffer<float> out = There(before);
    const Buffer<float> weights = There(weight);
    math_->NormGradients(There(x).data(), keep == 0 ? nullptr : weights.data(), There(s).data(),
                         kRows, kCols, kEps, keep, out.data());
    const std::vector<float> ours = Back(out, x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t first = i - i % kCols;
      const double gradient = GradientOf(Wide(x), i, [&](const std::vector<double>& v) {
        double squares = 0, sum = 0;
        for (size_t c = first; c < first + kCols; ++c) {
          squares += v[c] * v[c];
          sum += v[c] * s[c] * (keep == 0 ? 1 : weight[c - first]);
        }
        return sum / std::sqrt(squares / kCols + kEps);
      });
      // Sums of kCols products, and a few roundings of terms of size 4 at most.
      ASSERT_NEAR(ours[i], keep * before[i] + gradient, (kCols + 10) * kUlp * 4 + kDifference) << i;
    }
  }
}

TEST_P(DenseMathTest, GateGradientsAreDerivatives) {
  constexpr int64_t kCount = 300;
  const std::vector<float> gate = Random(kCount, 14), up = Random(kCount, 15),
                           s = Random(kCount, 16);
  for (const GateSpec& gating : {kSilu, kGelu}) {
    Buffer<float> gradients = There(s), gate_gradients = There(Random(kCount, 17));
    math_->GateGradients(gating, There(gate).data(), There(up).data(), kCount, gradients.data(),
                         gate_gradients.data());
    const std::vector<float> by_up = Back(gradients, gate.size()),
                             by_gate = Back(gate_gradients, gate.size());
    for (size_t i = 0; i < gate.size(); ++i) {
      const auto gated = [&](double g, double u) {
        const double opening = g * (gating.linear + gating.cubic * g * g);
        return s[i] * g / (1 + std::exp(-opening)) * u;
      };
      const double dg =
          GradientOf({gate[i], up[i]}, 0, [&](const auto& v) { return gated(v[0], v[1]); });
      const double du =
          GradientOf({gate[i], up[i]}, 1, [&](const auto& v) { return gated(v[0], v[1]); });
      // The bound allows some ten roundings of values that are at most a few times as large as the
      // result.
      ASSERT_NEAR(by_up[i], du, 10 * kUlp * (1 + std::abs(du)) + kDifference) << i;
      ASSERT_NEAR(by_gate[i], dg, 40 * kUlp * (1 + std::abs(s[i] * up[i])) + kDifference) << i;
    }
  }
}

TEST_P(DenseMathTest, HeadsAreTurnedAndTurnedBack) {
  constexpr int64_t kTokens = 9, kStride = 50, kWidth = 20, kOffset = 7;
  const RopeTable table = BuildRope({.theta = 100, .head_dim = 16}, kTokens);  // 4 do not turn
  const Buffer<float> cos = There(table.cos.data), sin = There(table.sin.data);
  const std::vector<float> rows = Random(kTokens * kStride, 18);
  const Buffer<float> from = There(rows);
  for (const HeadAngles& turn : {HeadAngles{}, HeadAngles{cos.data(), sin.data(), 8}}) {
    Buffer<float> head = There(Random(kTokens * kWidth, 19));
    math_->TakeHead(from.data() + kOffset, kTokens, kStride, kWidth, turn, head.data());
    const std::vector<float> ours = Back(head, kTokens * kWidth);
    for (int64_t t = 0; t < kTokens; ++t) {
      const float* x = rows.data() + t * kStride + kOffset;
      for (int64_t i = 0; i < kWidth; ++i) {
        double value = x[i];
        if (i < 2 * turn.count) {
          const double angle = static_cast<double>(t) * std::pow(100.0, -(i % 8) / 8.0);
          const double other = i < 8 ? -x[i + 8] : x[i - 8];
          value = x[i] * std::cos(angle) + other * std::sin(angle);
        }
        // The table's angles are exact to a few units in the last place of fp32.
        ASSERT_NEAR(ours[static_cast<size_t>(t * kWidth + i)], value, 1e-5) << t << ", " << i;
      }
    }
    const std::vector<float> before = Random(kTokens * kStride, 20);
    Buffer<float> back = There(before);
    math_->PutHead(head.data(), kTokens, kStride, kWidth, turn, back.data() + kOffset);
    const std::vector<float> put = Back(back, rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      const int64_t column = static_cast<int64_t>(i) % kStride - kOffset;
      const bool inside = column >= 0 && column < kWidth;
      ASSERT_NEAR(put[i], inside ? rows[i] : before[i], inside ? 8 * kUlp * 5 : 0) << i;
    }
  }
}

TEST_P(DenseMathTest, SoftmaxAndItsGradients) {
  for (const int64_t window : {0, 5}) {
    const CausalBlock block = {7, 6, window};
    const auto keys = static_cast<size_t>(block.keys());
    const std::vector<float> scores = Random(block.rows * block.keys(), 21),
                             s = Random(block.rows * block.keys(), 22);
    Buffer<float> p = There(scores), gradients = There(s);
    math_->Softmax(block, p.data());
    math_->SoftmaxGradients(block, p.data(), gradients.data());
    const std::vector<float> ours = Back(p, scores.size()), by_scores = Back(gradients, s.size());
    for (size_t i = 0; i < scores.size(); ++i) {
      const size_t row = i / keys, end = 7 + row + 1, begin = window == 0 ? 0 : end - 5;
      const auto probability = [&](const std::vector<double>& v, size_t k) {
        double sum = 0;
        for (size_t j = begin; j < end; ++j) sum += std::exp(v[row * keys + j]);
        return k < begin || k >= end ? 0 : std::exp(v[row * keys + k]) / sum;
      };
      ASSERT_NEAR(ours[i], probability(Wide(scores), i % keys), 30 * kUlp) << i;
      const double gradient = GradientOf(Wide(scores), i, [&](const std::vector<double>& v) {
        double sum = 0;
        for (size_t k = 0; k < keys; ++k) sum += probability(v, k) * s[row * keys + k];
        return sum;
      });
      ASSERT_NEAR(by_scores[i], gradient, 100 * kUlp + kDifference) << i;
    }
  }
}

TEST_P(DenseMathTest, DivergenceAndItsGradients) {
  constexpr int64_t kRows = 3, kCols = 300;
  std::vector<float> target = Random(kRows * kCols, 23), logits = Random(kRows * kCols, 24);
  for (float& v : target) v = 3 * v + 50;  // far from 0, where exp overflows
  Buffer<float> gradients = There(logits), sums = There(Random(kRows, 25));
  math_->DivergenceGradients(There(target).data(), kRows, kCols, gradients.data(), sums.data());
  const std::vector<float> ours = Back(gradients, logits.size()), divergences = Back(sums, kRows);
  const auto log_shares = [&](const double* v) {
    double sum = 0;
    for (size_t c = 0; c < kCols; ++c) sum += std::exp(v[c]);
    std::vector<double> shares(v, v + kCols);
    for (double& share : shares) share -= std::log(sum);
    return shares;
  };
  for (size_t row = 0; row < kRows; ++row) {
    const auto divergence = [&](const std::vector<double>& v) {
      const std::vector<double> wide = Wide(target);
      const auto q = log_shares(wide.data() + row * kCols), p = log_shares(v.data() + row * kCols);
      double sum = 0;
      for (size_t c = 0; c < kCols; ++c) sum += std::exp(q[c]) * (q[c] - p[c]);
      return sum;
    };
    // Shares have errors of some ten roundings of 60 in their exponents.
    EXPECT_NEAR(divergences[row], divergence(Wide(logits)), 1000 * kUlp * 10);
    for (size_t i = row * kCols; i < row * kCols + 20; ++i) {
      ASSERT_NEAR(ours[i], GradientOf(Wide(logits), i, divergence), 1000 * kUlp + kDifference) << i;
    }
  }
}

// Rows alike with draws that are spread evenly: whatever the order of columns, each is drawn in
// proportion to its share, to within one row at either end and what shares are rounded by.
TEST_P(DenseMathTest, DrawnGradientsAreOfLabelsInProportion) {
  constexpr size_t kRows = 2000, kCols = 700;
  std::vector<float> row = Random(kCols, 33);
  for (float& v : row) v = 3 * v + 50;
  std::vector<float> logits, draws;
  for (size_t r = 0; r < kRows; ++r) {
    logits.insert(logits.end(), row.begin(), row.end());
    draws.push_back((static_cast<float>(r) + 0.5f) / kRows);
  }
  draws.front() = 0, draws.back() = std::nextafter(1.0f, 0.0f);
  Buffer<float> gradients = There(logits);
  math_->DrawnGradients(draws, kCols, gradients.data());
  const std::vector<float> ours = Back(gradients, logits.size());
  double sum = 0;
  for (const float v : row) sum += std::exp(double{v});
  std::vector<double> drawn(kCols);
  for (size_t r = 0; r < kRows; ++r) {
    size_t labels = 0;
    for (size_t c = 0; c < kCols; ++c) {
      const double p = std::exp(double{row[c]}) / sum, gradient = ours[r * kCols + c];
      const bool label = gradient < p - 0.5;
      ASSERT_NEAR(gradient, p - (label ? 1 : 0), 100 * kUlp) << r << ", " << c;
      if (label) ++labels, ++drawn[c];
    }
    ASSERT_EQ(labels, 1u) << r;
  }
  for (size_t c = 0; c < kCols; ++c) {
    EXPECT_NEAR(drawn[c], kRows * std::exp(double{row[c]}) / sum, 2) << c;
  }
}

INSTANTIATE_TEST_SUITE_P(Machines, DenseMathTest, testing::Bool(),
                         [](const auto& machine) { return machine.param ? "Gpu" : "Host"; });

}  // namespace
}  // namespace nibble
