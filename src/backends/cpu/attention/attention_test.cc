// SPDX-License-Identifier: Apache-2.0
// Attention against a softmax in double over the values DequantizeKv gives, and against itself: a
// row's bits must not depend on chunks, batches, threads or the rows beside it.
#include "backends/cpu/attention/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "backends/backend_testing.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "formats/quantizer.h"

namespace nibble::cpu {
namespace {

std::vector<float> ShiftedFloats(Rng& rng, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = static_cast<float>(rng.Normal() + 0.25);
  return values;
}

KvSpec MakeKv(int64_t kv_heads, int64_t head_dim, FormatSpec k, FormatSpec v) {
  KvSpec kv;
  kv.kv_heads = kv_heads;
  kv.head_dim = head_dim;
  kv.k = k;
  kv.v = v;
  return kv;
}

// The pages of one sequence and what they decode to. Bytes that no token wrote are NaN in every
// format that has one.
class TestCache {
 public:
  TestCache(const KvSpec& kv, int64_t capacity) : kv_(kv) {
    const int64_t count = (capacity + kPageTokens - 1) / kPageTokens;
    const auto bytes = static_cast<size_t>(kv.page_bytes());
    for (int64_t p = 0; p < count; ++p) {
      memory_.push_back(std::make_unique<std::byte[]>(bytes));  // of exactly one page, for ASan
      std::memset(memory_.back().get(), 0xFF, bytes);
      pages_.push_back(memory_.back().get());
    }
  }

  // k, v [tokens, kv_heads, head_dim]
  void Append(const float* k, const float* v, int64_t tokens) {
    for (int64_t i = 0; i < tokens * kv_.kv_heads; ++i) {
      const int64_t token = size_ + i / kv_.kv_heads;
      std::byte* block = pages_[token / kPageTokens] + i % kv_.kv_heads * kv_.block_bytes();
      const int64_t row = token % kPageTokens, d = kv_.head_dim;
      Write(k + i * d, kv_.k, row, block, block + kv_.k_params(), keys_);
      Write(v + i * d, kv_.v, row, block + kv_.v_codes(), block + kv_.v_params(), values_);
    }
    size_ += tokens;
  }

  std::byte* const* pages() const { return pages_.data(); }
  const float* key(int64_t token, int64_t head) const { return Row(keys_, token, head); }
  const float* value(int64_t token, int64_t head) const { return Row(values_, token, head); }

 private:
  const float* Row(const std::vector<float>& rows, int64_t token, int64_t head) const {
    return rows.data() + (token * kv_.kv_heads + head) * kv_.head_dim;
  }
  void Write(const float* x, const FormatSpec& format, int64_t row, std::byte* codes,
             std::byte* params, std::vector<float>& decoded) {
    const auto d = static_cast<size_t>(kv_.head_dim);
    std::byte* packed = codes + row * kv_.row_bytes(format);
    decoded.resize(decoded.size() + d);
    const std::span<float> out(decoded.data() + decoded.size() - d, d);
    auto* bytes = reinterpret_cast<uint8_t*>(packed);
    auto* pair = reinterpret_cast<uint16_t*>(params) + row * kv_.params_per_row(format);
    QuantizeKv({x, d}, format, bytes, pair);
    DequantizeKv(bytes, pair, format, out);
  }

  KvSpec kv_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::vector<std::byte*> pages_;
  std::vector<float> keys_, values_;
  int64_t size_ = 0;
};

struct AttentionCase {
  int64_t heads, kv_heads, head_dim;
  FormatSpec k, v;
  int64_t tokens, window;

  AttentionSpec spec() const {
    return {.heads = heads,
            .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim))),
            .sliding_window = window};
  }
  KvSpec kv() const { return MakeKv(kv_heads, head_dim, k, v); }
};

// q, k, v of one sequence and its cache, which tokens enter as they are attended to.
struct TestSequence {
  TestSequence(const AttentionCase& c, uint64_t seed) : test(c), cache(c.kv(), c.tokens) {
    Rng rng(seed);
    q = ShiftedFloats(rng, c.tokens * c.heads * c.head_dim);
    RoundQueries(c.spec(), q);
    k = ShiftedFloats(rng, c.tokens * c.kv_heads * c.head_dim);
    v = ShiftedFloats(rng, c.tokens * c.kv_heads * c.head_dim);
  }
  void Append(int64_t tokens) {
    const int64_t width = test.kv_heads * test.head_dim;
    cache.Append(k.data() + written * width, v.data() + written * width, tokens);
    written += tokens;
  }
  // Writes the whole prompt in chunks and attends after each.
  std::vector<float> Run(Isa isa, int64_t chunk) {
    const KvSpec kv = test.kv();
    const int64_t width = test.heads * test.head_dim;
    std::vector<float> out(q.size(), std::numeric_limits<float>::quiet_NaN());
    for (int64_t first = 0; first < test.tokens; first += chunk) {
      const int64_t count = std::min(chunk, test.tokens - first);
      Append(count);
      const SequenceSlice slice{
          .first_row = 0, .tokens = count, .position = first, .pages = cache.pages()};
      Attention(isa, q.data() + first * width, test.spec(), kv, {&slice, 1},
                out.data() + first * width);
    }
    return out;
  }

