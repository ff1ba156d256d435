// SPDX-License-Identifier: Apache-2.0
// Integer products of the cpu backend against the reference backend, bit for bit: every pair of
// formats and odd sizes, on every instruction set of this machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "backends/parity_testing.h"
#include "base/thread_pool.h"

namespace nibble {
namespace {

struct Product {
  std::vector<float> cpu, ref;
};

// Both backends on the activations of the reference; rows lie 3 floats further apart than needed.
class GemmParityTest : public CpuParityTest {
 protected:
  Product Multiply(const TestLinear& linear, const std::vector<float>& x, int64_t tokens,
                   bool accumulate) {
    const int64_t rows = linear.packed.weights.rows, stride = rows + 3;
    const Activations acts = ref_->PrepareActs({.x = x.data()}, tokens, linear.packed.input);
    Product p;
    p.cpu.assign(static_cast<size_t>(tokens * stride), kPoison);
    if (accumulate) {
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t n = 0; n < rows; ++n)
          p.cpu[t * stride + n] = static_cast<float>(rng_.Normal());
      }
    }
    p.ref = p.cpu;
    Run(*ours_, acts, linear, p.cpu.data(), stride, accumulate);
    Run(*ref_, acts, linear, p.ref.data(), stride, accumulate);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t n = rows; n < stride; ++n) EXPECT_EQ(p.cpu[t * stride + n], kPoison);
    }
    return p;
  }

  static void Run(Backend& backend, const Activations& acts, const TestLinear& linear, float* y,
                  int64_t stride, bool accumulate) {
    const LinearId id = backend.Upload(linear.packed);
    backend.Gemm(acts, id, y, stride, accumulate);
    backend.Release(id);
  }

  void ExpectBitEqual(const FormatSpec& w, const FormatSpec& a, int64_t rows, int64_t cols,
                      int64_t tokens) {
    const InputSpec input = {.width = cols, .activations = a};
    const auto linear = RandomLinear(rng_, w, rows, input, rng_.Below(2) == 0);
    const auto x = RandomRows(rng_, tokens, cols);
    const Product p = Multiply(*linear, x, tokens, rng_.Below(2) == 0);
    for (size_t i = 0; i < p.cpu.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(p.cpu[i]), std::bit_cast<uint32_t>(p.ref[i]))
          << p.cpu[i] << " vs " << p.ref[i] << ": weights " << FormatText(w) << " acts "
          << FormatText(a) << " " << tokens << " x " << rows << " x " << cols << " at " << i;
    }
  }
};

NIBBLE_EVERY_ISA(GemmParityTest);

TEST_P(GemmParityTest, EveryPairOfFormatsIsBitEqual) {
  const int64_t tokens[] = {1, 2, 3, 4, 5, 17, 33};
  int64_t turn = 0;
  for (int bits = 2; bits <= 8; ++bits) {
    for (const bool symmetric : {true, false}) {
      for (const int64_t group : {0, 32, 64, 128}) {
        for (const FormatSpec& a : ActivationFormats()) {
          if (!a.quantized()) continue;
          const FormatSpec w = {.bits = bits, .symmetric = symmetric, .group = group};
          const bool grouped = group != 0 || a.group != 0;
          const int64_t cols = grouped ? 384 : 101;
          ExpectBitEqual(w, a, 1 + turn % 67, cols, tokens[turn % 7]);
          ++turn;
        }
      }
    }
  }
}

// Some rows of an input, lying together or not, for one linear each: those of the whole product.
TEST_P(GemmParityTest, ProductsOfSomeRowsAreThoseOfAll) {
  constexpr int64_t kTokens = 70, kWidth = 384;
  std::vector<int32_t> many(kTokens - 1);  // more than any gemv takes
  std::iota(many.begin(), many.end(), 0);
  many.back() = kTokens - 1;
  const std::vector<int32_t> chosen[] = {{69}, {3, 4, 5}, {0, 2, 64}, many};
  for (const FormatSpec& w : {FormatSpec{.bits = 4},
                              {.bits = 8, .symmetric = false},
                              {.bits = 4, .symmetric = false, .group = 128},
                              {.bits = 4, .group = 128, .second_level = true},
                              {.bits = 16}}) {
    for (const FormatSpec& a : ActivationFormats()) {
      if (a.group != 0 && w.second_level) continue;
      const InputSpec input = {.width = kWidth, .activations = a};
      std::vector<std::unique_ptr<TestLinear>> linears;
      std::vector<std::vector<float>> y;
      std::vector<Backend::RowsProduct> products;
      for (const auto& rows : chosen) {
        const int64_t outputs = 33 + 16 * static_cast<int64_t>(linears.size());
        linears.push_back(RandomLinear(rng_, w, outputs, input, linears.size() % 2 == 0));
        y.emplace_back(rows.size() * static_cast<size_t>(outputs), kPoison);
        products.push_back({ours_->Upload(linears.back()->packed), rows, y.back().data()});
      }
      const auto x = RandomRows(rng_, kTokens, kWidth);
      const Activations acts = ours_->PrepareActs({.x = x.data()}, kTokens, input);
      ours_->MultiplyRows(acts, products);
      for (size_t i = 0; i < products.size(); ++i) {
        const int64_t outputs = linears[i]->packed.weights.rows;
        std::vector<float> all(static_cast<size_t>(kTokens * outputs), kPoison);
        ours_->Gemm(acts, products[i].id, all.data(), outputs, false);
        for (size_t r = 0; r < chosen[i].size(); ++r) {
          const auto row = all.begin() + chosen[i][r] * outputs;
          ASSERT_TRUE(
              std::equal(row, row + outputs, y[i].begin() + static_cast<int64_t>(r) * outputs))
              << FormatText(w) << ", " << FormatText(a) << ", row " << chosen[i][r];
        }
        ours_->Release(products[i].id);
      }
    }
  }
}

