// SPDX-License-Identifier: Apache-2.0
// Every op against scalar code (formats/, transforms/, loops below), for each vector instruction
// set of this machine and for 1 and 2 threads.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "backends/cpu/acts/activations.h"
#include "backends/cpu/attention/attention.h"
#include "backends/cpu/gemm/gemm_f32.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "formats/quantizer.h"
#include "transforms/hadamard.h"

namespace nibble::cpu {
namespace {

constexpr double kHalfUlp = 0x1p-24;  // relative error of one rounding

struct Setting {
  Isa isa;
  int threads;
};

class VectorOps : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    if (DetectedIsa() < GetParam().isa) GTEST_SKIP() << "needs " << IsaName(GetParam().isa);
    SetThreads(GetParam().threads);
  }
  void TearDown() override { SetThreads(0); }
  static Isa isa() { return GetParam().isa; }
};

INSTANTIATE_TEST_SUITE_P(All, VectorOps,
                         testing::Values(Setting{Isa::kAvx2, 1}, Setting{Isa::kAvx2, 2},
                                         Setting{Isa::kAvx512, 1}, Setting{Isa::kAvx512, 2},
                                         Setting{Isa::kAmx, 1}, Setting{Isa::kAmx, 2}),
                         [](const auto& param_info) {
                           return fmt::format("{}_{}threads", IsaName(param_info.param.isa),
                                              param_info.param.threads);
                         });

std::vector<float> Normals(Rng& rng, int64_t count, double sigma = 1) {
  std::vector<float> x(static_cast<size_t>(count));
  for (float& v : x) v = static_cast<float>(sigma * rng.Normal());
  return x;
}

std::vector<float> Poison(int64_t count) {
  return std::vector<float>(static_cast<size_t>(count), std::nanf(""));
}

bool SameBits(const float* a, const float* b, int64_t count) {
  return std::memcmp(a, b, static_cast<size_t>(count) * sizeof(float)) == 0;
}

// The source op and the transform alone: activations that are not quantized.
void PrepareValues(Isa isa, const ActsSource& source, int64_t tokens, const InputSpec& input,
                   float* y) {
  ActsWorkspace work;
  std::copy_n(PrepareActs(isa, source, tokens, input, false, work).values, tokens * input.width, y);
}

void RmsNorm(Isa isa, const float* x, const float* weight, float eps, int64_t tokens, int64_t width,
             float* y) {
  const ActsSource source = {
      .x = x, .op = ActsSource::Op::kRmsNorm, .norm_weight = weight, .norm_eps = eps};
  PrepareValues(isa, source, tokens, {.width = width}, y);
}

void SiluMul(Isa isa, const float* gate, const float* up, int64_t count, float* y) {
  PrepareValues(isa,
                {.op = ActsSource::Op::kGated,
                 .gate = reinterpret_cast<const Intermediate*>(gate),
                 .up = reinterpret_cast<const Intermediate*>(up)},
                1, {.width = count}, y);
}

void TransformRows(Isa isa, const TransformSpec& spec, float* x, int64_t rows) {
  PrepareValues(isa, {.x = x}, rows, {.width = spec.width(), .transform = spec}, x);
}

TEST_P(VectorOps, RmsNormMatchesDouble) {
  Rng rng(1);
  for (const int64_t width : {1, 7, 16, 33, 512, 1000, 4096}) {
    for (const int64_t tokens : {1, 3, 40}) {
      const std::vector<float> x = Normals(rng, tokens * width, 3);
      const std::vector<float> weight = Normals(rng, width);
      // All terms of the sum are positive: its relative error is at most one rounding per addition
      // on the longest chain (4 chains of at least 8 lanes, their sum, a tail of at most 15), and
      // the root halves it. Division, eps, root, 1/x and two products follow.
      const double chain = static_cast<double>(std::min(width, width / 32 + 32));
      const double bound = (chain / 2 + 6) * kHalfUlp;
      for (const float* w : {weight.data(), static_cast<const float*>(nullptr)}) {
        std::vector<float> y = Poison(tokens * width);
        RmsNorm(isa(), x.data(), w, 1e-5f, tokens, width, y.data());
        for (int64_t t = 0; t < tokens; ++t) {
          double sum = 0;
          for (int64_t i = 0; i < width; ++i) sum += std::pow(double{x[t * width + i]}, 2);
          const double inverse = 1 / std::sqrt(sum / static_cast<double>(width) + double{1e-5f});
          for (int64_t i = 0; i < width; ++i) {
            const double expected = x[t * width + i] * inverse * (w == nullptr ? 1.0 : w[i]);
            ASSERT_NEAR(y[t * width + i], expected, std::fabs(expected) * bound)
                << width << " token " << t << " element " << i;
          }
          std::vector<float> alone = Poison(width);
          RmsNorm(isa(), x.data() + t * width, w, 1e-5f, 1, width, alone.data());
          ASSERT_TRUE(SameBits(alone.data(), y.data() + t * width, width)) << width;
        }
      }
    }
  }
}

