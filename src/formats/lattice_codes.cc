// SPDX-License-Identifier: Apache-2.0
#include "formats/lattice_codes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace nibble {
namespace {

constexpr int64_t kWeights = LatticeCode::kWeights;
constexpr int64_t kEntries = 256;
using Codeword = LatticeCode::Codeword;

// Twice the magnitudes of norm 12 that fill the 256 patterns: any 29 of those with an odd sum would
// do; these are the authors'.
constexpr std::string_view kLargePatterns[] = {
    "31113333", "13113333", "11313333", "11133333", "33313311", "33313131", "33311331", "33313113",
    "33311313", "33311133", "33133311", "33133131", "33131331", "33133113", "33131313", "33131133",
    "31333311", "31333131", "31331331", "31333113", "31331313", "13331133", "13333311", "13333131",
    "13331331", "13333113", "13331313", "11331333", "33113331"};

// Calls f(vector) for the vectors whose entries, rising in lexicographic order, are `choices`.
template <typename F>
void ForEachVector(std::span<const int8_t> choices, const F& f) {
  std::array<size_t, kWeights> at{};
  while (true) {
    Codeword vector;
    for (size_t i = 0; i < at.size(); ++i) vector[i] = choices[at[i]];
    f(vector);
    size_t i = at.size();
    while (i > 0 && at[i - 1] + 1 == choices.size()) at[--i] = 0;
    if (i == 0) return;
    ++at[i - 1];
  }
}

int SquaredNorm(const Codeword& vector) {
  int sum = 0;
  for (const int v : vector) sum += v * v;
  return sum;
}

// The patterns of E8P as vectors over its 256 entries: [weight][entry].
struct Patterns {
  alignas(64) float magnitudes[kWeights][kEntries];
  alignas(64) float halved_norms[kEntries];
  uint8_t odd[kEntries];  // 1: needs an odd number of minus signs

  Patterns() {
    int64_t count = 0;
    const auto add = [&](const Codeword& twice) {
      int sum = 0;
      for (int64_t i = 0; i < kWeights; ++i) {
        magnitudes[i][count] = static_cast<float>(twice[static_cast<size_t>(i)]) / 2;
        sum += twice[static_cast<size_t>(i)];
      }
      halved_norms[count] = static_cast<float>(SquaredNorm(twice)) / 8;
      odd[count++] = sum / 2 % 2 == 1;
    };
    constexpr int8_t kChoices[] = {1, 3, 5};
    ForEachVector(kChoices, [&](const Codeword& twice) {
      if (SquaredNorm(twice) <= 40) add(twice);
    });
    for (const std::string_view digits : kLargePatterns) {
      Codeword twice;
      std::ranges::transform(digits, twice.begin(), [](char c) { return c - '0'; });
      add(twice);
    }
    NIBBLE_CHECK(count == kEntries, "{} patterns", count);
  }
};

const Patterns& AllPatterns() {
  static const Patterns patterns;
  return patterns;
}

// Twice the 256 shortest vectors of E8, one of the sixteen of norm 4 on an axis left out.
const std::array<Codeword, kEntries>& ShortVectors() {
  static const std::array<Codeword, kEntries> vectors = [] {
    std::array<Codeword, kEntries> all{};
    size_t count = 0;
    constexpr int8_t kWhole[] = {-2, 0, 2}, kHalves[] = {-1, 1};
    const auto add = [&](const Codeword& twice) {
      int sum = 0;
      for (const int v : twice) sum += v;
      if (SquaredNorm(twice) <= 8 && sum % 4 == 0) all.at(count++) = twice;
    };
    ForEachVector(kWhole, add);
    ForEachVector(kHalves, add);
    for (size_t i = 0; count < all.size(); ++i) {
      all[count++][i / 2] = i % 2 == 0 ? 4 : -4;
    }
    return all;
  }();
  return vectors;
}

// The nearest point of C8 to y and its squared distance, but for the square of y.
struct Nearest {
  float distance;
  int64_t entry;
  uint32_t signs;  // bit i: entry i is negative
};

// For a pattern the best signs are those of y, or, where that makes the sum odd, with one of them
// changed: where it costs least. A point is nearest where <y, point> - |point|^2 / 2 is largest.
Nearest NearestOfC8(const std::array<float, kWeights>& y) {
  const Patterns& p = AllPatterns();
  alignas(64) float score[kEntries], min[kEntries];
  uint32_t signs = 0;
  for (int64_t e = 0; e < kEntries; ++e) score[e] = -p.halved_norms[e];
  std::ranges::fill(min, INFINITY);
  for (int64_t i = 0; i < kWeights; ++i) {
    const float size = std::fabs(y[static_cast<size_t>(i)]);
    signs |= uint32_t{std::signbit(y[static_cast<size_t>(i)])} << i;
    for (int64_t e = 0; e < kEntries; ++e) {
      const float share = p.magnitudes[i][e] * size;
      score[e] += share;
      min[e] = share < min[e] ? share : min[e];
    }
  }
  const int minus = std::popcount(signs) & 1;
  int64_t best = 0;
  float best_score = -INFINITY;
  for (int64_t e = 0; e < kEntries; ++e) {
    const float value = score[e] - (p.odd[e] == minus ? 0 : 2 * min[e]);
    if (value > best_score) best = e, best_score = value;
  }
  if (p.odd[best] != minus) {
    int64_t changed = 0;
    for (int64_t i = 1; i < kWeights; ++i) {
      const auto share = [&](int64_t at) {
        return p.magnitudes[at][best] * std::fabs(y[static_cast<size_t>(at)]);
      };
      if (share(i) < share(changed)) changed = i;
    }
    signs ^= 1u << changed;
  }
  return {-2 * best_score, best, signs};
}

// A code has the entry, seven signs, and in the place of the eighth, which follows from the entry's
// parity, whether a quarter is added or taken.
uint32_t EncodeE8p(std::span<const float, kWeights> x) {
  uint32_t code = 0;
  float best = INFINITY;
  for (const bool added : {true, false}) {
    const float shift = added ? 0.25f : -0.25f;
    std::array<float, kWeights> y;
    float square = 0;
    for (size_t i = 0; i < y.size(); ++i) {
      y[i] = x[i] - shift;
      square += y[i] * y[i];
    }
    const Nearest nearest = NearestOfC8(y);
    if (!(square + nearest.distance < best)) continue;
    best = square + nearest.distance;
    code = static_cast<uint32_t>(nearest.entry) << 8 | (nearest.signs & 127) | (added ? 128u : 0u);
  }
  return code;
}

// The codeword in quarters: odd numbers from -11 to 11.
Codeword DecodeE8p(uint32_t code) {
  const Patterns& p = AllPatterns();
  const uint32_t entry = code >> 8 & 255;
  uint32_t signs = code & 127;
  signs |= ((static_cast<uint32_t>(std::popcount(signs)) ^ p.odd[entry]) & 1) << 7;
  const int shift = (code & 128) != 0 ? 1 : -1;
  Codeword codeword;
  for (size_t i = 0; i < codeword.size(); ++i) {
    const int quarters = static_cast<int>(4 * p.magnitudes[i][entry]);
    codeword[i] = static_cast<int8_t>((signs >> i & 1 ? -quarters : quarters) + shift);
  }
  return codeword;
}

uint32_t EncodeShort(std::span<const float, kWeights> x) {
  const auto& vectors = ShortVectors();
  uint32_t best = 0;
  float best_score = -INFINITY;
  for (uint32_t code = 0; code < kEntries; ++code) {
    float score = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const float half = vectors[code][i];
      score += half * (x[i] - half / 4);
    }
    if (score > best_score) best = code, best_score = score;
  }
  return best;
}

