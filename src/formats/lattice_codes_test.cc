// SPDX-License-Identifier: Apache-2.0
// The codebooks against their definitions and brute force, and their error on normal numbers.
#include "formats/lattice_codes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "base/rng.h"

namespace nibble {
namespace {

constexpr int64_t kWeights = LatticeCode::kWeights;
using Codeword = LatticeCode::Codeword;

std::array<float, kWeights> NormalVector(Rng& rng, double deviation) {
  std::array<float, kWeights> x;
  for (float& v : x) v = static_cast<float>(deviation * rng.Normal());
  return x;
}

double SquaredDistance(std::span<const float> x, const Codeword& codeword, double unit) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += std::pow(x[i] - unit * codeword[i], 2);
  return sum;
}

// The 65536 codewords are those of the lattice D8^ + 1/4 and - 1/4 (half-integers with an even sum)
// whose patterns have a norm of at most 10, and 29 of norm 12.
TEST(LatticeCodeTest, TwoBitsAreTheirDefinition) {
  const LatticeCode code(2);
  std::set<Codeword> codewords;
  std::set<std::vector<int>> patterns;
  std::map<int, int> norms;
  int odd = 0;
  for (uint32_t c = 0; c < 65536; ++c) {
    const Codeword codeword = code.Decode(c);
    ASSERT_TRUE(codewords.insert(codeword).second) << c;
    const int shift = (c & 128) != 0 ? 1 : -1;
    std::vector<int> pattern;  // twice the magnitudes
    int twice_sum = 0, norm = 0, magnitudes = 0;
    for (const int quarters : codeword) {
      ASSERT_TRUE(quarters % 2 != 0 && std::abs(quarters) <= 11) << quarters;
      ASSERT_EQ((quarters - shift) % 4, (quarters - shift) > 0 ? 2 : -2);
      const int twice = (quarters - shift) / 2;
      pattern.push_back(std::abs(twice));
      twice_sum += twice;
      norm += twice * twice;
      magnitudes += std::abs(twice);
    }
    ASSERT_EQ(twice_sum % 4, 0) << c;  // the sum is even
    if (!patterns.insert(pattern).second) continue;
    ++norms[norm / 4];
    odd += magnitudes / 2 % 2;
  }
  EXPECT_EQ(norms, (std::map<int, int>{{2, 1}, {4, 8}, {6, 28}, {8, 64}, {10, 126}, {12, 29}}));
  EXPECT_EQ(odd, 149);
}

TEST(LatticeCodeTest, TheNearestCodewordIsThatOfBruteForce) {
  const LatticeCode code(2);
  std::vector<Codeword> codewords;
  for (uint32_t c = 0; c < 65536; ++c) codewords.push_back(code.Decode(c));
  Rng rng(3);
  for (int trial = 0; trial < 300; ++trial) {
    const auto x = NormalVector(rng, trial % 3 == 0 ? 2.5 : 1);  // some far outside
    double best = INFINITY;
    for (const Codeword& codeword : codewords) {
      double sum = 0;
      for (size_t i = 0; i < x.size(); ++i)
        sum += (x[i] - 0.25 * codeword[i]) * (x[i] - 0.25 * codeword[i]);
      best = std::min(best, sum);
    }
    // fp32 sums of nine terms of up to 100.
    ASSERT_NEAR(SquaredDistance(x, code.Decode(code.Encode(x)), 0.25), best, 200 * 9 * 0x1p-24);
  }
}

// A codeword's code is its own, alone or with a second one behind it, wherever that is short
// enough.
TEST(LatticeCodeTest, CodewordsKeepTheirCodes) {
  const LatticeCode two(2), four(4);
  for (uint32_t c = 0; c < 65536; ++c) {
    const Codeword codeword = two.Decode(c);
    std::array<float, kWeights> x;
    for (size_t i = 0; i < x.size(); ++i) x[i] = 0.25f * codeword[i];
    ASSERT_EQ(two.Encode(x), c);
    const Codeword twice = four.Decode(c << 16 | (c * 40503 & 65535));
    for (size_t i = 0; i < x.size(); ++i) ASSERT_LE(std::abs(twice[i] - 4 * codeword[i]), 11);
  }
}

// The words that kernels look up: of all codes of 2 bits, and of all second codes.
TEST(LatticeCodeTest, WordsAreTheCodewords) {
  const LatticeWords& words = LatticeCode::Words();
  const auto n = [](uint32_t word, size_t i) {
    return static_cast<int>(word >> (8 * (i % 4) + i / 4 * 4) & 15);
  };
  const LatticeCode two(2), three(3);
  for (uint32_t code = 0; code < 1u << 16; ++code) {
    const uint32_t word = words.entries[code >> 8] ^ words.signs[code & 255];
    const LatticeCode::Codeword codeword = two.Decode(code);
    for (size_t i = 0; i < codeword.size(); ++i) {
      ASSERT_EQ(2 * n(word, i) - two.offset(), codeword[i]) << code << " " << i;
      const int steps = words.steps[i / 4][code >> 8] >> i % 4 * 2 & 3;
      ASSERT_EQ(steps,
                (std::abs(n(word, i) - (code & 128 ? 8 : 7)) - (n(word, i) >= 8 ? 0 : 1)) / 2)
          << code << " " << i;
    }
  }
  for (uint32_t code = 0; code < 256; ++code) {
    const LatticeCode::Codeword codeword = three.Decode(code), first = two.Decode(0);
    for (size_t i = 0; i < codeword.size(); ++i) {
      EXPECT_EQ(n(words.shorts[code], i) - 4, codeword[i] - first[i]) << code << " " << i;
    }
  }
}

// Mean squared errors of the literature for these constructions, and no more.
TEST(LatticeCodeTest, NormalNumbersLoseLittle) {
  const double max[] = {0.0915, 0.0300, 0.0086};
  for (int bits = 2; bits <= 4; ++bits) {
    const LatticeCode code(bits);
    Rng rng(7);
    double sum = 0, squares = 0;
    constexpr int kVectors = 40000;
    for (int i = 0; i < kVectors; ++i) {
      const auto x = NormalVector(rng, code.deviation());
      const double error = SquaredDistance(x, code.Decode(code.Encode(x)), code.unit()) /
                           (kWeights * std::pow(code.deviation(), 2));
      sum += error, squares += error * error;
    }
    const double mean = sum / kVectors, variance = squares / kVectors - mean * mean;
    const double uncertain = 3 * std::sqrt(variance / kVectors);
    EXPECT_LE(mean - uncertain, max[bits - 2]) << bits;
    EXPECT_GE(mean + uncertain, 0.95 * max[bits - 2]) << bits;  // of numbers that are normal
  }
}

// The second codebook of 3 bits: 256 points of E8, 241 of them all that have a norm of at most 2.
TEST(LatticeCodeTest, ShortVectorsAreOfE8) {
  const Codeword first = LatticeCode(2).Decode(4660);
  std::set<Codeword> codewords;
  std::map<int, int> norms;
  for (uint32_t c = 0; c < 256; ++c) {
    Codeword twice = LatticeCode(3).Decode(4660 << 8 | c);  // the vector, after its first codeword
    int norm = 0, sum = 0;
    for (size_t i = 0; i < twice.size(); ++i) {
      twice[i] = static_cast<int8_t>(twice[i] - first[i]);
      norm += twice[i] * twice[i];
      sum += twice[i];
      EXPECT_EQ(twice[i] & 1, twice[0] & 1);  // all whole, or all halves
    }
    EXPECT_EQ(sum % 4, 0);
    EXPECT_TRUE(codewords.insert(twice).second) << c;
    ++norms[norm / 4];
  }
  EXPECT_EQ(norms, (std::map<int, int>{{0, 1}, {2, 240}, {4, 15}}));
}

}  // namespace
}  // namespace nibble