TEST_P(VectorOps, SiluMulMatchesDouble) {
  Rng rng(2);
  for (const int64_t count : {1, 15, 16, 17, 1000, 40001}) {
    std::vector<float> gate = Normals(rng, count, 8), up = Normals(rng, count);
    const float extremes[] = {0.0f, 20.0f, 100.0f, 1000.0f, -50.0f, -87.0f, -88.5f, -104.0f, -1e4f};
    for (size_t i = 0; i < std::min(gate.size(), std::size(extremes)); ++i) {
      gate[gate.size() - 1 - i] = extremes[i];
    }
    std::vector<float> out = Poison(count);
    SiluMul(isa(), gate.data(), up.data(), count, out.data());
    for (int64_t i = 0; i < count; ++i) {
      const double g = gate[i];
      const double expected = g / (1 + std::exp(-g)) * up[i];
      // Exp is good to 1 ulp (two half ulps), then a sum, a quotient and a product. Past the range
      // of fp32 exp the result becomes 0 instead of about 90 * 2^-128.
      const double bound = 5 * kHalfUlp * std::fabs(expected) + 0x1p-121 * std::fabs(up[i]);
      ASSERT_NEAR(out[i], expected, bound) << "gate " << g;
    }
    for (int64_t i = 0; i < std::min<int64_t>(count, 40); ++i) {
      float alone = std::nanf("");
      SiluMul(isa(), gate.data() + i, up.data() + i, 1, &alone);
      ASSERT_TRUE(SameBits(&alone, out.data() + i, 1)) << "an element depends on its place";
    }
  }
}

std::vector<TransformSpec> Transforms() {
  const TransformFactor twelve = {12, FactorKind::kPaley1}, twenty = {20, FactorKind::kPaley1};
  std::vector<TransformSpec> specs = {
      {.factors = FactorHadamard(8), .inner = 64},               // across heads
      {.factors = FactorHadamard(32), .inner = 128},             // across heads
      {.factors = FactorHadamard(24), .outer = 2, .inner = 80},  // across heads
      {.factors = FactorHadamard(64), .outer = 5},               // per head
      {.factors = {twelve}, .inner = 5},                         // runs of 5 floats
      {.factors = {twelve}, .outer = 3},                         // single floats
      {.factors = {twenty, twelve}, .outer = 2},                 // two dense factors
      {.factors = {twenty, twelve, FactorHadamard(16)[0]}},      // and a Sylvester one
      {.factors = FactorHadamard(16), .outer = 3, .inner = 3},   // odd inner
      {.factors = FactorHadamard(32), .inner = 24},              // inner no multiple of 16
      {.factors = FactorHadamard(2), .outer = 7},                // rows shorter than a vector
      {.factors = FactorHadamard(4), .outer = 3, .inner = 2},
      {.factors = FactorHadamard(8), .inner = 4},
      {.factors = FlatFactors(9), .inner = 64},   // across heads
      {.factors = FlatFactors(14), .inner = 64},  // across heads
      {.factors = FlatFactors(15), .outer = 2, .inner = 5},
      {.factors = {FlatFactors(7)[0], twelve, FactorHadamard(4)[0]}, .outer = 3},
      {.factors = {twelve, FlatFactors(2 * 13)[0]}},
      Inverse({.factors = FlatFactors(11), .outer = 9}),
      {.factors = {{688, FactorKind::kFourier}}},
      {.factors = {{14, FactorKind::kFourier, true}}, .outer = 3, .inner = 5},
      {.factors = {twelve, {86, FactorKind::kFourier}, FactorHadamard(4)[0]}},
  };
  for (const int64_t width : {13696, 16, 64, 128, 256, 344, 688, 1024, 1376, 8192, 11008, 14336}) {
    specs.push_back(FullHadamard(width));
  }
  return specs;
}

