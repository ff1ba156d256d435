// SPDX-License-Identifier: Apache-2.0
// Prepared inputs, embeddings and sums of rows of every backend against the reference backend. What
// comes from one fixed fp32 expression must agree bit for bit, the rest within bounds derived where
// they are used.
#include <cmath>

#include "backends/parity_testing.h"

namespace nibble {
namespace {

using ActsParityTest = ParityTest;
NIBBLE_EVERY_MACHINE(ActsParityTest);

// A transform rounds about log2(n) + 2 times on either side, a norm or a gate some ten times. Dense
// factors lose up to 2^-18 of each value, like noise of at most 2^-18 of their root mean square; of
// millions of values some are 5.2 deviations away. Chains of up to 107 fp32 multiply-adds round
// like noise, too.
TEST_P(ActsParityTest, PreparedValuesAgree) {
  using Op = ActsSource::Op;
  const int64_t many = GetParam() == "cuda" ? 300 : 20;  // a GPU has other kernels for many
  for (const int64_t width :
       {64, 96, 144, 240, 448, 576, 896, 960, 1024, 1376, 1712, 2880, 11008, 13696, 14336}) {
    for (const Op op : {Op::kCopy, Op::kRmsNorm, Op::kGated}) {
      for (const int64_t tokens : {int64_t{1}, int64_t{3}, many}) {
        InputSpec spec = {.width = width, .transform = FullHadamard(width)};
        if (width == 96) spec.transform = {.factors = FullHadamard(4).factors, .inner = 24};
        if (width == 576) spec.transform = {.factors = FlatFactors(9), .inner = 64};
        if (width == 896) spec.transform = {.factors = FlatFactors(14), .inner = 64};
        if (width == 960) spec.transform = {.factors = FlatFactors(15), .outer = 16, .inner = 4};
        if (width == 1712) spec.transform = Inverse(spec.transform);  // 107 x 16, not symmetric
        auto gate = RandomVector(rng_, tokens * width), up = RandomVector(rng_, tokens * width);
        const auto x = RandomVector(rng_, tokens * width), norm = RandomVector(rng_, width);
        const Buffer<float> device_x = Copy(x), device_norm = Copy(norm);
        const auto device_gate = CopyValues(gate), device_up = CopyValues(up);
        const GateSpec clamped = {1.702f, 0, 2, 1};
        GateSpec gating = tokens == 1 ? clamped : tokens == 3 ? kGelu : kSilu;
        if (width == 576 || width == 2880 || width == 14336) {
          gating = tokens == 1 ? kRelu : kNormalGelu;
          gating.alone = width == 2880;  // without a sign a wide row's sum would outgrow the bound
        }
        const Activations a = ours_->PrepareActs({.x = device_x.data(),
                                                  .op = op,
                                                  .norm_weight = device_norm.data(),
                                                  .norm_eps = 1e-5f,
                                                  .gate = device_gate.data(),
                                                  .up = device_up.data(),
                                                  .gating = gating},
                                                 tokens, spec);
        const std::vector<float> values = Host(a.values, tokens * width);
        const Activations b = ref_->PrepareActs({.x = x.data(),
                                                 .op = op,
                                                 .norm_weight = norm.data(),
                                                 .norm_eps = 1e-5f,
                                                 .gate = Raw(gate),
                                                 .up = Raw(up),
                                                 .gating = gating},
                                                tokens, spec);
        double largest = 0, squares = 0;
        for (int64_t i = 0; i < tokens * width; ++i) {
          largest = std::max(largest, std::fabs(double{b.values[i]}));
          squares += double{b.values[i]} * b.values[i];
        }
        const double size = std::sqrt(squares / static_cast<double>(tokens * width));
        const double bound = 6 * 0x1p-18 * size + 16 * kUlp * largest;
        for (int64_t i = 0; i < tokens * width; ++i) {
          ASSERT_NEAR(values[i], b.values[i], bound)
              << width << ", op " << static_cast<int>(op) << ", " << tokens << " tokens, " << i;
        }
      }
    }
  }
}

// The bound of PreparedValuesAgree. On a GPU what is read is bf16, as here, the result is rounded
// to its 8 bits, and where rows pass tensor cores in fp16 they lose up to 2^-11 of each value twice
// (CodesOfGatedTransformsAgree). 13824 has two dense factors.
TEST_P(ActsParityTest, OutputsAreTransformedInPlace) {
  const bool narrow = ours_->IntermediateBytes() == 2;
  const double rounding = narrow ? 0x1p-8 : 0;
  for (const int64_t width : {64, 96, 640, 1376, 4096, 11008, 13824}) {
    for (const int64_t tokens : {1, 3, 90}) {
      const TransformSpec transform = FullHadamard(width);
      auto other = RandomVector(rng_, tokens * width), y = RandomVector(rng_, tokens * width);
      Buffer<Intermediate> device_other = CopyValues(other), device_y = CopyValues(y);
      Intermediate* const both[] = {device_other.data(), device_y.data()};
      ours_->Transform(transform, tokens, std::span(both).subspan(tokens == 1 ? 1 : 0));
      const std::vector<float> values = HostValues(device_y.data(), tokens * width);
      double largest = 0;
      for (int64_t t = 0; t < tokens; ++t) {
        std::vector<double> row(y.begin() + t * width, y.begin() + (t + 1) * width);
        double squares = 0;
        for (const double value : row) squares += value * value;
        ApplyTransform(transform, std::span(row));
        const double size = std::sqrt(squares / static_cast<double>(width));
        for (const double value : row) largest = std::max(largest, std::fabs(value));
        const double bound = narrow ? 0x1p-10 * largest : 6 * 0x1p-18 * size + 16 * kUlp * largest;
        for (int64_t i = 0; i < width; ++i) {
          const double expected = row[static_cast<size_t>(i)];
          ASSERT_NEAR(values[static_cast<size_t>(t * width + i)], expected,
                      bound + rounding * std::fabs(expected))
              << width << ", " << tokens << " tokens, " << t << ", " << i;
        }
      }
    }
  }
}

// Beside fp64, rows as vectors. Each of two roundings to 11 bits loses at most 2^-11 of a row, 0.4
// times that of a random one.
//
// One to fp32 loses 0.4 kUlp: 14 stages of butterflies lose 2 kUlp, a chain of n additions
// sqrt(n / 2) times 0.4 kUlp, 3.8 for 172. Two bf16 terms in place of fp32 would lose 19 kUlp.
TEST_P(ActsParityTest, TransformsHaveThePrecisionAskedFor) {
  const TransformSpec transforms[] = {FullHadamard(4096),
                                      FullHadamard(11008),
                                      FullHadamard(13824),
                                      FullHadamard(14336),
                                      {.factors = FullHadamard(32).factors, .inner = 128},
                                      {.factors = FullHadamard(12).factors, .inner = 64},
                                      {.factors = FullHadamard(20).factors, .outer = 3, .inner = 4},
                                      {.factors = FlatFactors(14), .inner = 64},
                                      {.factors = {{576, FactorKind::kFourier}}},
                                      {.factors = {{11008, FactorKind::kFourier}}},
                                      Inverse({.factors = {{5120, FactorKind::kFourier}}})};
  const double rounding = 0x1p-11, fine = 12 * kUlp;
  for (const TransformSpec& transform : transforms) {
    const int64_t width = transform.width();
    for (const int64_t tokens : {1, 3, 70}) {
      const auto x = RandomVector(rng_, tokens * width);
      const Buffer<float> device_x = Copy(x);
      for (const int bits : {0, 16, 32}) {
        const InputSpec spec = {.width = width, .transform = transform, .transform_bits = bits};
        const auto y =
            Host(ours_->PrepareActs({.x = device_x.data()}, tokens, spec).values, tokens * width);
        for (int64_t t = 0; t < tokens; ++t) {
          std::vector<double> exact(x.begin() + t * width, x.begin() + (t + 1) * width);
          ApplyTransform(transform, exact);
          double squares = 0, errors = 0;
          for (int64_t i = 0; i < width; ++i) {
            squares += exact[i] * exact[i];
            errors += std::pow(y[t * width + i] - exact[i], 2);
          }
          const double error = std::sqrt(errors / squares);
          ASSERT_LE(error, bits == 32 ? fine : 2 * rounding + fine)
              << TransformText(transform) << ", " << bits << " bits, " << tokens << " tokens";
          if (bits == 16) {
            ASSERT_GE(error, 0.3 * rounding) << TransformText(transform);
          }
        }
      }
    }
  }
}

TEST_P(ActsParityTest, DecodedCodesAreBitEqual) {
  const FormatSpec formats[] = {{.bits = 4},
                                {.bits = 8, .symmetric = false, .group = 128},
                                {.bits = 4, .clip = 0.8, .signed_scale = true},
                                {.bits = 8, .group = 128, .signed_scale = true}};
  for (const FormatSpec& format : formats) {
    for (const int64_t width : {384, 11008}) {  // a GPU spreads long rows
      for (const int64_t tail : {0, 128}) {
        const InputSpec input = {.width = width,
                                 .activations = format,
                                 .tail_width = tail,
                                 .tail_activations = {.bits = 8}};
        const auto x = RandomRows(rng_, 9, width);
        const Buffer<float> device_x = Copy(x);
        const float* ours = ours_->Decode(ours_->PrepareActs({.x = device_x.data()}, 9, input));
        const float* exact = ref_->Decode(ref_->PrepareActs({.x = x.data()}, 9, input));
        ASSERT_EQ(Host(ours, 9 * width), std::vector<float>(exact, exact + 9 * width))
            << FormatText(format) << ", " << width << ", " << tail;
      }
    }
  }
}

// Scaled rows are what rows scaled beforehand are: bit for bit, in front of a transform too, from
// rows that stay as they are. Behind a norm without weights, scales are what weights are.
TEST_P(ActsParityTest, InputScalesAreOneProductAnEntry) {
  constexpr int64_t kTokens = 7, kWidth = 96;
  const auto x = RandomRows(rng_, kTokens, kWidth), scales = RandomVector(rng_, kWidth);
  std::vector<float> scaled = x;
  for (size_t i = 0; i < x.size(); ++i) scaled[i] = x[i] * scales[i % kWidth];
  const Buffer<float> device_x = Copy(x), device_scaled = Copy(scaled), weights = Copy(scales);
  const TransformSpec transforms[] = {
      {}, FullHadamard(kWidth), {.factors = FlatFactors(6), .inner = 16}};
  for (const FormatSpec& format : {FormatSpec{}, {.bits = 4}, {.bits = 16}}) {
    for (const TransformSpec& transform : transforms) {
      const InputSpec plain = {.width = kWidth, .transform = transform, .activations = format};
      InputSpec spec = plain;
      spec.scales = scales;
      const auto prepared = [&](ActsSource source, const InputSpec& input) {
        source.norm_eps = 1e-5f;
        return Host(ours_->Decode(ours_->PrepareActs(source, kTokens, input)), kTokens * kWidth);
      };
      ASSERT_EQ(prepared({.x = device_x.data()}, spec),
                prepared({.x = device_scaled.data()}, plain));
      ASSERT_EQ(Host(device_x.data(), kTokens * kWidth), x);
      const auto norm = ActsSource::Op::kRmsNorm;
      ASSERT_EQ(prepared({.x = device_x.data(), .op = norm}, spec),
                prepared({.x = device_x.data(), .op = norm, .norm_weight = weights.data()}, plain));
    }
  }
}

// Rows to experts and back: a product and a sum, each rounded once or both together.
TEST_P(ActsParityTest, RowsAreGatheredAndAdded) {
  constexpr int64_t kTokens = 40;
  const std::vector<int32_t> rows = {0, 3, 17, 38, 39};
  const std::vector<float> weights = {0.25f, 1, -0.7f, 0.01f, 3};
  for (const int64_t width : {64, 300, 4096}) {
    auto x = RandomVector(rng_, kTokens * width);
    const Buffer<float> device_x = Copy(x);
    Buffer<float> gathered(ours_->allocator());
    gathered.Grow(5 * width);
    ours_->Embed(
        {.rows = kTokens,
         .cols = width,
         .values = {DType::kF32, {kTokens, width}, reinterpret_cast<std::byte*>(device_x.data())}},
        rows, 1, gathered.data());
    const std::vector<float> y = Host(gathered.data(), 5 * width);
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto row = x.begin() + rows[i] * width;
      ASSERT_TRUE(std::equal(row, row + width, y.begin() + static_cast<int64_t>(i) * width));
    }
    ours_->AddRows(gathered.data(), rows, weights, width, device_x.data());
    ref_->AddRows(y.data(), rows, weights, width, x.data());
    const std::vector<float> result = Host(device_x.data(), kTokens * width);
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_NEAR(result[i], x[i], 3 * std::fabs(x[i]) * 0x1p-23 + 0x1p-20) << i;
    }
  }
}

