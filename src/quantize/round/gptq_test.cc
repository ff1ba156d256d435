// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/half.h"
#include "base/rng.h"
#include "formats/packed_weights_testing.h"
#include "quantize/round/code_matrix.h"
#include "quantize/round/gptq_testing.h"

namespace nibble {
namespace {

template <typename T>
Matrix<T> Identity(int64_t n) {
  Matrix<T> m(n, n);
  for (int64_t i = 0; i < n; ++i) m.row(i)[static_cast<size_t>(i)] = 1;
  return m;
}

struct Power {
  double sum = 0;       // tr(M H M^T)
  double absolute = 0;  // of its terms' absolute values
};
Power PlainPower(const Matrix<double>& m, const Matrix<double>& h) {
  Power power;
  for (int64_t n = 0; n < m.rows; ++n) {
    for (size_t i = 0; i < static_cast<size_t>(m.cols); ++i) {
      for (size_t j = 0; j < static_cast<size_t>(m.cols); ++j) {
        const double term = m.row(n)[i] * h.row(static_cast<int64_t>(i))[j] * m.row(n)[j];
        power.sum += term;
        power.absolute += std::fabs(term);
      }
    }
  }
  return power;
}

Power OutputError(const Matrix<double>& w, const PackedWeights& rounded, const Matrix<double>& h) {
  const Matrix<float> decoded = Decode(rounded);
  Matrix<double> error = w;
  for (size_t i = 0; i < error.data.size(); ++i) error.data[i] -= decoded.data[i];
  return PlainPower(error, h);
}

// Upper U with (H + damp mean diag I)^-1 = U^T U: rows of the inverse, eliminated one by one.
Matrix<double> PlainInverseFactor(const Matrix<double>& h, double damp) {
  const int64_t n = h.cols;
  Matrix<double> a(n, 2 * n), inverse(n, n), u(n, n);
  double mean = 0;
  for (int64_t i = 0; i < n; ++i) mean += h.row(i)[static_cast<size_t>(i)] / static_cast<double>(n);
  for (int64_t i = 0; i < n; ++i) {
    std::ranges::copy(h.row(i), a.row(i).begin());
    At(a, i, i) += damp * mean;
    At(a, i, n + i) = 1;
  }
  Eliminate(a);
  for (int64_t i = 0; i < n; ++i) {
    std::ranges::copy(a.row(i).last(static_cast<size_t>(n)), inverse.row(i).begin());
  }
  for (int64_t i = 0; i < n; ++i) {  // Cholesky, upper
    const double root = std::sqrt(At(inverse, i, i));
    for (int64_t k = i; k < n; ++k) At(u, i, k) = At(inverse, i, k) / root;
    for (int64_t j = i + 1; j < n; ++j) {
      for (int64_t k = j; k < n; ++k) At(inverse, j, k) -= At(u, i, j) * At(u, i, k);
    }
  }
  return u;
}

struct RoundingCase {
  FormatSpec format;
  bool act_order;
};

class GptqFormats : public testing::TestWithParam<RoundingCase> {};

TEST_P(GptqFormats, WithAnIdentityHessianItRoundsToNearest) {
  const Matrix<double> w = RandomMatrix(36, 256, 5);
  const GptqOptions options = {.act_order = GetParam().act_order, .damp = 0};
  const Rounded gptq = RoundGptq(w, Identity<float>(256), GetParam().format, options);
  const Rounded nearest = RoundNearest(w, GetParam().format);
  ExpectSamePlanes(gptq.weights, nearest.weights);
  // GPTQ measures the stored values: fp32 products, off by 2^-24 of a weight, against errors of a
  // tenth of a weight.
  EXPECT_NEAR(gptq.relative_error, nearest.relative_error, 1e-6 * nearest.relative_error);
}

TEST_P(GptqFormats, BeatsRoundingToNearestOnCorrelatedInputs) {
  const Matrix<double> w = RandomMatrix(36, 256, 6);
  const Matrix<float> x = CorrelatedInputs(256, 1024, 7);
  const Matrix<double> h = HessianOf(x);
  const GptqOptions options = {.act_order = GetParam().act_order};
  const Rounded gptq = RoundGptq(w, x, GetParam().format, options);
  const Power error = OutputError(w, gptq.weights, h), output = PlainPower(w, h);
  // Eight weights of a codeword cannot make up for each other.
  const double share = GetParam().format.lattice() ? 0.7 : 0.5;
  EXPECT_LT(error.sum, share * OutputError(w, RoundNearest(w, GetParam().format).weights, h).sum);
  // Two sums of `terms` fp64 terms in any order, each term itself of two products.
  const double terms = 36.0 * 256 * 256, relative = gptq.relative_error;
  const double roundings = 2 * (terms + 2) * 0x1p-53;
  EXPECT_NEAR(relative, error.sum / output.sum,
              roundings * relative * (error.absolute / error.sum + output.absolute / output.sum));
}

INSTANTIATE_TEST_SUITE_P(
    All, GptqFormats,
    testing::Values(
        RoundingCase{{.bits = 4, .clip = 0}, false}, RoundingCase{{.bits = 4, .clip = 0}, true},
        RoundingCase{{.bits = 3, .symmetric = false, .clip = 1}, false},
        RoundingCase{{.bits = 4, .group = 32, .clip = 0}, false},
        RoundingCase{{.bits = 4, .group = 64, .clip = 0}, true},
        RoundingCase{{.bits = 2, .symmetric = false, .group = 128, .clip = 0}, false},
        RoundingCase{{.bits = 4, .group = 64, .clip = 0.85}, false},
        RoundingCase{{.bits = 8, .group = 256, .clip = 1}, false},
        RoundingCase{{.bits = 4, .group = 64, .clip = 0, .second_level = true}, false},
        RoundingCase{{.bits = 3, .symmetric = false, .group = 32, .clip = 0, .second_level = true},
                     true},
        RoundingCase{{.bits = 2, .codebook = Codebook::kE8p}, false},
        RoundingCase{{.bits = 3, .codebook = Codebook::kE8p}, false},
        RoundingCase{{.bits = 4, .codebook = Codebook::kE8p}, false},
        RoundingCase{{.bits = 4, .clip = 0, .sparse = true}, false},
        RoundingCase{{.bits = 4, .symmetric = false, .group = 32, .sparse = true}, false}));

TEST(Sparse, TheLargestTwoOfFourStay) {
  EXPECT_EQ(LargestTwo({1, 2, 3, 4}), 0b1100u);
  EXPECT_EQ(LargestTwo({4, 0, 0, 3}), 0b1001u);
  EXPECT_EQ(LargestTwo({1, 1, 1, 1}), 0b0011u);
  EXPECT_EQ(LargestTwo({0, 5, 0, 5}), 0b1010u);
  EXPECT_EQ(LargestTwo({0, 0, 0, 0}), 0b0011u);
}

TEST(Sparse, NearestPrunesTheSmallerHalfOfEveryFour) {
  const Matrix<double> w = RandomMatrix(5, 64, 18);
  for (const bool symmetric : {true, false}) {
    const FormatSpec dense = {.bits = 8, .symmetric = symmetric, .clip = 1};
    FormatSpec sparse = dense;
    sparse.sparse = true;
    const Matrix<float> all = Decode(RoundNearest(w, dense).weights),
                        half = Decode(RoundNearest(w, sparse).weights);
    for (int64_t n = 0; n < 5; ++n) {
      for (size_t k = 0; k < 64; ++k) {
        const auto four = w.row(n).subspan(k / 4 * 4, 4);
        const auto larger = std::ranges::count_if(
            four, [&](double other) { return std::fabs(other) > std::fabs(w.row(n)[k]); });
        EXPECT_EQ(half.row(n)[k], larger < 2 ? all.row(n)[k] : 0.0f) << n << " " << k;
      }
    }
  }
}

// SparseGPT's loops in the plainest form, one row and no blocks, give the same mask, codes and
// errors.
TEST(Sparse, GptqPrunesAsSparseGptDoes) {
  constexpr int64_t kWidth = 160, kMain = 128;  // the last 32 are a tail
  const Matrix<double> w = RandomMatrix(3, kWidth, 19);
  const Matrix<float> x = CorrelatedInputs(kWidth, 900, 20);
  const FormatSpec format = {.bits = 4, .clip = 1, .sparse = true};
  const Rounded rounded = RoundGptq(w, x, format, {.damp = 0.01, .tail = 32}, {.bits = 16});
  const Matrix<double> u = PlainInverseFactor(HessianOf(x), 0.01);
  const Matrix<float> decoded = DecodeBoth(rounded.weights, rounded.tail);
  for (int64_t n = 0; n < 3; ++n) {
    std::vector<double> row(w.row(n).begin(), w.row(n).end());
    float largest = 0;
    for (const double value : w.row(n).first(kMain)) {
      largest = std::max(largest, std::fabs(static_cast<float>(value)));
    }
    const double scale = largest / 7;  // in fp32, as it is stored
    std::vector<size_t> pruned;
    for (size_t i = 0; i < kMain; ++i) {
      if (i % 4 == 0) {
        pruned = {i, i + 1, i + 2, i + 3};
        std::ranges::sort(pruned, {}, [&](size_t j) {
          return std::pow(row[j] / u.row(static_cast<int64_t>(j))[j], 2);
        });
        pruned.resize(2);
      }
      const double code = std::clamp(std::nearbyint(row[i] / scale), -8.0, 7.0);
      const double value = std::ranges::count(pruned, i) > 0 ? 0 : scale * code;
      EXPECT_EQ(decoded.row(n)[i], static_cast<float>(value)) << n << " " << i;
      const auto factor = u.row(static_cast<int64_t>(i));
      const double error = (row[i] - value) / factor[i];
      for (size_t j = i; j < kWidth; ++j) row[j] -= error * factor[j];
    }
    for (size_t j = kMain; j < kWidth; ++j) {  // fp16
      EXPECT_NEAR(decoded.row(n)[j], row[j], 0x1p-11 * std::fabs(row[j]) + 1e-7);
    }
  }
}

TEST(Sparse, SweepsKeepWhatIsPruned) {
  const Matrix<double> w = RandomMatrix(6, 160, 21);
  const Matrix<float> x = CorrelatedInputs(160, 900, 22);
  const FormatSpec format = {.bits = 4, .clip = 1, .sparse = true};
  const Rounded before = RoundGptq(w, x, format), after = RoundGptq(w, x, format, {.sweeps = 3});
  EXPECT_LT(after.relative_error, before.relative_error);
  const Matrix<float> was = Decode(before.weights), is = Decode(after.weights);
  for (size_t i = 0; i < is.data.size(); ++i) EXPECT_TRUE(was.data[i] != 0 || is.data[i] == 0) << i;
}

// After enough passes no code can be changed with profit.
TEST(Gptq, SweepsEndWhereEveryCodeIsTheBestForTheOthers) {
  const Matrix<double> w = RandomMatrix(6, 160, 9);
  const Matrix<float> x = CorrelatedInputs(160, 1024, 10);
  const Matrix<double> h = HessianOf(x);
  const FormatSpec format = {.bits = 4, .clip = 0};
  const auto round = [&](int sweeps) {
    return RoundGptq(w, x, format, {.damp = 1e-6, .sweeps = sweeps});
  };
  const double first = round(0).relative_error, once = round(1).relative_error;
  const Rounded rounded = round(100);
  EXPECT_LT(once, first);
  EXPECT_LE(rounded.relative_error, once);
  const Matrix<float> decoded = Decode(rounded.weights);
  for (int64_t n = 0; n < w.rows; ++n) {
    std::vector<double> error;
    for (size_t k = 0; k < 160; ++k) error.push_back(decoded.row(n)[k] - w.row(n)[k]);
    const double step = ToF32(rounded.weights.scales).data[static_cast<size_t>(n)];
    for (size_t k = 0; k < 160; ++k) {
      double gradient = 0;
      for (size_t j = 0; j < 160; ++j) gradient += error[j] * h.row(static_cast<int64_t>(k))[j];
      const double curvature = h.row(static_cast<int64_t>(k))[k];
      const double code = decoded.row(n)[k] / step;
      for (const double move : {-1.0, 1.0}) {
        if (std::fabs(code + move + 0.5) > 7.6) continue;  // beyond -8 .. 7
        // d^T H d + 2 d (H e) of the change d; damping changes it by a millionth of the diagonal.
        const double change = step * step * curvature + 2 * move * step * gradient;
        EXPECT_GE(change, -1e-4 * step * step * curvature) << n << ", " << k;
      }
    }
  }
}

TEST(Gptq, DampingGrowsUntilASingularHessianFactors) {
  const Matrix<double> w = RandomMatrix(8, 64, 8);
  const Matrix<float> x = CorrelatedInputs(64, 4, 9);  // rank 4
  const Rounded r = RoundGptq(w, x, {.bits = 4, .clip = 0}, {.damp = 0});
  EXPECT_GT(r.damp, 0);
  for (float scale : ToF32(r.weights.scales).data) EXPECT_TRUE(std::isfinite(scale) && scale > 0);
}

TEST(Gptq, AnInputThatNeverFiresIsRoundedToZero) {
  const Matrix<double> w = RandomMatrix(8, 64, 10);
  Matrix<float> x = CorrelatedInputs(64, 256, 11);
  for (int64_t t = 0; t < x.rows; ++t) x.row(t)[5] = 0;
  const Matrix<float> decoded = Decode(RoundGptq(w, x, {.bits = 4, .clip = 0}).weights);
  for (int64_t n = 0; n < 8; ++n) EXPECT_EQ(decoded.row(n)[5], 0.0f);
}

// y = W x_exact is wanted, the quantized network offers x = x_exact + noise correlated with it.
struct Inputs {
  Matrix<float> exact, seen;

