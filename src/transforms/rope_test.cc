// SPDX-License-Identifier: Apache-2.0
#include "transforms/rope.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "nibble/error.h"

namespace nibble {
namespace {

constexpr long double kUnit = 0x1p-24L;  // relative rounding error of fp32

// One frequency by the published formulas, with nothing rounded.
long double ExactFrequency(const RopeSpec& spec, int64_t pair) {
  const long double frequency =
      std::pow(static_cast<long double>(spec.theta),
               -2.0L * static_cast<long double>(pair) / static_cast<long double>(spec.head_dim));
  if (spec.type == "default") return frequency;
  if (spec.type == "linear") return frequency / spec.factor;
  if (spec.type == "longrope") return frequency / spec.divisors[static_cast<size_t>(pair)];
  if (spec.type == "yarn") {
    // The index, not rounded, of the pair that turns so many times within the original context.
    const auto place = [&](long double turns) {
      return static_cast<long double>(spec.head_dim) / 2 *
             std::log(static_cast<long double>(spec.original_context) /
                      (2 * std::numbers::pi_v<long double> * turns)) /
             std::log(static_cast<long double>(spec.theta));
    };
    long double low = place(spec.beta_fast), high = place(spec.beta_slow);
    if (spec.truncate) low = std::floor(low), high = std::ceil(high);
    low = std::max(low, 0.0L);
    high = std::min(high, static_cast<long double>(spec.head_dim - 1));
    const long double slow =
        std::clamp((static_cast<long double>(pair) - low) / (high - low), 0.0L, 1.0L);
    return slow * frequency / spec.factor + (1 - slow) * frequency;
  }
  const long double waves = static_cast<long double>(spec.original_context) * frequency /
                            (2 * std::numbers::pi_v<long double>);
  // Share of the unscaled frequency: 0 below low_freq_factor waves in the context, 1 above
  // high_freq_factor, linear between.
  const long double share = std::clamp(
      (waves - spec.low_freq_factor) / (spec.high_freq_factor - spec.low_freq_factor), 0.0L, 1.0L);
  return share * frequency + (1 - share) * frequency / spec.factor;
}

// Rounding errors of the fp32 frequency, relative, in units: 2 for the exponent's quotient and
// theta, which the power multiplies by ln(theta) and 1; 1 each for power, reciprocal and scaling.
//
// In llama3's blend, the share is off by about (4 * waves + low_freq_factor) / (high - low) <= 6.5
// units with the parameters below, of at most the frequency, and four more operations follow. In
// yarn's, share and complement are off by some units of their own size, beside 4 operations.
long double FrequencyTolerance(const RopeSpec& spec) {
  const long double plain = std::log(static_cast<long double>(spec.theta)) + 4;
  return (plain + (spec.type == "llama3" ? plain * 2 + 12 : spec.type == "yarn" ? 12 : 2)) * kUnit;
}

void ExpectMatchesClosedForm(const RopeSpec& spec, int64_t positions) {
  const RopeTable table = BuildRope(spec, positions);
  ASSERT_EQ(table.cos.rows, positions);
  ASSERT_EQ(table.sin.cols, spec.head_dim / 2);
  for (int64_t p = 0; p < positions; p += p < 64 ? 1 : 61) {
    for (int64_t i = 0; i < spec.head_dim / 2; ++i) {
      const long double angle = static_cast<long double>(p) * ExactFrequency(spec, i);
      const long double size = spec.attention_factor;
      // The angle's own rounding and the result's come on top of the frequency's error.
      const auto tolerance =
          static_cast<double>(size * (angle * (FrequencyTolerance(spec) + kUnit) + 3 * kUnit));
      ASSERT_NEAR(table.cos.row(p)[i], static_cast<double>(size * std::cos(angle)), tolerance)
          << spec.type << " position " << p << " pair " << i;
      ASSERT_NEAR(table.sin.row(p)[i], static_cast<double>(size * std::sin(angle)), tolerance);
    }
  }
}

TEST(Rope, MatchesTheClosedForm) {
  ExpectMatchesClosedForm({.theta = 10000, .head_dim = 128}, 4096);
  ExpectMatchesClosedForm({.theta = 500000, .head_dim = 64}, 4096);
  ExpectMatchesClosedForm({.theta = 1e6, .head_dim = 2}, 100);
  ExpectMatchesClosedForm({.head_dim = 80, .type = "linear", .factor = 4}, 2048);
  ExpectMatchesClosedForm({.theta = 500000,
                           .head_dim = 128,
                           .type = "llama3",
                           .factor = 8,
                           .low_freq_factor = 1,
                           .high_freq_factor = 4,
                           .original_context = 8192},
                          8192);
  ExpectMatchesClosedForm({.theta = 500000,
                           .head_dim = 64,
                           .type = "llama3",
                           .factor = 32,
                           .low_freq_factor = 1,
                           .high_freq_factor = 4,
                           .original_context = 8192},
                          4096);
  for (const bool truncate : {false, true}) {  // gpt-oss's numbers
    ExpectMatchesClosedForm({.theta = 150000,
                             .head_dim = 64,
                             .type = "yarn",
                             .factor = 32,
                             .original_context = 4096,
                             .truncate = truncate,
                             .attention_factor = 1.3466},
                            4096);
  }
  ExpectMatchesClosedForm(
      {.head_dim = 6, .type = "longrope", .divisors = {1, 1.5, 40}, .attention_factor = 1.19},
      4096);
}

// The tolerance above grows with the position; the rounding steps themselves are pinned here: the
// angle is the fp32 product of the position and the fp32 frequency (read off at position 1, where
// sin is invertible to fp32 only for the first pair, whose frequency is 1).
TEST(Rope, AnglesAreFp32Products) {
  const RopeSpec spec = {.theta = 10000, .head_dim = 8};
  const RopeTable table = BuildRope(spec, 20000);
  const float frequencies[] = {1.0f, 0.1f, 0.01f, 0.001f};  // 10000^(-i/4): powers exact in fp32
  for (int64_t p : {1, 3, 777, 9999, 19999}) {
    for (int i = 0; i < 4; ++i) {
      const float angle = static_cast<float>(p) * frequencies[i];
      EXPECT_EQ(table.cos.row(p)[i], static_cast<float>(std::cos(static_cast<long double>(angle))));
      EXPECT_EQ(table.sin.row(p)[i], static_cast<float>(std::sin(static_cast<long double>(angle))));
    }
  }
}

TEST(Rope, PositionZeroIsTheIdentity) {
  const RopeTable table = BuildRope({.head_dim = 64}, 1);
  for (float c : table.cos.data) EXPECT_EQ(c, 1);
  for (float s : table.sin.data) EXPECT_EQ(s, 0);
}

TEST(Rope, Llama3LeavesShortWavesAndStretchesLongOnes) {
  RopeSpec plain = {.theta = 500000, .head_dim = 128}, scaled = plain;
  scaled.type = "llama3";
  scaled.factor = 8;
  const RopeTable a = BuildRope(plain, 2), b = BuildRope(scaled, 17);
  EXPECT_EQ(a.cos.row(1)[0], b.cos.row(1)[0]);
  EXPECT_EQ(a.sin.row(1)[20], b.sin.row(1)[20]);
  // 8 tokens of a stretched wave are one token of the plain one; factor 8 divides exactly.
  EXPECT_EQ(a.sin.row(1)[63], b.sin.row(8)[63]);
}

TEST(Rope, RefusesWhatItCannotBuild) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const RopeSpec& spec : std::vector<RopeSpec>{
           {.head_dim = 0},
           {.head_dim = 7},
           {.head_dim = -2},
           {.theta = 0, .head_dim = 8},
           {.theta = -1, .head_dim = 8},
           {.theta = inf, .head_dim = 8},
           {.theta = std::nan(""), .head_dim = 8},
           {.head_dim = 8, .type = "magic"},
           {.theta = 1, .head_dim = 8, .type = "yarn"},
           {.head_dim = 8, .type = "yarn", .beta_fast = 1, .beta_slow = 2},
           {.head_dim = 8, .type = "yarn", .original_context = 0},
           {.head_dim = 8, .type = "longrope", .divisors = {1, 2, 3}},
           {.head_dim = 8, .type = "longrope", .divisors = {1, 2, 0, 4}},
           {.head_dim = 8, .attention_factor = 0},
           {.head_dim = 8, .type = "yarn", .factor = 0},
           {.head_dim = 8, .type = "linear", .factor = 0},
           {.head_dim = 8, .type = "llama3", .factor = inf},
           {.head_dim = 8, .type = "llama3", .low_freq_factor = 4, .high_freq_factor = 4},
           {.head_dim = 8, .type = "llama3", .low_freq_factor = 0},
           {.head_dim = 8, .type = "llama3", .original_context = 0}}) {
    EXPECT_THROW(BuildRope(spec, 4), Error) << spec.type << " " << spec.head_dim;
  }
}

}  // namespace
}  // namespace nibble