// Sums of squares in another order, a root and three products.
TEST_P(ActsParityTest, NormsAreAdded) {
  constexpr int64_t kTokens = 5;
  const Buffer<float> device_scale = Copy(std::vector<float>{0.3f});
  const float scale = 0.3f;
  for (const auto& [width, scaled] : {std::pair(8, true), {300, false}, {4096, true}}) {
    const auto y = RandomVector(rng_, kTokens * width), weight = RandomVector(rng_, width);
    auto x = RandomVector(rng_, kTokens * width);
    const Buffer<float> device_x = Copy(x), device_y = Copy(y), device_weight = Copy(weight);
    ours_->AddNormed(device_y.data(), kTokens, width, device_weight.data(), 1e-3f,
                     scaled ? device_scale.data() : nullptr, device_x.data());
    ref_->AddNormed(y.data(), kTokens, width, weight.data(), 1e-3f, scaled ? &scale : nullptr,
                    x.data());
    const std::vector<float> result = Host(device_x.data(), kTokens * width);
    for (size_t i = 0; i < x.size(); ++i) {
      const double added = std::fabs(y[i] * weight[i % static_cast<size_t>(width)]);
      ASSERT_NEAR(result[i], x[i], (40 * added + 3 * std::fabs(x[i])) * kUlp) << width << ", " << i;
    }
  }
}

