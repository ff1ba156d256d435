// SPDX-License-Identifier: Apache-2.0
// RoPE, the cache and attention of the cpu backend against the reference backend. Pages must agree
// bit for bit, attention within a bound derived below.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "backends/parity_testing.h"
#include "base/thread_pool.h"

namespace nibble {
namespace {

using AttentionParityTest = CpuParityTest;
NIBBLE_EVERY_ISA(AttentionParityTest);

struct CacheCase {
  FormatSpec k, v;
  int64_t kv_heads, group, head_dim;
  int recent_bits = 0;
};

std::vector<CacheCase> CacheCases() {
  std::vector<CacheCase> cases;
  const int64_t dims[] = {64, 128, 96, 80, 32}, kv_heads[] = {2, 1, 3}, groups[] = {1, 4, 2, 7};
  size_t turn = 0;
  for (const int bits : {2, 3, 4, 5, 6, 7, 8, 16, 32}) {
    for (const bool symmetric : {true, false}) {
      for (const bool grouped : {true, false}) {
        const int64_t d = dims[turn % 5];
        const FormatSpec f = {.bits = bits,
                              .symmetric = symmetric,
                              .group = grouped ? d / 2 : 0,
                              .clip = symmetric ? 1.0 : 0.95};
        // K and V differ now and then.
        const FormatSpec v = turn % 3 == 0 ? FormatSpec{.bits = 4, .symmetric = false} : f;
        const int recent_bits = turn % 2 == 0 && bits < 8 ? 8 : 0;
        cases.push_back({f, v, kv_heads[turn % 3], groups[turn % 4], d, recent_bits});
        ++turn;
      }
    }
  }
  return cases;
}

// Random tokens of one sequence, appended by a backend. No k is exactly zero: RoPE makes zeros of
// either sign, and the sign of a stored zero means nothing.
struct Sequence {
  Sequence(Rng& rng, const CacheCase& c, int64_t count)
      : positions(count),
        kv{.kv_heads = c.kv_heads,
           .head_dim = c.head_dim,
           .k = c.k,
           .v = c.v,
           .recent_bits = c.recent_bits},
        spec{.heads = c.kv_heads * c.group, .scale = 1 / std::sqrt(static_cast<float>(c.head_dim))},
        q(RandomVector(rng, count * c.kv_heads * c.group * c.head_dim)),
        k(RandomVector(rng, count * c.kv_heads * c.head_dim)),
        v(RandomRows(rng, count * c.kv_heads, c.head_dim)),
        center(RandomVector(rng, c.kv_heads * c.head_dim)) {}

  void Append(Backend& backend, const RopeTable& rope, const TestCache& cache, int64_t position,
              int64_t tokens) {
    const SequenceSlice slice = cache.Slice(position, tokens, position);
    backend.RopeAndAppend(Raw(q), Raw(k), Raw(v), spec, rope, kv, {&slice, 1});
  }

