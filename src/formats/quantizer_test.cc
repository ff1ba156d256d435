// SPDX-License-Identifier: Apache-2.0
// The references here evaluate the documented expressions in long double and round every single
// operation to fp32: 64 bits of mantissa are more than 2 * 24 + 2, so rounding twice is harmless
// and no compiler can contract anything.
#include "formats/quantizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "base/half.h"
#include "base/rng.h"

namespace nibble {
namespace {

// --- activations
// ------------------------------------------------------------------------------------

using Exact = long double;

float F(Exact v) {
  return static_cast<float>(v);
}

Exact Rne(Exact v) {
  const Exact down = std::floor(v), rest = v - down;
  const bool up = rest > 0.5L || (rest == 0.5L && std::fmod(down, 2.0L) != 0);
  return up ? down + 1 : down;
}

Exact Clamp(Exact v, Exact lo, Exact hi) {
  return v < lo ? lo : v > hi ? hi : v;
}

Exact MaxAbs(std::span<const float> x) {
  Exact m = 0;
  for (float v : x) m = std::max(m, std::fabs(Exact{v}));
  return m;
}

struct ActResult {
  explicit ActResult(int64_t width, int64_t groups)
      : codes(static_cast<size_t>(width), 99),
        scales(static_cast<size_t>(groups), NAN),
        zero_offsets(static_cast<size_t>(groups), NAN),
        sums(static_cast<size_t>(groups), -12345) {}
  ActRow row() { return {codes.data(), scales.data(), zero_offsets.data(), sums.data()}; }
  std::vector<int8_t> codes;
  std::vector<float> scales, zero_offsets;
  std::vector<int32_t> sums;
};

ActResult ReferenceActs(std::span<const float> x, const FormatSpec& f) {
  const int64_t groups = f.groups(static_cast<int64_t>(x.size()));
  ActResult r(static_cast<int64_t>(x.size()), groups);
  const size_t length = x.size() / static_cast<size_t>(groups);
  const Exact h = 1 << (f.bits - 1), clip = F(f.clip);
  for (size_t g = 0; g < static_cast<size_t>(groups); ++g) {
    const auto part = x.subspan(g * length, length);
    const auto [min, max] = std::minmax_element(part.begin(), part.end());
    const Exact lo = F(*min * clip), hi = F(*max * clip);
    const float range = F(Exact{F(hi - lo)} / (2 * h - 1));
    const float symmetric = F(MaxAbs(part) * F(clip / (h - 1)));
    r.scales[g] = std::max(f.symmetric ? symmetric : range, kMinScale);
    if (f.signed_scale) {
      const Exact extreme = *max >= -*min ? *max : *min;
      const float a = F(-extreme * F(clip / h));
      r.scales[g] = std::fabs(a) < kMinScale ? kMinScale : a;
    }
    const Exact inverse = F(1 / Exact{r.scales[g]});
    if (!f.symmetric) r.zero_offsets[g] = F(F(lo * inverse) + h);
    r.sums[g] = 0;
    for (size_t i = 0; i < length; ++i) {
      const Exact q = f.symmetric ? Clamp(Rne(F(part[i] * inverse)), -h, h - 1)
                                  : Clamp(Rne(F(F(part[i] - lo) * inverse)), 0, 2 * h - 1) - h;
      r.codes[g * length + i] = static_cast<int8_t>(q);
      r.sums[g] += static_cast<int32_t>(q);
    }
  }
  return r;
}

std::vector<float> NormalRow(Rng& rng, int64_t width, double scale, double shift = 0) {
  std::vector<float> x(static_cast<size_t>(width));
  for (float& v : x) v = static_cast<float>(scale * rng.Normal() + shift);
  return x;
}

// Rows with every kind of difficulty: plain, shifted, zero, constant, huge, tiny, ties, one
// outlier.
std::vector<std::vector<float>> HardRows(Rng& rng, int64_t width) {
  std::vector<std::vector<float>> rows;
  for (int i = 0; i < 8; ++i) rows.push_back(NormalRow(rng, width, 1));
  for (const double shift : {-5.0, 3.0}) rows.push_back(NormalRow(rng, width, 1, shift));
  for (const float c : {0.0f, 3.25f, -1e-3f, 1e20f}) {
    rows.emplace_back(static_cast<size_t>(width), c);
  }
  for (const double scale : {1e30, 1e-8, 1e-12, 1e-40})
    rows.push_back(NormalRow(rng, width, scale));
  std::vector<float> ties(static_cast<size_t>(width));
  for (float& v : ties) v = static_cast<float>(rng.Below(511)) * 0.5f - 127.0f;
  rows.push_back(ties);
  rows.push_back(NormalRow(rng, width, 1e-3));
  rows.back()[rng.Below(static_cast<uint64_t>(width))] = -777;
  return rows;
}

void ForEachFormat(const std::function<void(const FormatSpec&, int64_t)>& check) {
  for (int bits = 2; bits <= 8; ++bits) {
    for (const bool symmetric : {true, false}) {
      for (const double clip : {1.0, 0.9}) {
        const FormatSpec f = {.bits = bits, .symmetric = symmetric, .clip = clip};
        for (const int64_t width : {1, 5, 37, 128}) check(f, width);
        FormatSpec grouped = f;
        grouped.group = 32;
        check(grouped, 96);
      }
    }
  }
}

void ForEachActFormat(const std::function<void(const FormatSpec&, int64_t)>& check) {
  ForEachFormat([&](FormatSpec f, int64_t width) {
    check(f, width);
    f.signed_scale = true;
    if (f.symmetric) check(f, width);
  });
}

TEST(QuantizeActivationsTest, EqualsTheDocumentedExpressions) {
  Rng rng(2);
  ForEachActFormat([&](const FormatSpec& f, int64_t width) {
    for (const auto& x : HardRows(rng, width)) {
      const ActResult expected = ReferenceActs(x, f);
      ActResult got(width, f.groups(width));
      QuantizeActivations(x, f, got.row());
      ASSERT_EQ(got.codes, expected.codes) << FormatText(f) << " width " << width << " x0 " << x[0];
      ASSERT_EQ(got.scales, expected.scales);
      ASSERT_EQ(got.sums, expected.sums);
      for (size_t g = 0; g < got.zero_offsets.size(); ++g) {
        if (f.symmetric) {
          ASSERT_TRUE(std::isnan(got.zero_offsets[g])) << "zero offsets must stay untouched";
        } else {
          ASSERT_EQ(got.zero_offsets[g], expected.zero_offsets[g]);
        }
      }
    }
  });
}

TEST(QuantizeActivationsTest, TiesGoToEven) {
  const std::vector<float> x = {7, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 6.5f};
  ActResult symmetric(8, 1), asymmetric(8, 1);
  QuantizeActivations(x, {.bits = 4}, symmetric.row());
  EXPECT_EQ(symmetric.scales[0], 1.0f);
  EXPECT_THAT(symmetric.codes, testing::ElementsAre(7, 0, 2, 2, 0, -2, -2, 6));
  const std::vector<float> y = {0, 255, 0.5f, 1.5f, 2.5f, 127.5f, 128.5f, 254.5f};
  QuantizeActivations(y, {.bits = 8, .symmetric = false}, asymmetric.row());
  EXPECT_EQ(asymmetric.scales[0], 1.0f);
  EXPECT_EQ(asymmetric.zero_offsets[0], 128.0f);
  EXPECT_THAT(asymmetric.codes, testing::ElementsAre(-128, 127, -128, -126, -126, 0, 0, 126));
}

TEST(QuantizeActivationsTest, ASignedScaleUsesTheLowestCode) {
  const FormatSpec f = {.bits = 4, .signed_scale = true};
  ActResult r(5, 1);
  QuantizeActivations(std::vector<float>{8, -7, 0.5f, 1.5f, -8}, f, r.row());
  EXPECT_EQ(r.scales[0], -1.0f);  // the positive one of two equal magnitudes
  EXPECT_THAT(r.codes, testing::ElementsAre(-8, 7, 0, -2, 7));
  QuantizeActivations(std::vector<float>{7, -8, 0.5f, 1.5f, 0}, f, r.row());
  EXPECT_EQ(r.scales[0], 1.0f);
  EXPECT_THAT(r.codes, testing::ElementsAre(7, -8, 0, 2, 0));
}

TEST(QuantizeActivationsTest, ErrorIsHalfAStep) {
  Rng rng(3);
  for (int bits = 2; bits <= 8; ++bits) {
    for (const bool symmetric : {true, false}) {
      const FormatSpec f = {.bits = bits, .symmetric = symmetric, .group = 32};
      for (const double shift : {0.0, 4.0}) {
        const auto x = NormalRow(rng, 96, 1, shift);
        ActResult r(96, 3);
        QuantizeActivations(x, f, r.row());
        std::vector<float> back(96, NAN);
        DequantizeActivations(r.row(), f, back);
        for (size_t i = 0; i < 96; ++i) {
          const Exact a = r.scales[i / 32], zero_offset = symmetric ? 0 : r.zero_offsets[i / 32];
          // x^ = a (q + z) itself, then the half step. The fp32 roundings on the way: at most 6,
          // of numbers no larger than |x| + |lo| + 2^b steps <= 16 + 16 + 2^b a.
          const double rounding = 6 * 0x1p-24 * static_cast<double>(32 + (1 << bits) * a);
          EXPECT_NEAR(back[i], F(a * (r.codes[i] + zero_offset)), rounding);
          EXPECT_NEAR(back[i], x[i], static_cast<double>(a) / 2 + rounding);
        }
      }
    }
  }
}

TEST(QuantizeActivationsTest, ZeroAndConstantRows) {
  for (const bool symmetric : {true, false}) {
    for (const float c : {0.0f, 2.5f, -3e-4f}) {
      const FormatSpec f = {.bits = 4, .symmetric = symmetric};
      const std::vector<float> x(33, c);
      ActResult r(33, 1);
      QuantizeActivations(x, f, r.row());
      std::vector<float> back(33, NAN);
      DequantizeActivations(r.row(), f, back);
      // A few fp32 roundings: both kinds represent a constant exactly (its end of the range).
      for (float v : back) EXPECT_NEAR(v, c, std::fabs(c) * 1e-6 + 1e-8);
      if (c == 0) {
        EXPECT_EQ(r.scales[0], kMinScale);
        for (float v : back) EXPECT_EQ(v, 0.0f);
      }
    }
  }
}

// --- cache
// ------------------------------------------------------------------------------------------

struct KvResult {
  KvResult(const FormatSpec& f, int64_t width)
      : packed(static_cast<size_t>(PackedBytes(width, f.bits)), 0x5A),
        params(static_cast<size_t>(2 * f.groups(width)), 0xDEAD) {}
  std::vector<uint8_t> packed;
  std::vector<uint16_t> params;
};

KvResult ReferenceKv(std::span<const float> x, const FormatSpec& f) {
  const int64_t width = static_cast<int64_t>(x.size());
  KvResult r(f, width);
  const size_t groups = static_cast<size_t>(f.groups(width)), length = x.size() / groups;
  const Exact top = (1 << f.bits) - 1, h = 1 << (f.bits - 1), clip = F(f.clip);
  std::vector<int8_t> codes(x.size());
  for (size_t g = 0; g < groups; ++g) {
    const auto part = x.subspan(g * length, length);
    Exact min = 0, max = 0;
    for (float v : part) min = std::min(min, Exact{v}), max = std::max(max, Exact{v});
    const Exact lo = F(min * clip), hi = F(max * clip);
    const float step = f.symmetric ? F(MaxAbs(part) * F(clip / (h - 1))) : F(F(hi - lo) / top);
    // The floor before and after rounding to fp16 is the same: rounding is monotone.
    const uint16_t s_bits = F16FromF32(std::min(std::max(step, kMinKvScale), kMaxKvScale));
    const Exact inverse = F(1 / Exact{F32FromF16(s_bits)});
    const Exact z = f.symmetric ? h : Clamp(Rne(F(0 - lo * inverse)), 0, top);
    for (size_t i = 0; i < length; ++i) {
      const Exact q = Clamp(Rne(F(part[i] * inverse)) + z, 0, top);
      codes[g * length + i] = static_cast<int8_t>(static_cast<int>(q));
    }
    r.params[2 * g] = s_bits;
    r.params[2 * g + 1] = F16FromF32(F(z));
  }
  PackCodes(codes.data(), width, f.bits, r.packed.data());
  return r;
}

TEST(QuantizeKvTest, EqualsTheDocumentedExpressions) {
  Rng rng(4);
  ForEachFormat([&](const FormatSpec& f, int64_t width) {
    for (const auto& x : HardRows(rng, width)) {
      const KvResult expected = ReferenceKv(x, f);
      KvResult got(f, width);
      QuantizeKv(x, f, got.packed.data(), got.params.data());
      ASSERT_EQ(got.params, expected.params)
          << FormatText(f) << " width " << width << " x0 " << x[0];
      ASSERT_EQ(got.packed, expected.packed)
          << FormatText(f) << " width " << width << " x0 " << x[0];
    }
  });
}

TEST(QuantizeKvTest, ErrorIsHalfAStepOrTheEndOfTheRange) {
  Rng rng(5);
  ForEachFormat([&](const FormatSpec& f, int64_t width) {
    for (const double shift : {0.0, 4.0, -4.0}) {
      const auto x = NormalRow(rng, width, 1, shift);
      KvResult r(f, width);
      QuantizeKv(x, f, r.packed.data(), r.params.data());
      std::vector<float> back(x.size(), NAN);
      DequantizeKv(r.packed.data(), r.params.data(), f, back);
      const size_t length = x.size() / static_cast<size_t>(f.groups(width));
      for (size_t i = 0; i < x.size(); ++i) {
        const double s = F32FromF16(r.params[i / length * 2]);
        const double z = F32FromF16(r.params[i / length * 2 + 1]);
        const double nearest = std::clamp<double>(x[i], -z * s, ((1 << f.bits) - 1 - z) * s);
        // x * (1/s) has two roundings of a number of at most 2^8 steps.
        EXPECT_NEAR(back[i], nearest, s * (0.5 + 256 * 3 * 0x1p-24)) << FormatText(f);
      }
    }
  });
}

TEST(QuantizeKvTest, ZeroIsExactAndTiesGoToEven) {
  for (int bits = 2; bits <= 8; ++bits) {
    for (const bool symmetric : {true, false}) {
      const FormatSpec f = {.bits = bits, .symmetric = symmetric};
      const std::vector<float> x = {0, 1.5f, -0.25f, 0, 9};
      KvResult r(f, 5);
      QuantizeKv(x, f, r.packed.data(), r.params.data());
      std::vector<float> back(5, NAN);
      DequantizeKv(r.packed.data(), r.params.data(), f, back);
      EXPECT_EQ(back[0], 0.0f);
      EXPECT_EQ(back[3], 0.0f);
    }
  }
  const FormatSpec f = {.bits = 4, .symmetric = false};
  const std::vector<float> x = {0, 15, 0.5f, 1.5f, 2.5f, 13.5f};
  KvResult r(f, 6);
  QuantizeKv(x, f, r.packed.data(), r.params.data());
  std::vector<int16_t> codes(6);
  UnpackCodes(r.packed.data(), 6, 4, false, codes.data());
  EXPECT_THAT(codes, testing::ElementsAre(0, 15, 0, 2, 2, 14));
}

}  // namespace
}  // namespace nibble