// Compares with plain loops in double. A capped logit may be off by some roundings of the cap; a
// lane adds up to 1024 values.
void ExpectLikely(const Likely& ours, std::vector<double> row, double cap, LikelyQuery query) {
  if (cap > 0) {
    for (double& logit : row) logit = cap * std::tanh(logit / cap);
  }
  const double top = *std::ranges::max_element(row), error = 8 * cap * kUlp;
  double total = 0;
  size_t sure = 0, possible = 0;
  for (const double logit : row) {
    total += std::exp((logit - top) * double{query.cold});
    sure += logit >= top - double{query.window} + 2 * error ? 1 : 0;
    possible += logit >= top - double{query.window} - 2 * error - kUlp * std::fabs(top) ? 1 : 0;
  }
  if (query.cold > 0) {
    EXPECT_NEAR(ours.total, total, 1100 * kUlp * total);
  }
  ASSERT_EQ(ours.complete, ours.tokens.size() <= kMaxLikely && possible <= kMaxLikely);
  if (!ours.complete) return;
  ASSERT_GE(ours.tokens.size(), std::max(sure, size_t{1}));
  ASSERT_LE(ours.tokens.size(), possible);
  for (size_t i = 0; i < ours.tokens.size(); ++i) {
    const LikelyToken& token = ours.tokens[i];
    EXPECT_NEAR(double{token.logit}, row[static_cast<size_t>(token.id)], error);
    EXPECT_TRUE(i == 0 || ours.tokens[i - 1].before(token));
  }
}