TEST_P(VectorOps, TransformRowsMatchesDouble) {
  Rng rng(3);
  for (const TransformSpec& spec : Transforms()) {
    const int64_t width = spec.width();
    // Roundings on the way of an input to an output: a dense factor adds 2 levels of its tables and
    // order / 4 of them (on AMX one for each of three terms of each input), a Sylvester factor its
    // stages, other matrices their order and 1. The scale and its product are two more.
    //
    // Each is relative to a partial sum, at most sum |x| times the largest entry of the transform.
    double depth = 2, largest = spec.scale();
    for (const TransformFactor& f : spec.factors) {
      const auto order = static_cast<double>(f.order);
      const double dense = GetParam().isa == Isa::kAmx ? 3 * order : 2 + order / 4;
      depth += f.kind == FactorKind::kSylvester ? std::log2(order)
               : f.hadamard()                   ? dense
                                                : order + 1;
      if (f.hadamard()) continue;
      largest *= std::ranges::max(FactorMatrix(f), {}, [](double v) { return std::fabs(v); });
    }
    for (const int64_t rows : {1, 2, 5, 17}) {
      const std::vector<float> x = Normals(rng, rows * width);
      std::vector<float> y = x;
      TransformRows(isa(), spec, y.data(), rows);
      for (int64_t r = 0; r < rows; ++r) {
        std::vector<double> expected(x.begin() + r * width, x.begin() + (r + 1) * width);
        double max = 0;  // largest such sum
        for (int64_t o = 0; o < spec.outer; ++o) {
          for (int64_t j = 0; j < spec.inner; ++j) {
            double sum = 0;
            for (int64_t f = 0; f < spec.order(); ++f) {
              sum += std::fabs(expected[(o * spec.order() + f) * spec.inner + j]);
            }
            max = std::max(max, sum * std::fabs(largest));
          }
        }
        ApplyTransform(spec, std::span<double>(expected));
        for (int64_t i = 0; i < width; ++i) {
          ASSERT_NEAR(y[r * width + i], expected[i], 1.001 * depth * kHalfUlp * max)
              << ToJson(spec).dump() << " row " << r << " of " << rows << " element " << i;
        }
        std::vector<float> alone(x.begin() + r * width, x.begin() + (r + 1) * width);
        TransformRows(isa(), spec, alone.data(), 1);
        ASSERT_TRUE(SameBits(alone.data(), y.data() + r * width, width)) << ToJson(spec).dump();
      }
    }
  }
}

void PoisonWorkspace(ActsWorkspace& work) {
  ActsMemory& memory = work.main;
  std::fill_n(memory.values.data(), memory.values.size(), std::nanf(""));
  std::fill_n(memory.scales.data(), memory.scales.size(), std::nanf(""));
  std::fill_n(memory.zero_offsets.data(), memory.zero_offsets.size(), std::nanf(""));
  std::fill_n(memory.codes.data(), memory.codes.size(), int8_t{0x5A});
  std::fill_n(memory.sums.data(), memory.sums.size(), 0x5A5A5A5A);
}

// `work` holds the prepared rows of x; `transformed` are the rows the codes must come from.
void ExpectActivations(const Activations& acts, const InputSpec& spec,
                       const std::vector<float>& transformed) {
  const int64_t width = spec.width, groups = spec.activations.groups(width);
  ASSERT_EQ(acts.stride, (width + 63) / 64 * 64);
  ASSERT_EQ(acts.zero_offsets == nullptr, spec.activations.symmetric);
  std::vector<int8_t> codes(static_cast<size_t>(width));
  std::vector<float> scales(static_cast<size_t>(groups)), zero_offsets(scales);
  std::vector<int32_t> sums(static_cast<size_t>(groups));
  for (int64_t t = 0; t < acts.tokens; ++t) {
    QuantizeActivations({transformed.data() + t * width, static_cast<size_t>(width)},
                        spec.activations,
                        {codes.data(), scales.data(), zero_offsets.data(), sums.data()});
    const std::string where =
        fmt::format("{} wide, {}, row {}", width, FormatText(spec.activations), t);
    const int8_t* row = acts.codes + t * acts.stride;
    ASSERT_EQ(codes, std::vector<int8_t>(row, row + width)) << where;
    for (int64_t i = width; i < acts.stride; ++i) ASSERT_EQ(row[i], 0) << where;
    ASSERT_TRUE(SameBits(scales.data(), acts.scales + t * groups, groups)) << where;
    ASSERT_EQ(sums, std::vector<int32_t>(acts.sums + t * groups, acts.sums + (t + 1) * groups));
    if (acts.zero_offsets != nullptr) {
      ASSERT_TRUE(SameBits(zero_offsets.data(), acts.zero_offsets + t * groups, groups)) << where;
    }
  }
}