  int64_t positions;
  KvSpec kv;
  AttentionSpec spec;
  std::vector<float> q, k, v, center;
};

bool SameBytes(const TestCache& a, const TestCache& b) {
  return std::ranges::equal(a.bytes(), b.bytes());
}

TEST_P(AttentionParityTest, AppendedPagesAreBitEqual) {
  const int64_t positions = 133;
  for (const CacheCase& c : CacheCases()) {
    Sequence cpu(rng_, c, positions), ref = cpu;
    if (c.group != 2) cpu.spec.key_center = ref.spec.key_center = ref.center.data();
    TestCache cpu_cache(rng_, cpu.kv, positions), ref_cache(rng_, cpu.kv, positions);
    ref_cache.CopyFrom(cpu_cache);
    // Some models rotate only a part of the head.
    const int64_t half = c.group == 4 ? c.head_dim / 4 : c.head_dim / 2;
    const RopeTable rope = RandomRope(rng_, positions, half);
    ref.Append(*ref_, rope, ref_cache, 0, positions);
    for (int64_t at = 0, step = 1; at < positions; at += step, step = step * 2 % 61) {
      step = std::min(step, positions - at);
      cpu.Append(*ours_, rope, cpu_cache, at, step);
    }
    ASSERT_EQ(cpu.q, ref.q);
    ASSERT_EQ(cpu.k, ref.k);
    ASSERT_TRUE(SameBytes(cpu_cache, ref_cache)) << FormatText(c.k) << ", " << FormatText(c.v);
  }
}

TEST_P(AttentionParityTest, RotatedPagesHoldTheRotatedKeys) {
  const int64_t positions = 70;
  for (const CacheCase& c : CacheCases()) {
    Sequence cpu(rng_, c, positions), ref = cpu;
    TestCache cpu_cache(rng_, cpu.kv, positions), ref_cache(rng_, cpu.kv, positions);
    ref_cache.CopyFrom(cpu_cache);
    cpu.kv.rotation = ref.kv.rotation = FullHadamard(c.head_dim);
    const RopeTable rope = RandomRope(rng_, positions, c.head_dim / 2);
    cpu.Append(*ours_, rope, cpu_cache, 0, positions);
    ref.Append(*ref_, rope, ref_cache, 0, positions);
    // RoPE is the same bits; then each side rounds about log2(d) <= 7 times, entries < 6.
    for (size_t i = 0; i < cpu.q.size(); ++i) ASSERT_NEAR(cpu.q[i], ref.q[i], 20 * 6 * kUlp);
    for (size_t i = 0; i < cpu.k.size(); ++i) ASSERT_NEAR(cpu.k[i], ref.k[i], 20 * 6 * kUlp);
    // The cpu has stored exactly its own rotated k: appending that without any rotation must give
    // the same bytes.
    ref_cache.CopyFrom(cpu_cache);
    Sequence stored = cpu;
    stored.kv.rotation = {};
    stored.Append(*ref_, IdentityRope(positions, c.head_dim / 2), ref_cache, 0, positions);
    ASSERT_TRUE(SameBytes(cpu_cache, ref_cache)) << FormatText(c.k) << ", " << FormatText(c.v);
  }
}

// Error of the cpu's fp32 attention against the reference's fp64 sums, for one head: scores (d + 8)
// ulp of scale * sum |q k|, on either side of the subtraction of the maximum; weights the same as a
// relative error (e^x), 8 ulp for the exponential and its argument; sums one chain over the keys,
// twice, with page rescalings.
//
// On AMX the weights are bf16, 2^15 ulp, and products run over codes and zero points apart: |s (c -
// b)| + |s (z - b)| is at most 2.2 times the largest entry.
double AttentionBound(const Sequence& s, const TestCache& cache, int64_t token, int64_t head,
                      int64_t first, bool amx) {
  const int64_t d = s.kv.head_dim, kv_head = head / (s.spec.heads / s.kv.kv_heads);
  const float* q = s.q.data() + (token * s.spec.heads + head) * d;
  double size = 0, largest = 0;
  for (int64_t j = first; j <= token; ++j) {
    const auto k = cache.Row(true, kv_head, j, token), v = cache.Row(false, kv_head, j, token);
    double score = 0, q_size = 0, k_largest = 0;
    for (int64_t i = 0; i < d; ++i) {
      score += std::fabs(double{q[i]} * k[i]);
      q_size += std::fabs(double{q[i]});
      k_largest = std::max(k_largest, std::fabs(double{k[i]}));
      largest = std::max(largest, std::fabs(double{v[i]}));
    }
    size = std::max(size, (amx ? 2.2 * q_size * k_largest : score) * s.spec.scale);
  }
  const double rounding = amx ? 0x1p15 : 0;
  const double weights = 2 * static_cast<double>(d + 8) * size + 8 + 4 * size;
  return largest * kUlp * 2 *
         (weights + static_cast<double>(token + 1 - first) + 16 + 1.1 * rounding);
}

TEST_P(AttentionParityTest, AttentionAgreesOverTheSamePages) {
  for (const CacheCase& c : CacheCases()) {
    Sequence a(rng_, c, 301), b(rng_, c, 66);
    const TestCache cache_a(rng_, a.kv, 301), cache_b(rng_, b.kv, 66);
    const RopeTable rope = RandomRope(rng_, 301, c.head_dim / 2);
    a.Append(*ref_, rope, cache_a, 0, 301);
    b.Append(*ref_, rope, cache_b, 0, 66);
    RoundQueries(a.spec, a.q);
    RoundQueries(b.spec, b.q);
    const int64_t width = a.spec.heads * c.head_dim;
    // One batch: a chunk in the middle, one decoded token, which reads narrow pages of a cache that
    // has recent ones, a whole prompt. Each lies in q where its positions are; the second sequence
    // follows the first.
    std::vector<float> q = a.q;
    q.insert(q.end(), b.q.begin(), b.q.end());
    const SequenceSlice batch[] = {cache_a.Slice(190, 60, 190), cache_a.Slice(300, 1, 300),
                                   cache_b.Slice(301, 66, 0)};
    const std::vector<float> sinks = RandomVector(rng_, a.spec.heads);
    for (const int64_t window : {0, 1, 17, 64, 100}) {
      a.spec.sliding_window = b.spec.sliding_window = window;
      // Neither makes an error of scores or weights larger.
      a.spec.softcap = b.spec.softcap = window == 17 ? 0.5f : 0;
      a.spec.sinks = b.spec.sinks = window == 64 ? sinks.data() : nullptr;
      std::vector<float> cpu(q.size(), kPoison), ref(q.size(), kPoison);
      ours_->Attention(Raw(q), a.spec, a.kv, batch, Raw(cpu));
      ref_->Attention(Raw(q), a.spec, a.kv, batch, Raw(ref));
      for (const SequenceSlice& slice : batch) {
        const bool second = slice.first_row > 300;
        for (int64_t t = 0; t < slice.tokens; t += 1 + t / 3) {
          const int64_t position = slice.position + t;
          const int64_t first = window == 0 ? 0 : std::max<int64_t>(0, position - window + 1);
          const int64_t head = static_cast<int64_t>(rng_.Below(a.spec.heads));
          const double bound = AttentionBound(second ? b : a, second ? cache_b : cache_a, position,
                                              head, first, GetParam() == Isa::kAmx);
          const int64_t at = (slice.first_row + t) * width + head * c.head_dim;
          for (int64_t i = at; i < at + c.head_dim; ++i) {
            ASSERT_NEAR(cpu[i], ref[i], bound)
                << FormatText(c.k) << ", " << FormatText(c.v) << ", head " << head << " of "
                << a.spec.heads << ", position " << position << ", window " << window;
          }
        }
      }
      for (size_t i = 0; i < q.size(); ++i) ASSERT_EQ(cpu[i] == kPoison, ref[i] == kPoison) << i;
    }
  }
}

// The promise of backend.h: one chunk, many chunks, one token at a time, any threads: the same
// bits.
TEST_P(AttentionParityTest, AttentionDoesNotDependOnTheBatch) {
  for (const int bits : {4, 6, 8, 16}) {
    const FormatSpec f = {.bits = bits, .symmetric = false};
    for (const int64_t window : {0, 40, 200}) {
      Sequence s(rng_, {f, f, 2, 3, 64, bits < 8 ? 8 : 0}, 350);
      s.spec.sliding_window = window;
      const TestCache cache(rng_, s.kv, 350);
      s.Append(*ours_, RandomRope(rng_, 350, 32), cache, 0, 350);
      std::vector<float> whole(s.q.size(), kPoison), parts(s.q.size(), kPoison);
      const SequenceSlice all = cache.Slice(0, 350, 0);
      SetThreads(3);
      ours_->Attention(Raw(s.q), s.spec, s.kv, {&all, 1}, Raw(whole));
      SetThreads(1);
      for (int64_t at = 0, step = 1; at < 350; at += step, step = (step * 3 + 1) % 50 + 1) {
        const SequenceSlice part = cache.Slice(at, std::min(step, 350 - at), at);
        ours_->Attention(Raw(s.q), s.spec, s.kv, {&part, 1}, Raw(parts));
      }
      SetThreads(0);
      ASSERT_EQ(whole, parts);
    }
  }
}

}  // namespace
}  // namespace nibble