// Tokens, their order and the sum over all, up to the error of an exp and of sums of some thousand.
TEST_P(ActsParityTest, LikelyTokensOfRowsAreFound) {
  for (const int64_t width : {1, 31, 4099, 70000}) {
    constexpr int64_t kRows = 6;
    auto logits = RandomVector(rng_, kRows * width);
    const auto row = [&](int64_t r) { return logits.begin() + r * width; };
    std::fill_n(row(1), width, -3.0f);
    *(row(2) + width / 2) = *(row(2) + width - 1) = 100;
    *(row(3) + width / 3) = NAN;
    *(row(4) + width - 1) = -INFINITY;
    for (auto it = row(5); it != row(5) + width; ++it) *it = -std::fabs(*it) - 1;
    const Buffer<float> device = Copy(logits);
    const std::vector<LikelyQuery> queries = {{}, {}, {}, {}, {1.5f, 1}, {0.7f, 2.5f}};
    for (const float cap : {0.0f, 4.0f}) {
      const auto found = ours_->FindLikelyRows(device.data(), width, cap, queries);
      ASSERT_EQ(found.size(), size_t{kRows});
      for (int64_t r = 0; r < kRows; ++r) {
        SCOPED_TRACE(testing::Message() << width << ", " << r << ", " << cap);
        const Likely& ours = found[static_cast<size_t>(r)];
        ASSERT_EQ(ours.finite, r != 3 && r != 4);
        if (ours.finite) ExpectLikely(ours, {row(r), row(r) + width}, cap, queries[r]);
      }
    }
  }
}