TEST_P(VectorOps, PreparedCodesAreTheQuantizers) {
  Rng rng(4);
  std::vector<InputSpec> inputs;
  for (const int64_t width : {3, 32, 100, 129, 1376}) inputs.push_back({.width = width});
  for (const TransformSpec& transform : Transforms()) {
    inputs.push_back({.width = transform.width(), .transform = transform});
  }
  ActsWorkspace work;
  int variant = 0;
  for (InputSpec& input : inputs) {
    for (int bits = 2; bits <= 8; ++bits) {
      const int64_t shares[] = {0, input.width, std::gcd(input.width, int64_t{12}),
                                std::gcd(input.width, int64_t{32})};
      input.activations = {.bits = bits,
                           .symmetric = ++variant % 2 == 0,
                           .group = shares[variant % 4],
                           .clip = variant % 3 == 0 ? 1.0 : 0.9};
      const int64_t tokens = 1 + variant % 7;
      std::vector<float> x = Normals(rng, tokens * input.width, 5);
      if (variant % 5 == 0) {  // exact halves, zeros, a constant row
        for (float& v : x) v = std::nearbyintf(v) / 2;
        std::fill_n(x.begin(), input.width, variant % 2 == 0 ? 0.0f : 2.5f);
      }
      std::vector<float> transformed = x;
      TransformRows(isa(), input.transform, transformed.data(), tokens);
      PoisonWorkspace(work);
      ExpectActivations(PrepareActs(isa(), {.x = x.data()}, tokens, input, variant % 2 == 0, work),
                        input, transformed);
      ASSERT_FALSE(HasFatalFailure());
    }
  }
}

TEST_P(VectorOps, LargeBatchReusesTheWorkspace) {
  Rng rng(5);
  const InputSpec input = {.width = 688,
                           .transform = FullHadamard(688),
                           .activations = {.bits = 4, .symmetric = false, .clip = 0.9}};
  constexpr int64_t kTokens = 150;
  const std::vector<float> x = Normals(rng, kTokens * input.width);
  std::vector<float> transformed = x;
  TransformRows(isa(), input.transform, transformed.data(), kTokens);
  ActsWorkspace work;
  const int8_t* codes = PrepareActs(isa(), {.x = x.data()}, kTokens, input, true, work).codes;
  for (const int64_t tokens : {kTokens, int64_t{1}, kTokens - 1}) {
    PoisonWorkspace(work);
    const Activations acts = PrepareActs(isa(), {.x = x.data()}, tokens, input, true, work);
    EXPECT_EQ(acts.codes, codes) << "allocated again";
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t k = 0; k < acts.stride; ++k) {
        const int64_t tile = t / 16 * (acts.stride / 64) + k / 64;
        ASSERT_EQ(acts.tiles[(tile * 16 + t % 16) * 64 + k % 64], codes[t * acts.stride + k]);
      }
    }
    ExpectActivations(acts, input, transformed);
    ASSERT_FALSE(HasFatalFailure());
  }
}

TEST_P(VectorOps, SixteenBitActivationsAreValues) {
  Rng rng(6);
  InputSpec input = {.width = 688};
  const std::vector<float> x = Normals(rng, 33 * input.width);
  ActsWorkspace work;
  EXPECT_EQ(PrepareActs(isa(), {.x = x.data()}, 33, input, false, work).values, x.data());
  input.transform = FullHadamard(688);
  std::vector<float> expected = x;
  TransformRows(isa(), input.transform, expected.data(), 33);
  const Activations acts = PrepareActs(isa(), {.x = x.data()}, 33, input, false, work);
  EXPECT_EQ(acts.codes, nullptr);
  EXPECT_TRUE(SameBits(acts.values, expected.data(), 33 * input.width));
}

