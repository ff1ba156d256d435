// SPDX-License-Identifier: Apache-2.0
// The reference backend against fp64 evaluations of what each op means, and its two modes against
// each other.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <numeric>

#include "backends/backend_testing.h"
#include "backends/ref/ref_backend.h"
#include "base/half.h"
#include "base/thread_pool.h"

namespace nibble {
namespace {

class RefTest : public testing::Test {
 protected:
  Rng rng_{17};
  const std::unique_ptr<Backend> integer_ = MakeRefBackend(RefMode::kInteger);
  const std::unique_ptr<Backend> decoded_ = MakeRefBackend(RefMode::kDecoded);
};

TEST_F(RefTest, Names) {
  const InputSpec input = {.width = 64, .activations = {.bits = 4}};
  const auto linear = RandomLinear(rng_, {.bits = 4}, 3, input, false);
  EXPECT_EQ(integer_->KernelFor(MainProduct(linear->packed), 1).name, "ref_gemm");
  EXPECT_EQ(decoded_->KernelFor(MainProduct(linear->packed), 1).name, "decoded_sgemm");
}

// `size`, the sum of |w| (|x| + 2 |a z|), bounds every intermediate sum of either mode: x = a (q
// + z). `lost` bounds what 16-bit inputs lose as two planes: half a step of 1 / 32639 of the
// largest, and two roundings.
struct Exact {
  std::vector<double> y, size, lost;
};

Exact ExactProduct(const TestLinear& linear, const Activations& acts) {
  const Matrix<float> w = Decode(linear.packed.weights);
  const FormatSpec& f = linear.packed.input.activations;
  const int64_t groups = f.groups(w.cols);
  Exact result;
  for (int64_t t = 0; t < acts.tokens; ++t) {
    for (int64_t n = 0; n < w.rows; ++n) {
      double y = 0, size = 0, largest = 0, weights = 0;
      for (int64_t k = 0; k < w.cols; ++k) {
        double x = 0, shift = 0;
        if (f.quantized()) {
          const int64_t g = t * groups + k * groups / w.cols;
          shift = acts.zero_offsets == nullptr ? 0 : double{acts.scales[g]} * acts.zero_offsets[g];
          x = double{acts.scales[g]} * acts.codes[t * acts.stride + k] + shift;
        } else {
          x = acts.values[t * w.cols + k];
        }
        y += x * w.row(n)[k];
        size += std::fabs(w.row(n)[k]) * (std::fabs(x) + 2 * std::fabs(shift));
        largest = std::max(largest, std::fabs(x));
        weights += std::fabs(w.row(n)[k]);
      }
      const double bias = linear.bias.empty() ? 0 : linear.bias[n];
      result.y.push_back(y + bias);
      result.size.push_back(size + std::fabs(bias));
      result.lost.push_back(largest * (0.5 / 32639 + 2 * kUlp) * weights);
    }
  }
  return result;
}

void ExpectProduct(Backend& backend, const TestLinear& linear, const std::vector<float>& x,
                   int64_t tokens, double roundings, bool planes = false) {
  const Activations acts = backend.PrepareActs({.x = x.data()}, tokens, linear.packed.input);
  const Exact exact = ExactProduct(linear, acts);
  const int64_t rows = linear.packed.weights.rows;
  std::vector<float> y(static_cast<size_t>(tokens * rows), NAN);
  const LinearId id = backend.Upload(linear.packed);
  backend.Gemm(acts, id, y.data(), rows, false);
  for (size_t i = 0; i < y.size(); ++i) {
    const double lost = planes ? exact.lost[i] : 0;
    ASSERT_NEAR(y[i], exact.y[i], roundings * kUlp * exact.size[i] + lost)
        << FormatText(linear.packed.weights.format) << " x "
        << FormatText(linear.packed.input.activations) << " at " << i;
  }
  backend.Gemm(acts, id, y.data(), rows, true);  // y + y: one more rounding
  for (size_t i = 0; i < y.size(); ++i) {
    const double lost = planes ? exact.lost[i] : 0;
    ASSERT_NEAR(y[i], 2 * exact.y[i], (2 * roundings + 2) * kUlp * exact.size[i] + 2 * lost);
  }
  backend.Release(id);
}

TEST_F(RefTest, BothModesAreTheExactProductUpToRounding) {
  for (const int w_bits : {2, 3, 4, 5, 6, 7, 8, 16}) {
    for (const int a_bits : {4, 6, 8, 16}) {
      for (const int variant : {0, 1, 2, 3}) {
        const FormatSpec w = {.bits = w_bits,
                              .symmetric = variant % 2 == 0,
                              .group = variant < 2 ? 0 : 32,
                              .sparse = w_bits < 16 && variant == a_bits / 2 % 4};
        const FormatSpec a = a_bits == 16 ? FormatSpec{}
                                          : FormatSpec{.bits = a_bits,
                                                       .symmetric = variant == 0 || variant == 3,
                                                       .group = variant % 3 == 0 ? 0 : 64,
                                                       .clip = 0.9};
        const InputSpec input = {.width = 192, .activations = a};
        const auto linear = RandomLinear(rng_, w, 19, input, variant % 2 == 1);
        const int64_t tokens = 7;
        const auto x = RandomRows(rng_, tokens, 192);
        // A chain of K products and sums, decoding (2 + 2) and the bias.
        ExpectProduct(*decoded_, *linear, x, tokens, 192 + 8);
        // Integers: at most 7 roundings in a group, one sum per group, the bias.
        const bool integers = w_bits < 16;
        ExpectProduct(*integer_, *linear, x, tokens, integers ? 192 / 32 + 8 : 192 + 8,
                      integers && a_bits == 16);
      }
    }
  }
}

TEST_F(RefTest, BiggerThanATile) {
  const InputSpec input = {.width = 100, .activations = {.bits = 8}};
  const auto linear = RandomLinear(rng_, {.bits = 4}, 700, input, true);
  const auto x = RandomRows(rng_, 150, 100);
  ExpectProduct(*decoded_, *linear, x, 150, 100 + 8);
  ExpectProduct(*integer_, *linear, x, 150, 8 + 1);
}

// Beside a sum in extended precision over the row as software rounds it to fp16: fp32 adds seven
// times and multiplies once, each time with an error of kUlp of at most sum |x|, and the result has
// 11 significant bits.
TEST_F(RefTest, TransformsOf16BitsRoundRowsInFrontAndBehind) {
  const int64_t width = 128, tokens = 5;
  const InputSpec spec = {.width = width, .transform = FullHadamard(width), .transform_bits = 16};
  auto x = RandomVector(rng_, tokens * width);
  const float* values = integer_->PrepareActs({.x = x.data()}, tokens, spec).values;
  const std::vector<float> y(values, values + tokens * width);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < width; ++i) {
      long double sum = 0, size = 0;
      for (int64_t k = 0; k < width; ++k) {
        const long double entry = F32FromF16(F16FromF32(x[t * width + k]));
        sum += std::popcount(static_cast<uint64_t>(i & k)) % 2 == 0 ? entry : -entry;
        size += std::fabs(entry);
      }
      const long double root = std::sqrt(static_cast<long double>(width));
      const long double sums = 9 * kUlp * size / root, exact = sum / root;
      const float result = y[t * width + i];
      ASSERT_NEAR(result, exact, sums + 0x1p-11 * (std::fabs(exact) + sums)) << t << ", " << i;
      ASSERT_EQ(std::bit_cast<uint32_t>(result) & 0x1FFF, 0U);
    }
  }
  // The range is fp32's.
  for (float& value : x) value *= 0x1p100f;
  values = integer_->PrepareActs({.x = x.data()}, tokens, spec).values;
  for (int64_t i = 0; i < tokens * width; ++i) ASSERT_EQ(values[i], y[i] * 0x1p100f) << i;
}