// The bound of NormsAreAdded, and on a GPU one rounding to the 8 bits of bf16.
TEST_P(ActsParityTest, RowsBecomeTheirNorms) {
  constexpr int64_t kTokens = 5;
  const double error = ours_->IntermediateBytes() == 2 ? 0x1p-8 : 40 * kUlp;
  for (const int64_t width : {8, 300, 4096}) {
    auto x = RandomVector(rng_, kTokens * width);
    const bool weighted = width != 300;
    const auto weight =
        weighted ? RandomVector(rng_, width) : std::vector<float>(static_cast<size_t>(width), 1);
    Buffer<Intermediate> device_x = CopyValues(x);
    const Buffer<float> device_weight = Copy(weight);
    ours_->NormRows(device_x.data(), kTokens, width, weighted ? device_weight.data() : nullptr,
                    1e-3f);
    const std::vector<float> result = HostValues(device_x.data(), kTokens * width);
    for (int64_t t = 0; t < kTokens; ++t) {
      double squares = 0;
      for (int64_t k = 0; k < width; ++k) squares += std::pow(double{x[t * width + k]}, 2);
      const double root = std::sqrt(squares / static_cast<double>(width) + double{1e-3f});
      for (int64_t k = 0; k < width; ++k) {
        const double expected = x[t * width + k] / root * weight[k];
        ASSERT_NEAR(result[t * width + k], expected, error * std::fabs(expected)) << width;
      }
    }
  }
}

TEST_P(ActsParityTest, RowsOfATableAreThoseOfTheReference) {
  const std::vector<int32_t> ids = {0, 39, 17, 17, 3};
  for (const FormatSpec& format : {FormatSpec{.bits = 8}, FormatSpec{.bits = 4, .group = 32},
                                   FormatSpec{.bits = 6, .symmetric = false}, FormatSpec{}}) {
    const auto linear = RandomLinear(rng_, format, 40, {.width = 288}, false);
    AlignedBytes memory;
    Buffer<float> device(ours_->allocator());
    device.Grow(5 * 288);
    const PackedWeights table = ours_->Share(linear->packed.weights, memory);
    ours_->Embed(table, ids, 0.75f, device.data());
    std::vector<float> expected(5 * 288, -1);
    ref_->Embed(linear->packed.weights, ids, 0.75f, expected.data());
    EXPECT_EQ(Host(device.data(), 5 * 288), expected) << FormatText(format);
  }
}

}  // namespace
}  // namespace nibble