// Three sequences in one batch: at a start, across a page boundary, and one token far in.
struct CacheCase {
  CacheCase(const KvSpec& spec, int64_t heads_) : kv(spec), heads(heads_) {
    for (auto& memory : {&pages, &expected_pages}) {
      memory->assign(static_cast<size_t>(kPages * kv.page_bytes()), std::byte{0xA5});
    }
    const int64_t order[kPages] = {4, 0, 5, 2, 1, 3};
    for (int64_t i = 0; i < kPages; ++i) {
      table.push_back(pages.data() + order[i] * kv.page_bytes());
      expected_table.push_back(expected_pages.data() + order[i] * kv.page_bytes());
    }
    for (const auto& [first_row, tokens, position, page] :
         {std::array<int64_t, 4>{5, 4, 62, 0}, {0, 5, 0, 2}, {9, 1, 130, 3}}) {
      batch.push_back({first_row, tokens, position, table.data() + page});
      expected_batch.push_back({first_row, tokens, position, expected_table.data() + page});
    }
  }
  static constexpr int64_t kRows = 10, kPages = 6;
  KvSpec kv;
  int64_t heads;
  std::vector<std::byte> pages, expected_pages;
  std::vector<std::byte*> table, expected_table;
  std::vector<SequenceSlice> batch, expected_batch;
};

void ScalarRope(float* x, int64_t heads, int64_t head_dim, const RopeTable& rope,
                int64_t position) {
  const int64_t half = rope.cos.cols;
  for (int64_t h = 0; h < heads; ++h, x += head_dim) {
    for (int64_t i = 0; i < half; ++i) {
      const float c = rope.cos.row(position)[i], s = rope.sin.row(position)[i];
      const float a = x[i], b = x[i + half];
      x[i] = a * c - b * s;
      x[i + half] = b * c + a * s;
    }
  }
}

void ScalarStore(const float* x, int64_t head_dim, const FormatSpec& format, std::byte* codes,
                 std::byte* params) {
  QuantizeKv({x, static_cast<size_t>(head_dim)}, format, reinterpret_cast<uint8_t*>(codes),
             reinterpret_cast<uint16_t*>(params));
}

void ScalarRopeAndAppend(Isa isa, const CacheCase& c, const RopeTable& rope, std::vector<float>& q,
                         std::vector<float>& k, const std::vector<float>& v) {
  const KvSpec& kv = c.kv;
  const int64_t d = kv.head_dim;
  for (const SequenceSlice& slice : c.expected_batch) {
    for (int64_t t = 0; t < slice.tokens; ++t) {
      const int64_t row = slice.first_row + t, position = slice.position + t;
      float* q_row = q.data() + row * c.heads * d;
      float* k_row = k.data() + row * kv.kv_heads * d;
      ScalarRope(q_row, c.heads, d, rope, position);
      ScalarRope(k_row, kv.kv_heads, d, rope, position);
      if (!kv.rotation.identity()) {
        TransformRows(isa, kv.rotation, q_row, c.heads);  // itself tested above
        TransformRows(isa, kv.rotation, k_row, kv.kv_heads);
      }
      const int64_t slot = position % kPageTokens;
      for (int64_t h = 0; h < kv.kv_heads; ++h) {
        std::byte* block = slice.page(position) + h * kv.block_bytes();
        ScalarStore(k_row + h * d, d, kv.k, block + slot * kv.row_bytes(kv.k),
                    block + kv.k_params() + slot * 2 * kv.params_per_row(kv.k));
        ScalarStore(v.data() + (row * kv.kv_heads + h) * d, d, kv.v,
                    block + kv.v_codes() + slot * kv.row_bytes(kv.v),
                    block + kv.v_params() + slot * 2 * kv.params_per_row(kv.v));
      }
    }
  }
}

// Heads as long as the weights, one behind the other. fp64 sums of fp32 squares of so few values
// have the same fp32 quotient in any order.
void ScalarHeadNorms(std::span<const float> weights, float eps, std::vector<float>& heads) {
  for (size_t first = 0; first < heads.size(); first += weights.size()) {
    double squares = 0;
    for (size_t i = weights.size(); i-- > 0;) squares += std::pow(double{heads[first + i]}, 2);
    const double mean = squares / static_cast<double>(weights.size());
    const auto factor = static_cast<float>(1 / std::sqrt(mean + double{eps}));
    for (size_t i = 0; i < weights.size(); ++i) {
      heads[first + i] = heads[first + i] * factor * weights[i];
    }
  }
}