TEST_F(RefTest, PreparedRowsAreTransformedAndQuantized) {
  const int64_t width = 128, tokens = 3;
  const auto x = RandomRows(rng_, tokens, width);
  for (const bool quantized : {false, true}) {
    const InputSpec spec = {.width = width,
                            .transform = FullHadamard(width),
                            .activations = {.bits = quantized ? 4 : 16, .symmetric = false}};
    const Activations acts = integer_->PrepareActs({.x = x.data()}, tokens, spec);
    for (int64_t t = 0; t < tokens; ++t) {
      std::vector<float> row(x.begin() + t * width, x.begin() + (t + 1) * width);
      ApplyTransform(spec.transform, row);
      if (!quantized) {
        for (int64_t i = 0; i < width; ++i) ASSERT_EQ(acts.values[t * width + i], row[i]);
        continue;
      }
      std::vector<int8_t> codes(width);
      float scale = 0, zero_offset = 0;
      int32_t sum = 0;
      QuantizeActivations(row, spec.activations, {codes.data(), &scale, &zero_offset, &sum});
      for (int64_t i = 0; i < width; ++i) ASSERT_EQ(acts.codes[t * acts.stride + i], codes[i]);
      EXPECT_EQ(acts.scales[t], scale);
      EXPECT_EQ(acts.zero_offsets[t], zero_offset);
      EXPECT_EQ(acts.sums[t], sum);
    }
  }
}