// factor * (x - the E8P codeword of `code`)
std::array<float, kWeights> Left(std::span<const float, kWeights> x, uint32_t code, float factor) {
  const Codeword codeword = DecodeE8p(code);
  std::array<float, kWeights> left;
  for (size_t i = 0; i < left.size(); ++i) {
    left[i] = factor * (x[i] - static_cast<float>(codeword[i]) / 4);
  }
  return left;
}

LatticeWords MakeWords() {
  LatticeWords words{};
  const Patterns& p = AllPatterns();
  constexpr uint32_t kFlip = 14;  // flipping these bits negates n but for the quarter
  for (size_t code = 0; code < kEntries; ++code) {
    const auto bits = static_cast<uint32_t>(code);
    for (size_t i = 0; i < kWeights; ++i) {
      const size_t shift = 8 * (i % 4) + i / 4 * 4;
      const auto steps = static_cast<uint32_t>(p.magnitudes[i][code]);  // 1/2 is none
      words.entries[code] |= (8 | steps << 1) << shift;
      words.steps[i / 4][code] |= static_cast<uint8_t>(steps << i % 4 * 2);
      words.signs[code] |= ((i < 7 && (bits >> i & 1) != 0 ? kFlip : 0) | bits >> 7) << shift;
      words.shorts[code] |= static_cast<uint32_t>(ShortVectors()[code][i] + 4) << shift;
    }
    // The last sign makes the number of minus signs even, or odd where the entry asks for that.
    constexpr size_t kLast = 28;
    if (p.odd[code] != 0) words.entries[code] ^= kFlip << kLast;
    if (std::popcount(bits & 127) % 2 == 1) words.signs[code] ^= kFlip << kLast;
  }
  return words;
}

}  // namespace

const LatticeWords& LatticeCode::Words() {
  static const LatticeWords words = MakeWords();
  return words;
}

LatticeCode::LatticeCode(int bits) : bits_(bits) {
  NIBBLE_CHECK(bits >= 1 && bits <= 4, "{} bits", bits);
}

// The mean squared error of normal numbers is least here, by measurement, as with the factors 2 and
// 4 of what is left; the paper's (3.45 at 4 bits, deviation 1.03) lose 15 % more.
float LatticeCode::deviation() const {
  constexpr float kDeviations[] = {0.61f, 1.03f, 0.98f, 0.89f};
  return kDeviations[bits_ - 1];
}

uint32_t LatticeCode::Encode(std::span<const float, kWeights> x) const {
  if (bits_ == 1) return EncodeShort(x);
  const uint32_t first = EncodeE8p(x);
  if (bits_ == 2) return first;
  if (bits_ == 3) return first << 8 | EncodeShort(Left(x, first, 2));
  return first << 16 | EncodeE8p(Left(x, first, 4));
}

uint32_t LatticeCode::Encode(std::span<const double> weights, double scale) const {
  const double factor = unit() / scale;
  std::array<float, kWeights> x;
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(weights[i] * factor);
  return Encode(x);
}

LatticeCode::Codeword LatticeCode::Decode(uint32_t code) const {
  if (bits_ == 1) return ShortVectors()[code];
  if (bits_ == 2) return DecodeE8p(code);
  Codeword codeword = DecodeE8p(code >> (bits_ == 3 ? 8 : 16));
  const Codeword second = bits_ == 3 ? ShortVectors()[code & 255] : DecodeE8p(code);
  for (size_t i = 0; i < codeword.size(); ++i) {
    codeword[i] = static_cast<int8_t>((bits_ == 4 ? 4 * codeword[i] : codeword[i]) + second[i]);
  }
  return codeword;
}

}  // namespace nibble