TEST_P(VectorOps, RopeAndAppendWritesTheQuantizersPages) {
  Rng rng(7);
  int variant = 0;
  for (const int64_t d : {6, 16, 24, 64, 80, 128}) {
    for (const int bits : {2, 3, 4, 5, 6, 7, 8, 16, 32}) {
      ++variant;
      const auto format = [&](int b, int i) {
        const int64_t groups[] = {0, d, d / 2, std::gcd(d, int64_t{12})};
        return FormatSpec{.bits = b,
                          .symmetric = i % 2 == 0,
                          .group = groups[i / 2 % 4],
                          .clip = i % 3 == 0 ? 1.0 : 0.95};
      };
      const KvSpec kv = {.kv_heads = 3,
                         .head_dim = d,
                         .k = format(bits, variant),
                         .v = format(variant % 3 == 0 ? 4 : bits, variant / 2),
                         .rotation = variant % 4 == 0 ? TransformSpec{} : FullHadamard(d)};
      CacheCase c(kv, 6);
      // Every fifth case rotates only a part of the head.
      const RopeTable rope = BuildRope({.head_dim = variant % 5 == 0 ? d / 2 / 2 * 2 : d}, 140);
      std::vector<float> q = Normals(rng, c.kRows * 6 * d), k = Normals(rng, c.kRows * 3 * d, 4);
      std::vector<float> v = Normals(rng, c.kRows * 3 * d);
      for (int64_t i = 0; i < 3 * d; ++i) v[i] = std::fabs(v[i]);  // the range includes 0
      std::vector<float> expected_q = q, expected_k = k;
      AttentionSpec spec = {.heads = 6};
      const std::vector<float> q_norm = Normals(rng, d), k_norm = Normals(rng, d);
      if (variant % 3 == 0) {
        spec.q_norm = q_norm.data(), spec.k_norm = k_norm.data(), spec.norm_eps = 1e-3f;
        ScalarHeadNorms(q_norm, spec.norm_eps, expected_q);
        ScalarHeadNorms(k_norm, spec.norm_eps, expected_k);
      }
      ScalarRopeAndAppend(isa(), c, rope, expected_q, expected_k, v);
      RopeAndAppend(isa(), q.data(), k.data(), v.data(), spec, rope, kv, c.batch);
      const std::string where =
          fmt::format("head_dim {} K {} V {}", d, FormatText(kv.k), FormatText(kv.v));
      ASSERT_TRUE(SameBits(q.data(), expected_q.data(), c.kRows * 6 * d)) << where;
      ASSERT_TRUE(SameBits(k.data(), expected_k.data(), c.kRows * 3 * d)) << where;
      ASSERT_TRUE(c.pages == c.expected_pages) << where;
    }
  }
}

// More tokens than one task takes.
TEST_P(VectorOps, RopeAndAppendInOneCallOrTokenByToken) {
  Rng rng(8);
  constexpr int64_t kTokens = 200, kHeads = 8, kDim = 64;
  const FormatSpec four = {.bits = 4, .symmetric = false, .clip = 0.95};
  const KvSpec kv = {
      .kv_heads = 4, .head_dim = kDim, .k = four, .v = four, .rotation = FullHadamard(kDim)};
  const RopeTable rope = BuildRope({.head_dim = kDim}, kTokens);
  std::vector<float> q = Normals(rng, kTokens * kHeads * kDim), q_alone = q;
  std::vector<float> k = Normals(rng, kTokens * 4 * kDim), k_alone = k;
  const std::vector<float> v = Normals(rng, kTokens * 4 * kDim);
  const auto bytes = static_cast<size_t>(4 * kv.page_bytes());
  std::vector<std::byte> pages(bytes, std::byte{0xA5}), pages_alone(bytes, std::byte{0xA5});
  std::vector<std::byte*> table, table_alone;
  for (int64_t i = 0; i < 4; ++i) {
    table.push_back(pages.data() + i * kv.page_bytes());
    table_alone.push_back(pages_alone.data() + i * kv.page_bytes());
  }
  std::vector<SequenceSlice> cut;  // so that tasks and slices end at different tokens
  for (int64_t t = 0; t < kTokens; t = cut.back().position + cut.back().tokens) {
    cut.push_back({t, std::min(kTokens - t, 1 + t % 70), t, table.data()});
  }
  RopeAndAppend(isa(), q.data(), k.data(), v.data(), {.heads = kHeads}, rope, kv, cut);
  for (int64_t t = 0; t < kTokens; ++t) {
    const SequenceSlice one = {t, 1, t, table_alone.data()};
    RopeAndAppend(isa(), q_alone.data(), k_alone.data(), v.data(), {.heads = kHeads}, rope, kv,
                  {&one, 1});
  }
  EXPECT_TRUE(pages == pages_alone);
  EXPECT_TRUE(SameBits(q.data(), q_alone.data(), kTokens * kHeads * kDim));
}

}  // namespace
}  // namespace nibble::cpu