// Steps of the second level that do not end where chunks do, and K that is padded.
TEST_P(GemmParityTest, TwoLevelsOfScalesAreBitEqual) {
  int64_t turn = 0;
  for (int bits = 2; bits <= 4; ++bits) {
    for (const int64_t tokens : {1, 2, 4, 5, 12, 13, 33, 65, 130}) {
      for (const auto& [cols, group] : std::vector<std::pair<int64_t, int64_t>>{
               {32, 32}, {1376, 32}, {1120, 160}, {1152, 128}, {2048, 1024}, {736, 736}}) {
        const FormatSpec w = {
            .bits = bits, .symmetric = turn % 2 == 0, .group = group, .second_level = true};
        ExpectBitEqual(w, {.bits = turn % 3 == 0 ? 4 : 8, .symmetric = turn % 5 != 0},
                       1 + turn % 67, cols, tokens);
        ++turn;
      }
    }
  }
}

// Rows of the kernel table, their tails and their blocks: K around the chunk, N around the panels.
TEST_P(GemmParityTest, OddSizesAreBitEqual) {
  for (const int bits : {4, 8}) {
    for (const int64_t tokens : {1, 2, 4, 5, 16, 31, 32, 64, 65, 257, 300}) {
      for (const int64_t cols : {1, 31, 512, 513, 1100}) {
        const FormatSpec a = {.bits = bits, .symmetric = tokens % 2 == 0, .clip = 0.9};
        ExpectBitEqual({.bits = bits, .symmetric = cols % 2 == 0}, a, tokens < 6 ? 131 : 47, cols,
                       tokens);
      }
    }
  }
  for (const int64_t group : {32, 64, 128}) {
    ExpectBitEqual({.bits = 4, .group = group}, {.bits = 8}, 65, 1152, 300);
    ExpectBitEqual({.bits = 4, .group = group}, {.bits = 4, .group = group}, 65, 4608, 3);
  }
}

TEST_P(GemmParityTest, SparseCodesAreBitEqual) {
  for (const bool symmetric : {true, false}) {
    for (const int64_t group : {0, 64}) {
      for (const int64_t tokens : {1, 5, 33}) {
        const FormatSpec a = {.bits = 4, .symmetric = symmetric, .group = group};
        for (const int bits : {3, 4, 8}) {
          const FormatSpec w = {
              .bits = bits, .symmetric = symmetric, .group = group, .sparse = true};
          ExpectBitEqual(w, a, 61, group == 0 ? 328 : 384, tokens);
        }
        const FormatSpec w = {
            .bits = 4, .symmetric = symmetric, .group = 64, .second_level = true, .sparse = true};
        ExpectBitEqual(w, {.bits = 8}, 61, 384, tokens);
      }
    }
  }
}

// All codes at the ends of their ranges: the largest sums, where saturating instructions would
// show.
TEST_P(GemmParityTest, ExtremeCodesAreBitEqual) {
  const int64_t cols = 2048, rows = 48;
  for (const int bits : {4, 8}) {
    for (const int byte : {0x00, 0x88, 0x77, 0x80, 0x7F, 0xFF}) {
      const InputSpec input = {.width = cols, .activations = {.bits = 8, .clip = 0.9}};
      auto linear = RandomLinear(rng_, {.bits = bits}, rows, input, false);
      std::fill(linear->quantized.codes.begin(), linear->quantized.codes.end(),
                static_cast<uint8_t>(byte));
      for (const int64_t tokens : {1, 6}) {
        for (const float sign : {1.0f, -1.0f}) {  // clipped: codes 127 and -128
          const std::vector<float> x(static_cast<size_t>(tokens * cols), sign);
          const Product p = Multiply(*linear, x, tokens, false);
          ASSERT_EQ(p.cpu, p.ref) << bits << " bits, byte " << byte;
        }
      }
    }
  }
}

// The promise of backend.h: same bits alone, in a batch, and with any number of threads.
TEST_P(GemmParityTest, RowsDependOnNothingElse) {
  const int64_t tokens = 37, cols = 352, rows = 90;
  for (const int w_bits : {3, 4, 8, 16}) {
    for (const int a_bits : {4, 8, 16}) {
      const InputSpec input = {.width = cols,
                               .transform = FullHadamard(cols),
                               .activations = {.bits = a_bits, .symmetric = a_bits != 4}};
      const auto linear = RandomLinear(rng_, {.bits = w_bits}, rows, input, true);
      const auto x = RandomVector(rng_, tokens * cols);
      const LinearId id = ours_->Upload(linear->packed);
      std::vector<float> batch(static_cast<size_t>(tokens * rows), kPoison);
      SetThreads(3);
      ours_->Gemm(ours_->PrepareActs({.x = x.data()}, tokens, input), id, batch.data(), rows,
                  false);
      SetThreads(1);
      for (int64_t t = 0; t < tokens;) {
        const int64_t count = std::min<int64_t>(1 + t % 6, tokens - t);
        std::vector<float> part(static_cast<size_t>(count * rows), kPoison);
        const Activations acts = ours_->PrepareActs({.x = x.data() + t * cols}, count, input);
        ours_->Gemm(acts, id, part.data(), rows, false);
        for (int64_t i = 0; i < count * rows; ++i) ASSERT_EQ(part[i], batch[t * rows + i]);
        t += count;
      }
      SetThreads(0);
      ours_->Release(id);
    }
  }
}

}  // namespace
}  // namespace nibble