  AttentionCase test;
  TestCache cache;
  std::vector<float> q, k, v;
  int64_t written = 0;
};

class AttentionTest : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (GetParam() > DetectedIsa()) GTEST_SKIP() << "needs " << IsaName(GetParam());
  }
  void TearDown() override { SetThreads(0); }
  static bool amx() { return GetParam() == Isa::kAmx; }
};
INSTANTIATE_TEST_SUITE_P(Isa, AttentionTest, testing::Values(Isa::kAvx2, Isa::kAvx512, Isa::kAmx),
                         [](const auto& isa) { return std::string(IsaName(isa.param)); });

// One row against the softmax in double, with u = 2^-24. A relative error w of every weight moves
// the mean of values within +-max|v| by at most 2 w max|v|. On tiles (attention_tiles.h) the sums
// run over |s (c - b)| + |s (z - b)|, at most 2.2 max|k| or 2.2 max|v| of a row.
void CheckRow(const TestSequence& s, int64_t token, int64_t head, const float* got, bool amx) {
  const AttentionCase& c = s.test;
  const int64_t kv_head = head / (c.heads / c.kv_heads);
  const int64_t first = c.window == 0 ? 0 : std::max<int64_t>(0, token - c.window + 1);
  const float* q = s.q.data() + (token * c.heads + head) * c.head_dim;
  std::vector<double> weights, out(static_cast<size_t>(c.head_dim), 0.0);
  double max = -1e300, sum = 0, score_error = 0, max_value = 0;
  for (int64_t key = first; key <= token; ++key) {
    double dot = 0, size = 0, q_size = 0, k_max = 0;
    for (int64_t i = 0; i < c.head_dim; ++i) {
      const double k = s.cache.key(key, kv_head)[i], product = static_cast<double>(q[i]) * k;
      dot += product;
      size += std::abs(product);
      q_size += std::abs(static_cast<double>(q[i]));
      k_max = std::max(k_max, std::abs(k));
    }
    // In units of the natural exponent: head_dim fused steps; scale, its product with log2(e) and
    // theirs with q; S - m.
    const double scale = c.spec().scale, rounding = 0x1p-24 * static_cast<double>(c.head_dim + 6);
    weights.push_back(dot * scale);
    max = std::max(max, weights.back());
    score_error = std::max(score_error, scale * rounding * (amx ? 2.2 * k_max * q_size : size));
  }
  for (double& w : weights) sum += w = std::exp(w - max);
  for (int64_t key = first; key <= token; ++key) {
    for (int64_t i = 0; i < c.head_dim; ++i) {
      const double value = s.cache.value(key, kv_head)[i];
      out[i] += weights[key - first] / sum * value;
      max_value = std::max(max_value, std::abs(value));
    }
  }
  const auto keys = static_cast<double>(token + 1 - first);
  // Exp2 is off by 1.5e-7. A page rescales by at most one Exp2 and one rounding; O and l share the
  // factors but not the roundings. Sums of P and P V round once a key; bf16 weights lose 2^-9 each.
  const double pages = 2 * keys / kPageTokens + 2;
  const double weight_error = 2 * score_error + 1.5e-7 + pages * (1.5e-7 + 0x1p-24);
  const double sum_error = (keys + 2) * 0x1p-24 + (amx ? 0x1p-9 : 0);
  const double bound = 2 * max_value * (weight_error + (amx ? 1.1 : 1) * sum_error);
  for (int64_t i = 0; i < c.head_dim; ++i) {
    ASSERT_NEAR(got[i], out[i], bound) << "token " << token << ", head " << head << ", " << i;
  }
}