TEST_F(RefTest, NormAndActivationFunctions) {
  const int64_t tokens = 5, width = 77;
  const auto x = RandomVector(rng_, tokens * width), weight = RandomVector(rng_, width);
  std::vector<float> y(x.size(), NAN), z(x.size(), NAN);
  const InputSpec plain = {.width = width};
  const ActsSource normed = {.x = x.data(),
                             .op = ActsSource::Op::kRmsNorm,
                             .norm_weight = weight.data(),
                             .norm_eps = 1e-5f};
  std::copy_n(integer_->PrepareActs(normed, tokens, plain).values, y.size(), y.begin());
  const ActsSource gated = {.op = ActsSource::Op::kGated, .gate = Raw(x), .up = Raw(y)};
  std::copy_n(integer_->PrepareActs(gated, tokens, plain).values, z.size(), z.begin());
  for (int64_t t = 0; t < tokens; ++t) {
    long double squares = 0;
    for (int64_t i = 0; i < width; ++i)
      squares += std::pow(static_cast<long double>(x[t * width + i]), 2);
    for (int64_t i = t * width; i < (t + 1) * width; ++i) {
      const long double norm = x[i] / std::sqrt(squares / width + 1e-5f) * weight[i % width];
      ASSERT_NEAR(y[i], norm, 4 * kUlp * std::fabs(y[i]));
      const long double silu = x[i] / (1 + std::exp(-static_cast<long double>(x[i]))) * y[i];
      ASSERT_NEAR(z[i], silu, 6 * kUlp * std::fabs(z[i]));
    }
  }
}

// Attention over the decoded cache in fp64, from its definition.
std::vector<double> ExactAttention(const float* q, const TestCache& cache, int64_t kv_head,
                                   int64_t head_dim, int64_t position, const AttentionSpec& spec) {
  std::vector<double> out(static_cast<size_t>(head_dim));
  double total = 0;
  for (int64_t j = 0; j <= position; ++j) {
    if (spec.sliding_window != 0 && j <= position - spec.sliding_window) continue;
    const auto k = cache.Row(true, kv_head, j, position),
               v = cache.Row(false, kv_head, j, position);
    double score = 0;
    for (int64_t d = 0; d < head_dim; ++d) score += double{q[d]} * k[d];
    const double weight = std::exp(score * spec.scale);  // small scores: no maximum needed
    total += weight;
    for (int64_t d = 0; d < head_dim; ++d) out[d] += weight * v[d];
  }
  for (double& o : out) o /= total;
  return out;
}