  Inputs(int64_t tokens, int64_t width) : exact(tokens, width), seen(tokens, width) {
    const Matrix<double> base = RandomMatrix(tokens, width, 12),
                         noise = RandomMatrix(tokens, width, 13);
    for (size_t i = 0; i < exact.data.size(); ++i) {
      exact.data[i] = static_cast<float>(base.data[i]);
      seen.data[i] = static_cast<float>(0.8 * base.data[i] + 0.3 * noise.data[i] +
                                        0.3 * base.data[(i + 1) % base.data.size()]);
    }
  }
  double Error(const Matrix<double>& w, const Matrix<float>& q) const {
    double sum = 0;
    for (int64_t t = 0; t < exact.rows; ++t) {
      for (int64_t n = 0; n < w.rows; ++n) {
        double e = 0;
        for (size_t k = 0; k < static_cast<size_t>(w.cols); ++k) {
          e += w.row(n)[k] * static_cast<double>(exact.row(t)[k]) -
               static_cast<double>(q.row(n)[k]) * static_cast<double>(seen.row(t)[k]);
        }
        sum += e * e;
      }
    }
    return sum;
  }
};

TEST(Gptq, TheInputErrorCorrectionLowersTheErrorAgainstTheExactInput) {
  const Inputs inputs(2048, 96);
  const Matrix<double> w = RandomMatrix(16, 96, 14);
  const auto error = [&](double gptaq, int sweeps) {
    const GptqOptions options = {.gptaq = gptaq, .sweeps = sweeps};
    return inputs.Error(w, Decode(RoundGptq(w, inputs.seen, {.bits = 4, .clip = 0}, options, {},
                                            gptaq > 0 ? &inputs.exact : nullptr)
                                      .weights));
  };
  const double corrected = error(1, 0);
  EXPECT_LT(corrected, error(0.25, 0));
  EXPECT_LT(error(0.25, 0), error(0, 0));
  EXPECT_LT(error(1, 2), corrected) << "sweeps know the target";
  // With codes of 8 bits in grids that clip nothing the error is that of a share of the step from W
  // to the least-squares solution, up to the codes' own error.
  const Matrix<float> fine = Decode(RoundGptq(w, inputs.seen, {.bits = 8, .clip = 1},
                                              {.damp = 1e-9, .gptaq = 1}, {}, &inputs.exact)
                                        .weights);
  const Matrix<double> h = HessianOf(inputs.seen), u = PlainInverseFactor(h, 1e-9);
  Matrix<float> best(w.rows, w.cols), plain(w.rows, w.cols);  // W X_exact^T X (X^T X)^-1, W
  std::ranges::copy(w.data, plain.data.begin());
  for (int64_t n = 0; n < w.rows; ++n) {
    std::vector<double> product(96), half(96);
    for (int64_t t = 0; t < inputs.exact.rows; ++t) {
      double y = 0;
      for (size_t k = 0; k < 96; ++k) y += w.row(n)[k] * inputs.exact.row(t)[k];
      for (size_t k = 0; k < 96; ++k) product[k] += y * inputs.seen.row(t)[k];
    }
    for (size_t i = 0; i < 96; ++i) {
      for (size_t k = 0; k < 96; ++k) half[i] += u.row(static_cast<int64_t>(i))[k] * product[k];
    }
    for (size_t k = 0; k < 96; ++k) {
      double sum = 0;
      for (size_t i = 0; i < 96; ++i) sum += u.row(static_cast<int64_t>(i))[k] * half[i];
      best.row(n)[k] = static_cast<float>(sum);
    }
  }
  const double left = 1 - 2048.0 / (2048 + 96), min = inputs.Error(w, best);
  const double wanted = min + left * left * (inputs.Error(w, plain) - min);
  EXPECT_NEAR(inputs.Error(w, fine), wanted, 0.02 * wanted);
}

TEST(Gram, EqualsPlainSumsForOddSizes) {
  const Matrix<double> a = RandomMatrix(37, 300, 15), b = RandomMatrix(37, 300, 16);
  Matrix<float> x(37, 300), y(37, 300);
  for (size_t i = 0; i < a.data.size(); ++i) {
    x.data[i] = static_cast<float>(a.data[i]);
    y.data[i] = static_cast<float>(b.data[i]);
  }
  const auto backend = MakeBackend("cpu", true);
  Matrix<double> square(300, 300), cross(300, 300);
  std::ranges::fill(square.data, 0.5);
  AddGram(backend->services(), x.data.data(), x.data.data(), 37, &square);
  AddGram(backend->services(), x.data.data(), y.data.data(), 37, &cross);
  for (int64_t i = 0; i < 300; i += 7) {
    for (int64_t j = 0; j < 300; j += 11) {
      double xx = 0, xy = 0, size = 0;
      for (int64_t t = 0; t < 37; ++t) {
        const double xi = x.row(t)[static_cast<size_t>(i)];
        xx += xi * static_cast<double>(x.row(t)[static_cast<size_t>(j)]);
        xy += xi * static_cast<double>(y.row(t)[static_cast<size_t>(j)]);
        size += std::fabs(xi) * 4;
      }
      const double bound = 37 * 6e-8 * size;  // 37 fp32 roundings of sums below `size`
      if (j <= i) {
        EXPECT_NEAR(At(square, i, j), 0.5 + xx, bound);
      }
      EXPECT_NEAR(At(cross, i, j), xy, bound);
    }
  }
}

TEST(Gptq, GroupsOfRowsHaveSumsOfTheirOwn) {
  constexpr int64_t kRows = 7, kWidth = 96, kTokens = 200, kBefore = 5;
  const Matrix<double> w = RandomMatrix(kRows, kWidth, 1);
  const Matrix<float> x = CorrelatedInputs(kWidth, kTokens, 2);
  Matrix<float> weights(2, kBefore + kTokens);
  Rng rng(3);
  for (float& value : weights.data) value = static_cast<float>(std::pow(4, rng.Normal()));
  const FormatSpec format = {.bits = 4, .group = 32, .clip = 0};
  const FormatSpec tail_format = {.bits = 8};
  const GptqOptions options = {.sweeps = 1, .tail = 32};
  const auto backend = MakeBackend("cpu", true);
  Gptq grouped(*backend, kWidth, options, 2);
  grouped.Add(x.data.data(), nullptr, kTokens, weights, kBefore);
  const Rounded ours = grouped.Round(w, format, tail_format);
  for (const auto [group, first, count] : {std::array<int64_t, 3>{0, 0, 3}, {1, 3, 4}}) {
    Matrix<double> part(count, kWidth);
    std::copy_n(w.row(first).data(), part.data.size(), part.data.begin());
    Matrix<float> scaled = x;
    for (int64_t t = 0; t < kTokens; ++t) {
      const float factor = std::sqrt(weights.row(group)[static_cast<size_t>(kBefore + t)]);
      for (float& value : scaled.row(t)) value *= factor;
    }
    const Rounded alone = RoundGptq(part, scaled, format, options, tail_format);
    const Matrix<float> a = DecodeBoth(ours.weights, ours.tail),
                        b = DecodeBoth(alone.weights, alone.tail);
    for (int64_t n = 0; n < count; ++n) {
      EXPECT_TRUE(std::ranges::equal(a.row(first + n), b.row(n))) << group << ", " << n;
    }
  }
}

}  // namespace
}  // namespace nibble