void CheckCase(Isa isa, const AttentionCase& c) {
  SCOPED_TRACE(testing::Message() << c.heads << "/" << c.kv_heads << " heads of " << c.head_dim
                                  << ", K " << FormatText(c.k) << ", V " << FormatText(c.v) << ", "
                                  << c.tokens << " tokens, window " << c.window);
  TestSequence sequence(c, 99);
  const std::vector<float> out = sequence.Run(isa, c.tokens);
  for (int64_t token = 0; token < c.tokens; ++token) {
    for (int64_t head = 0; head < c.heads; ++head) {
      CheckRow(sequence, token, head, out.data() + (token * c.heads + head) * c.head_dim,
               isa == Isa::kAmx);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

constexpr FormatSpec kInt3{.bits = 3, .symmetric = false};
constexpr FormatSpec kInt4{.bits = 4, .symmetric = false};
constexpr FormatSpec kInt4Symmetric{.bits = 4, .symmetric = true};
constexpr FormatSpec kInt8{.bits = 8, .symmetric = false};
constexpr FormatSpec kFp32{.bits = 32};

TEST_P(AttentionTest, MatchesSoftmaxInDoubleAroundPagesAndWindows) {
  for (const int64_t tokens : {1, 63, 64, 65, 200}) {
    for (const int64_t window : {0, 1, 8, 64, 100}) {
      CheckCase(GetParam(), {.heads = 4,
                             .kv_heads = 2,
                             .head_dim = 64,
                             .k = kInt4,
                             .v = kInt4,
                             .tokens = tokens,
                             .window = window});
    }
  }
}

TEST_P(AttentionTest, MatchesSoftmaxInDoubleForHeadsAndFormats) {
  CheckCase(GetParam(), {3, 1, 16, kInt4, kInt3, 130, 0});
  CheckCase(GetParam(), {2, 2, 24, kInt3, kInt8, 70, 20});
  CheckCase(GetParam(), {5, 1, 80, kFp32, kInt8, 100, 64});
  CheckCase(GetParam(), {7, 1, 128, kInt8, kFp32, 90, 0});
  CheckCase(GetParam(), {2, 1, 256, kInt4Symmetric, kInt4Symmetric, 150, 100});
  CheckCase(GetParam(), {9, 1, 96, kInt8, kInt4, 190, 0});
  CheckCase(GetParam(), {130, 1, 8, kFp32, kFp32, 66, 0});  // more heads than rows of an item
  const FormatSpec grouped{.bits = 4, .symmetric = false, .group = 32};
  const FormatSpec odd{.bits = 5, .symmetric = false, .group = 20};
  CheckCase(GetParam(), {2, 1, 128, grouped, grouped, 67, 0});
  CheckCase(GetParam(), {2, 1, 80, odd, odd, 67, 0});
}

// With one visible key P = l = 1, so the output is the decoded value, bit for bit; on tiles P times
// the value's scale is bf16, and s (c - b) is at most 2.2 max|v|.
TEST_P(AttentionTest, DecodesEveryFormat) {
  for (const int bits : {2, 3, 4, 5, 6, 7, 8, 16, 32}) {
    for (const int64_t head_dim : {8, 16, 64, 80, 128, 256, 512}) {
      for (const int64_t group : {0, 8, 16}) {
        if (bits == 16 && group != 0) continue;
        if (head_dim % std::max<int64_t>(group, 1) != 0) continue;
        const FormatSpec format{.bits = bits, .symmetric = bits % 3 == 0, .group = group};
        const AttentionCase c{2, 2, head_dim, format, format, 67, 1};
        TestSequence sequence(c, static_cast<uint64_t>(bits));
        const std::vector<float> out = sequence.Run(GetParam(), c.tokens);
        for (int64_t i = 0; i < c.tokens * c.heads; ++i) {
          const float* value = sequence.cache.value(i / c.heads, i % c.heads);
          float largest = 0;
          for (int64_t j = 0; j < head_dim; ++j) largest = std::max(largest, std::abs(value[j]));
          const float bound = amx() ? 0x1p-9f * 2.2f * largest : 0;
          for (int64_t j = 0; j < head_dim; ++j) {
            ASSERT_NEAR(value[j], out[i * head_dim + j], bound)
                << FormatText(format) << ", head_dim " << head_dim << ", row " << i;
          }
        }
      }
    }
  }
}

// Scores 0 and x exactly, values 0 and 1: the output is e^x / (1 + e^x), 0 where e^x is below
// 2^-100, within 1.5e-7 of Exp2, x times the two roundings of its product with log2(e), and the
// roundings of the sum and quotient.
TEST_P(AttentionTest, WeightsAreAccurateDownToTheCut) {
  const AttentionCase c{1, 1, 8, kFp32, kFp32, 2, 0};
  AttentionSpec spec = c.spec();
  spec.scale = 1;
  for (double x = 0; x > -120; x = x * 1.01 - 0.01) {
    TestSequence s(c, 0);
    for (std::vector<float>* t : {&s.q, &s.k, &s.v}) std::fill(t->begin(), t->end(), 0.0f);
    s.q[8] = 1;
    s.k[8] = static_cast<float>(x);
    std::fill(s.v.begin() + 8, s.v.end(), 1.0f);
    s.Append(2);
    const SequenceSlice slice{.first_row = 0, .tokens = 2, .position = 0, .pages = s.cache.pages()};
    std::vector<float> out(16, std::numeric_limits<float>::quiet_NaN());
    Attention(GetParam(), s.q.data(), spec, c.kv(), {&slice, 1}, out.data());
    const double weight = std::exp(static_cast<double>(s.k[8]));
    const double expected = weight < 0x1p-100 ? 0 : weight / (1 + weight);
    ASSERT_NEAR(out[8], expected, expected * (1.5e-7 - x * 0x1p-23 + 3 * 0x1p-24)) << x;
  }
}

TEST_P(AttentionTest, ChunksAndThreadsDoNotChangeABit) {
  for (const int64_t window : {0, 100}) {
    const AttentionCase c{6, 2, 64, kInt4, kInt3, 300, window};
    SetThreads(1);
    const std::vector<float> whole = TestSequence(c, 5).Run(GetParam(), c.tokens);
    for (const int threads : {1, 2}) {
      SetThreads(threads);
      for (const int64_t chunk : {1, 7, 64, 100, 300}) {
        const std::vector<float> out = TestSequence(c, 5).Run(GetParam(), chunk);
        ASSERT_EQ(std::memcmp(out.data(), whole.data(), out.size() * sizeof(float)), 0)
            << "chunk " << chunk << ", window " << window << ", threads " << threads;
      }
    }
  }
}

// One new token behind a long context: with one thread the spans run in a row, with four each by
// itself.
TEST_P(AttentionTest, SpansJoinAlikeOnAnyThreads) {
  for (const int64_t window : {0, 1100}) {
    const AttentionCase c{2, 1, 64, kInt4, kInt4, 2200, window};
    SetThreads(1);
    const std::vector<float> whole = TestSequence(c, 6).Run(GetParam(), c.tokens);
    TestSequence s(c, 6);
    s.Append(c.tokens);
    const int64_t last = (c.tokens - 1) * c.heads * c.head_dim;
    const SequenceSlice slice{
        .first_row = 0, .tokens = 1, .position = c.tokens - 1, .pages = s.cache.pages()};
    for (const int threads : {1, 4}) {
      SetThreads(threads);
      std::vector<float> out(static_cast<size_t>(c.heads * c.head_dim), NAN);
      Attention(GetParam(), s.q.data() + last, c.spec(), c.kv(), {&slice, 1}, out.data());
      EXPECT_EQ(std::memcmp(out.data(), whole.data() + last, out.size() * sizeof(float)), 0)
          << "window " << window << ", threads " << threads;
      CheckRow(s, c.tokens - 1, 1, out.data() + c.head_dim, amx());
    }
  }
}

TEST_P(AttentionTest, BatchOfSequencesEqualsEachAlone) {
  const std::vector<int64_t> lengths = {70, 1, 129, 33, 200}, fresh = {70, 1, 1, 20, 65};
  std::vector<std::unique_ptr<TestSequence>> sequences;
  std::vector<SequenceSlice> batch;
  std::vector<float> q, expected;
  const AttentionCase shape = amx() ? AttentionCase{5, 1, 96, kInt4, kInt8, 0, 90}
                                    : AttentionCase{5, 1, 80, kFp32, kInt8, 0, 90};
  const int64_t width = shape.heads * shape.head_dim;
  int64_t rows = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    AttentionCase c = shape;
    c.tokens = lengths[i];
    sequences.push_back(std::make_unique<TestSequence>(c, i));
    TestSequence& s = *sequences.back();
    const std::vector<float> alone = s.Run(GetParam(), c.tokens);
    const int64_t position = lengths[i] - fresh[i];
    batch.push_back(
        {.first_row = rows, .tokens = fresh[i], .position = position, .pages = s.cache.pages()});
    q.insert(q.end(), s.q.begin() + position * width, s.q.end());
    expected.insert(expected.end(), alone.begin() + position * width, alone.end());
    rows += fresh[i];
  }
  std::vector<float> out(q.size(), std::numeric_limits<float>::quiet_NaN());
  Attention(GetParam(), q.data(), shape.spec(), shape.kv(), batch, out.data());
  EXPECT_EQ(std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)), 0);
}

}  // namespace
}  // namespace nibble::cpu