TEST_F(RefTest, AttentionIsSoftmaxOverTheCache) {
  const int64_t d = 32, heads = 6, positions = 250;
  for (const int bits : {3, 4, 8, 16, 32}) {
    for (const int64_t window : {0, 5, 70}) {
      const KvSpec kv = {.kv_heads = 2,
                         .head_dim = d,
                         .k = {.bits = bits, .symmetric = bits == 3},
                         .v = {.bits = bits, .symmetric = false, .group = 16},
                         .rotation = FullHadamard(d),
                         .recent_bits = bits == 3 ? 8 : 0};
      const AttentionSpec spec = {.heads = heads, .scale = 0.18f, .sliding_window = window};
      TestCache cache(rng_, kv, positions);
      auto q = RandomVector(rng_, positions * heads * d), k = RandomVector(rng_, positions * 2 * d);
      const auto v = RandomVector(rng_, positions * 2 * d);
      const auto original_q = q;
      const RopeTable rope = RandomRope(rng_, positions, d / 2);
      const SequenceSlice all = cache.Slice(0, positions, 0);
      integer_->RopeAndAppend(Raw(q), Raw(k), Raw(v), spec, rope, kv, {&all, 1});
      for (int64_t i = 0; i < positions * heads; ++i) {  // rotations keep lengths
        double before = 0, after = 0;
        for (int64_t j = i * d; j < (i + 1) * d; ++j) {
          before += original_q[j] * double{original_q[j]}, after += q[j] * double{q[j]};
        }
        ASSERT_NEAR(before, after, 40 * kUlp * before);
      }
      // The last tokens as a second chunk, behind a gap of unused rows.
      const SequenceSlice tail = cache.Slice(60, positions - 60, 60);
      for (Backend* backend : {integer_.get(), decoded_.get()}) {
        std::vector<float> out(q.size(), NAN), chunk(q.size(), NAN);
        backend->Attention(Raw(q), spec, kv, {&all, 1}, Raw(out));
        backend->Attention(Raw(q), spec, kv, {&tail, 1}, Raw(chunk));
        EXPECT_TRUE(std::isnan(chunk[60 * heads * d - 1]));
        for (int64_t t = 0; t < positions; t += 7) {
          for (int64_t h = 0; h < heads; ++h) {
            const int64_t at = (t * heads + h) * d;
            const auto exact = ExactAttention(q.data() + at, cache, h / 3, d, t, spec);
            for (int64_t i = 0; i < d; ++i) {
              // fp32 scores of size about 1 with 32 + 4 roundings of terms that sum to < 30 in
              // size, on values of size < 5.
              ASSERT_NEAR(out[at + i], exact[i], 5 * 2 * 36 * 30 * kUlp) << t << " " << h;
              if (t >= 60) {
                ASSERT_NEAR(chunk[at + i], exact[i], 5 * 2 * 36 * 30 * kUlp);
              }
            }
          }
        }
      }
    }
  }
}

// kInteger promises that a row has the same bits alone, in any batch and with any threads.
TEST_F(RefTest, RowsDoNotDependOnTheBatch) {
  for (const int bits : {4, 16}) {
    const InputSpec input = {.width = 96, .activations = {.bits = bits}};
    const auto linear = RandomLinear(rng_, {.bits = 4, .group = 32}, 300, input, true);
    const LinearId id = integer_->Upload(linear->packed);
    const auto x = RandomRows(rng_, 9, 96);
    std::vector<float> batch(9 * 300, NAN), alone(300, NAN);
    SetThreads(3);
    integer_->Gemm(integer_->PrepareActs({.x = x.data()}, 9, input), id, batch.data(), 300, false);
    SetThreads(1);
    for (int64_t t = 0; t < 9; ++t) {
      const Activations acts = integer_->PrepareActs({.x = x.data() + t * 96}, 1, input);
      integer_->Gemm(acts, id, alone.data(), 300, false);
      for (int64_t n = 0; n < 300; ++n) ASSERT_EQ(batch[t * 300 + n], alone[n]);
    }
    SetThreads(0);
  }
}

TEST_F(RefTest, GroupsThatDoNotNestAreRefused) {
  const InputSpec input = {.width = 192, .activations = {.bits = 8, .group = 96}};
  const auto linear = RandomLinear(rng_, {.bits = 4, .group = 64}, 3, input, false);
  EXPECT_THROW(integer_->Upload(linear->packed), Error);
}

}  // namespace
}  // namespace nibble
